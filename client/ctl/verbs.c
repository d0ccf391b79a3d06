/* SPDX-License-Identifier: Apache-2.0 */
/* The table of verbs and their options. It decides nothing: arguments.c parses by it, usage.c prints it, the manual page
 * is compared with it. */
#include <stddef.h>
#include <string.h>

#include "verbs.h"

/* clang-format off: rows of tables */
#define END                                                                                                       \
        { OPTION_END, 0, NULL, NULL, NULL }

#define BYTES                                                                                                     \
        { OPTION_BYTES, 'b', "bytes", NULL, "exact sizes instead of KiB, MiB and GiB" }
#define BY_ID                                                                                                     \
        { OPTION_ID, 0, "id", NULL, "NAME is the id of a buffer" }
#define BY_NAME                                                                                                   \
        { OPTION_NAME, 'n', "name", "NAME", "only those of the buffer of this name" }
#define DETACH                                                                                                    \
        { OPTION_DETACH, 0, "detach", NULL, "leave at once; the buffer stays as long as --keep says" }
#define DEVICE                                                                                                    \
        { OPTION_DEVICE, 0, "device", "UUID", "the device it lies on: a UUID or \"host\"" }
#define JSON                                                                                                      \
        { OPTION_JSON, 'j', "json", NULL, "the protocol's own objects, as JSON" }
#define KEEP                                                                                                      \
        { OPTION_KEEP, 'k', "keep", "DURATION", "keep the buffer this long once its last lease has ended" }
#define LABEL                                                                                                     \
        { OPTION_LABEL, 'l', "label", "TEXT", "shown in lists beside the lease" }
#define META                                                                                                      \
        { OPTION_META, 0, "meta", "JSON", "a JSON object that travels with the buffer, at most 4 KiB" }
#define MODE                                                                                                      \
        { OPTION_MODE, 'm', "mode", "MODE", "who else may open it: r reads, w writes (default 0600)" }
#define OWNER                                                                                                     \
        { OPTION_OWNER, 0, "owner", "UID", "whose buffer: a user, or \"any\" (default: one's own or root's)" }
#define UID                                                                                                       \
        { OPTION_UID, 'u', "uid", "UID", "only those of this user (a uid or a user's name)" }
#define WAIT_BYTES                                                                                                \
        { OPTION_WAIT, 'w', "wait", "DURATION", "wait this long for quota or memory" }
#define WAIT_NAME                                                                                                 \
        { OPTION_WAIT, 'w', "wait", "DURATION", "wait this long for the name to appear" }

const struct option_row common_options[] = {
        { OPTION_SOCKET, 's', "socket", "PATH",
          "the daemon's socket (default: $GPUIPC_SOCKET, else the system's)" },
        { OPTION_HELP, 'h', "help", NULL, "this text" },
        END,
};

const struct option_row lone_options[] = {
        { OPTION_VERSION, 'V', "version", NULL, "as the verb version" },
        END,
};

static const struct option_row no_options[] = { END };
static const struct option_row status_options[] = { BYTES, JSON, END };

static const struct option_row list_options[] = {
        { OPTION_BUFFERS, 0, "buffers", NULL, "buffers instead of leases" },
        UID,
        BY_NAME,
        BYTES,
        { OPTION_WATCH, 'w', "watch", NULL, "then go on with a line for each event, as watch does" },
        JSON,
        END,
};

static const struct option_row put_options[] = {
        { OPTION_SIZE, 0, "size", "SIZE", "how much comes from a pipe or device, which then need not be spooled" },
        MODE,
        KEEP,
        DETACH,
        { OPTION_SEAL, 0, "seal", NULL, "let nobody open it for writing once it is filled" },
        META,
        LABEL,
        DEVICE,
        WAIT_BYTES,
        END,
};

static const struct option_row get_options[] = {
        WAIT_NAME,
        { OPTION_SEALED, 0, "sealed", NULL,
          "wait until it is sealed, and so complete (put --seal); bounded by --wait" },
        OWNER,
        BY_ID,
        LABEL,
        END,
};

static const struct option_row alloc_options[] = {
        { OPTION_NAME, 'n', "name", "NAME", "its name: letters, digits and . _ / -, at most 128" },
        MODE,
        KEEP,
        DETACH,
        META,
        LABEL,
        DEVICE,
        { OPTION_HANDLE, 0, "handle", "KIND", "auto (default), memfd, cuda-fd or cuda-ipc" },
        WAIT_BYTES,
        END,
};

static const struct option_row hold_options[] = {
        { OPTION_RW, 0, "rw", NULL, "for writing too (default: read only)" }, WAIT_NAME, OWNER, BY_ID, LABEL, END,
};

static const struct option_row free_options[] = {
        { OPTION_ID, 0, "id", NULL, "it is an id, even if a buffer has it for a name" },
        END,
};

static const struct option_row watch_options[] = {
        { OPTION_SINCE, 0, "since", "N", "begin after event number N instead of now" },
        JSON,
        END,
};

static const struct option_row doctor_options[] = {
        { OPTION_WAIT, 'w', "wait", "DURATION", "what a call of the driver or the daemon may take (default 30s)" },
        { OPTION_JSON, 'j', "json", NULL, "one JSON document" },
        END,
};

static const struct option_row bench_options[] = {
        { OPTION_SIZE, 0, "size", "SIZE", "of an item, instead of 256, 64K and 4M in turn" },
        { OPTION_DURATION, 'd', "duration", "DURATION", "of each of the measurements (default 300ms)" },
        { OPTION_DEVICE, 0, "device", "UUID", "items in the memory of this GPU, ordered by its streams" },
        BYTES,
        { OPTION_JSON, 'j', "json", NULL, "the figures as JSON" },
        END,
};

static const struct option_row top_options[] = {
        { OPTION_BUFFERS, 0, "buffers", NULL, "begin with buffers instead of leases" },
        { OPTION_CHANNELS, 'c', "channels", NULL, "begin with channels instead of leases" },
        { OPTION_DELAY, 'd', "delay", "SECONDS", "between two looks (default 1)" },
        { OPTION_COUNT, 'n', "count", "N", "end after N looks" },
        BYTES,
        { OPTION_NO_COLOR, 0, "no-color", NULL, "no colours; $NO_COLOR says the same" },
        JSON,
        END,
};

#define HOLDS                                                                                                     \
        "Prints the buffer's id, name (- for none) and bytes on one line, then holds it until SIGINT "            \
        "or SIGTERM. "

const struct verb verbs[] = {
        { "list", "", "leases, or buffers: who holds what",
          "Columns that do not fit the terminal are shortened, then left out; output to a file or pipe is "
          "never cut.",
          list_options, 0, 0, false, verb_list },
        { "status", "", "the daemon, its devices, its figures and its limits", NULL, status_options, 0, 0, false,
          verb_status },
        { "devices", "", "where memory comes from and how much of it is out", NULL, status_options, 0, 0, false,
          verb_devices },
        { "put", "NAME FILE", "make a buffer of a file's contents and hold it",
          HOLDS "FILE may be - for standard input. The name can be opened from the first moment, the contents "
                "are complete when the line is printed; get --sealed waits for a put --seal.",
          put_options, 2, 2, false, verb_put },
        { "get", "NAME [FILE]", "write a buffer's contents to a file, or to standard output",
          "FILE is replaced as a whole once everything is written, or not touched; - or none is standard output.",
          get_options, 1, 2, false, verb_get },
        { "alloc", "SIZE", "make an empty buffer and hold it",
          HOLDS "SIZE is bytes, or has a unit: 64K, 2M, 1.5G (powers of 1024).", alloc_options, 1, 1, false,
          verb_alloc },
        { "hold", "NAME [-- COMMAND ...]", "hold an existing buffer, by itself or for a command",
          HOLDS "With a COMMAND nothing is printed: it runs with the buffer's descriptor as number 3 and with "
                "GPUIPC_FD, GPUIPC_SIZE, GPUIPC_OFFSET, GPUIPC_BUFFER and GPUIPC_NAME set; its exit status is "
                "passed on.",
          hold_options, 1, 1, true, verb_hold },
        { "free", "NAME|ID", "take the name away, end its keep, let nobody open it any more",
          "What holders have they keep. A name is looked for first, then an id.", free_options, 1, 1, false,
          verb_free },
        { "kick", "SESSION", "close another session of one's own uid; an administrator, any",
          "Sessions are told by list --json. The leases of a process that lives on are draining until it ends.",
          no_options, 1, 1, false, verb_kick },
        { "watch", "", "a line for each event, as it happens", NULL, watch_options, 0, 0, false, verb_watch },
        { "top", "", "a live view of devices and of who holds most",
          "Keys: q quits, b, c and l show buffers, channels and leases, the space bar looks at once. In bars # is brokered, % "
          "draining and : not to be had. Without a terminal it is plain text.",
          top_options, 0, 0, false, verb_top },
        { "metrics", "", "figures for Prometheus, in its text format", NULL, no_options, 0, 0, false,
          verb_metrics },
        { "bench", "", "how fast channels are here, beside pipes, sockets and copies through shared memory",
          "Sends items from process to process, in host memory unless a device is given. P50 and P99 are of an item's way "
          "there and back, halved; ITEMS/S is of items one after another. With two receivers each gets every item.",
          bench_options, 0, 0, false, verb_bench },
        { "doctor", "[CODE]", "why CUDA IPC does not work here, and what to do",
          "Looks at the socket, who you are to the daemon, namespaces, /dev/shm, the driver, devices and limits, then "
          "makes, maps, writes, reads and releases 2 MiB of each kind of memory that the daemon lends. Asks everyone's "
          "socket unless told otherwise. Exits with 3 when no daemon answers, else with 1 when something fails. With a "
          "CODE such as G101, tells what it means.",
          doctor_options, 0, 1, false, verb_doctor },
        { "version", "", "versions of this command, its library and the daemon", NULL, no_options, 0, 0, false,
          verb_version },
        { "help", "[VERB]", "this list, or what a verb does", NULL, no_options, 0, 1, false, verb_help },
        { NULL, NULL, NULL, NULL, NULL, 0, 0, false, NULL },
};
/* clang-format on */

const struct verb *verb_find(const char *name) {
        for (const struct verb *verb = verbs; verb->name; verb++)
                if (strcmp(verb->name, name) == 0)
                        return verb;
        return NULL;
}
