/* SPDX-License-Identifier: Apache-2.0 */
/* Matches descriptors with records and rebuilds the ledger. Main thread, at start, before anyone is served. A crash in here finds at
 * the next start what is left to do: each step leaves the state as valid as it was. */
#include "recovery.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "annex.h"
#include "clock.h"
#include "creds.h"
#include "fault.h"
#include "leftovers.h"
#include "log.h"
#include "process.h"
#include "proto/cleanup.h"
#include "restore.h"

struct found {
        uint64_t serial;
        uint32_t slot;
};

struct found_process {
        struct process *process;
        struct stored *stored;
        bool dead;
};

/* While it runs. */
struct work {
        struct recovery *recovery;
        struct house *house;
        struct registry *registry;
        struct state *state;
        struct found_process *processes; /* by slot */
        struct leftovers *leftovers;
        unsigned n_damaged, n_missing;
};

static bool word_is_known(enum state_word word) {
        return word == STATE_PENDING || word == STATE_LIVE || word == STATE_DRAINING || word == STATE_DYING;
}

static void work_damaged(struct work *work, enum state_kind kind, uint32_t slot) {
        work->n_damaged++;
        state_give(work->state, kind, slot);
}

/* ---- descriptors ------------------------------------------------------------------------------------------- */

/* What came back under a parcel's number, if it is the one meant. NULL: it did not come back. */
static struct handed_item *left_find(const struct recovery *recovery, uint32_t parcel, uint64_t fd_device, uint64_t fd_inode) {
        for (size_t low = 0, high = recovery->n_left; low < high;) {
                size_t middle = (low + high) / 2;
                struct handed_item *item = recovery->left[middle];
                uint32_t number = store_number(item->name);
                struct stat st;

                if (number < parcel) {
                        low = middle + 1;
                } else if (number > parcel) {
                        high = middle;
                } else {
                        if (item->fd < 0 || (fd_inode != 0 && (fstat(item->fd, &st) < 0 || st.st_ino != fd_inode ||
                                                               st.st_dev != fd_device)))
                                return NULL;
                        return item;
                }
        }
        return NULL;
}

static int left_take(struct recovery *recovery, uint32_t parcel, uint64_t fd_device, uint64_t fd_inode) {
        struct handed_item *item = left_find(recovery, parcel, fd_device, fd_inode);

        return item ? take_fd(&item->fd) : -1;
}

/* What nobody took goes. A name may be there twice; whoever took one of them keeps the name. */
static void work_discard(struct work *work) {
        struct recovery *recovery = work->recovery;
        size_t n = 0;

        for (size_t i = 0; i < recovery->n_left; i++) {
                struct handed_item *item = recovery->left[i];
                uint32_t parcel = store_number(item->name);
                bool shared = (i > 0 && store_number(recovery->left[i - 1]->name) == parcel) ||
                              (i + 1 < recovery->n_left && store_number(recovery->left[i + 1]->name) == parcel);

                if (item->fd < 0)
                        continue;
                leftovers_add(work->leftovers, take_fd(&item->fd), shared ? 0 : parcel);
                n++;
        }
        if (n > 0)
                log_notice("%zu descriptors in the service manager's store belong to nothing and are taken out of it", n);
}

/* ---- records ----------------------------------------------------------------------------------------------- */

static int restore_process(struct work *work, uint32_t slot) {
        struct state *state = work->state;
        struct found_process *found = &work->processes[slot];
        const char *texts[N_PROCESS_TEXTS];
        struct state_process fixed;
        struct holder known = {0};
        int r, fd;

        if (!state_read(state, STATE_PROCESS, slot, &fixed, texts)) {
                work_damaged(work, STATE_PROCESS, slot);
                return 0;
        }
        if (state_word(state, STATE_PROCESS, slot) != STATE_LIVE) {
                state_give(state, STATE_PROCESS, slot);
                return 0;
        }
        fd = fixed.parcel > 0 ? left_take(work->recovery, fixed.parcel, fixed.fd_device, fixed.fd_inode) : -1;
        if (fd < 0 && fixed.parcel > 0) {
                work->n_missing++;
                log_warning("the descriptor of process %u did not come back: its leases end unless they are resumed", fixed.pid);
        }
        known.pid = (pid_t)fixed.pid;
        known.uid = fixed.uid;
        known.gid = fixed.gid;
        known.unplaced = fixed.unplaced;
        known.command = rcstr_new(texts[PROCESS_COMMAND]);
        known.container = rcstr_new(texts[PROCESS_CONTAINER]);
        found->dead = creds_exited(fd);
        r = process_restore(work->house, &known, fd, &found->process);
        rcstr_unref(known.command);
        rcstr_unref(known.container);
        if (r < 0)
                return r;
        r = registry_restore_process(work->registry, slot, &fixed, &found->process->holder, &found->stored);
        if (r == -EBADMSG) {
                holder_unref(&found->process->holder);
                found->process = NULL;
                work_damaged(work, STATE_PROCESS, slot);
                return 0;
        }
        return r;
}

static int restore_session(struct work *work, uint32_t slot) {
        const char *texts[N_SESSION_TEXTS];
        struct state_session fixed;
        int r = -EBADMSG;

        if (state_word(work->state, STATE_SESSION, slot) == STATE_LIVE &&
            state_read(work->state, STATE_SESSION, slot, &fixed, texts))
                r = registry_restore_session(work->registry, slot, &fixed, texts);
        if (r != -EBADMSG)
                return r;
        work_damaged(work, STATE_SESSION, slot);
        return 0;
}

static const char *device_handle(const struct device *device, const char *handle) {
        for (size_t i = 0; handle && i < device->n_handles; i++)
                if (strcmp(device->handles[i], handle) == 0)
                        return device->handles[i];
        return NULL;
}

/* Its memory: taken up, or NULL when there is none (any more). -EBADMSG: what came back is something else. */
static int restore_backing(struct work *work, const struct state_buffer *fixed, const char *handle, struct workplace *place,
                           struct backing **ret) {
        int fd = left_take(work->recovery, fixed->parcel, fixed->fd_device, fixed->fd_inode);
        struct backend_detail detail = {.text = "out of memory"};
        int r;

        *ret = NULL;
        if (fd < 0)
                return 0;
        r = place->backend->adopt(place->backend_device, fd, fixed->size, handle, ret, &detail);
        if (r < 0)
                log_warning("buffer b%" PRIu64 " cannot be taken up: %s", fixed->serial, detail.text);
        return r;
}

/* A piece of a channel, by its record; NULL: there is none, or its descriptor did not come back. */
static struct handed_item *piece_find(const struct work *work, uint32_t slot, uint64_t serial, enum state_piece piece) {
        const char *texts[N_BUFFER_TEXTS];
        struct state_buffer fixed;

        if (slot >= state_n_slots(work->state, STATE_BUFFER) || state_word(work->state, STATE_BUFFER, slot) != STATE_LIVE ||
            !state_read(work->state, STATE_BUFFER, slot, &fixed, texts) || fixed.serial != serial || fixed.piece != piece)
                return NULL;
        return left_find(work->recovery, fixed.parcel, fixed.fd_device, fixed.fd_inode);
}

/* A channel goes on when all of it came back, and its page is of the version made here. What of it did otherwise belongs to nothing. */
static int restore_annexed(struct work *work, const struct state_buffer *fixed, const char *handle, struct workplace *place,
                           struct backing **ret) {
        struct handed_item *control = piece_find(work, fixed->control - 1, fixed->serial, PIECE_CONTROL);
        struct handed_item *fences = piece_find(work, fixed->fences - 1, fixed->serial, PIECE_FENCES);
        struct backend_detail detail = {.text = "out of memory"};
        struct channel_spec spec;
        struct annex_spec annex;
        int r;

        *ret = NULL;
        if (!restore_channel_spec(work->registry, fixed, &spec) || !control || (!fences && fixed->fences_bytes > 0) ||
            !left_find(work->recovery, fixed->parcel, fixed->fd_device, fixed->fd_inode))
                return 0;
        if (!annex_is_ours(control->fd)) {
                log_warning("the control page of channel b%" PRIu64 " is of another version: the channel is left to those who are in it",
                            fixed->serial);
                return 0;
        }
        r = restore_backing(work, fixed, handle, place, ret);
        if (r < 0)
                return r;
        annex = (struct annex_spec){spec.geometry, fixed->fences_bytes, fixed->control_bytes};
        r = annex_adopt(place->backend, place->backend_device, handle, &annex, fences ? take_fd(&fences->fd) : -1, take_fd(&control->fd),
                        *ret, &detail);
        if (r < 0) {
                log_warning("channel b%" PRIu64 " cannot be taken up: %s", fixed->serial, detail.text);
                backing_close(place->backend, take_ptr(*ret));
        }
        return r;
}

static int restore_in_place(struct work *work, uint32_t slot, const struct state_buffer *fixed, const char *const *texts,
                            struct device *device, const char *handle) {
        enum state_word word = state_word(work->state, STATE_BUFFER, slot);
        struct workplace *place = workplace_of(device);
        struct backing *backing;
        int r;

        r = fixed->mode_of_channel != 0 && word == STATE_LIVE ? restore_annexed(work, fixed, handle, place, &backing)
                                                              : restore_backing(work, fixed, handle, place, &backing);
        if (r < 0)
                return r;
        if (!backing && word == STATE_LIVE) {
                work->n_missing++;
                log_line(LOG_WARNING, NULL, &(struct log_field){"BUFFER", texts[BUFFER_NAME]}, texts[BUFFER_NAME] ? 1 : 0,
                         "the memory of buffer b%" PRIu64 "%s%s did not come back from the store: it is lost to those who come",
                         fixed->serial, texts[BUFFER_NAME] ? " " : "", texts[BUFFER_NAME] ? texts[BUFFER_NAME] : "");
        }
        r = backing ? workplace_prepare_close(place) : 0;
        if (r == 0) {
                r = registry_restore_buffer(work->registry, slot, fixed, texts, device, handle, backing,
                                            backing && backing->annex ? backing->annex->page : NULL, word == STATE_DYING);
                if (r < 0 && backing)
                        workplace_forgo_close(place);
        }
        if (r < 0 && backing)
                backing_close(place->backend, backing);
        return r;
}

static int restore_buffer(struct work *work, uint32_t slot) {
        struct state *state = work->state;
        enum state_word word = state_word(state, STATE_BUFFER, slot);
        const char *texts[N_BUFFER_TEXTS], *handle = NULL;
        struct device *device = NULL;
        struct state_buffer fixed;
        bool whole = state_read(state, STATE_BUFFER, slot, &fixed, texts);
        int r = -EBADMSG;

        if (whole && fixed.piece != PIECE_WHOLE)
                return 0; /* its channel sees to it, or restore_pieces() */
        if (word == STATE_PENDING) {
                state_give(state, STATE_BUFFER, slot);
                return 0;
        }
        if ((word == STATE_LIVE || word == STATE_DYING) && whole && texts[BUFFER_DEVICE])
                device = registry_find_device(work->registry, texts[BUFFER_DEVICE]);
        if (device)
                handle = device_handle(device, texts[BUFFER_HANDLE]);
        if (handle)
                r = restore_in_place(work, slot, &fixed, texts, device, handle);
        if (r != -EBADMSG)
                return r;
        work_damaged(work, STATE_BUFFER, slot);
        return 0;
}

/* Pieces of channels that are not (any more) go. */
static void restore_pieces(struct work *work) {
        const char *texts[N_BUFFER_TEXTS];
        struct state_buffer fixed;

        for (uint32_t slot = 0; slot < state_n_slots(work->state, STATE_BUFFER); slot++) {
                const struct buffer *buffer;

                if (state_word(work->state, STATE_BUFFER, slot) == STATE_FREE ||
                    !state_read(work->state, STATE_BUFFER, slot, &fixed, texts) || fixed.piece == PIECE_WHOLE)
                        continue;
                buffer = registry_restored_buffer(work->registry, fixed.serial);
                if (!buffer || !buffer->channel || (buffer->channel->fences_slot != slot && buffer->channel->control_slot != slot))
                        state_give(work->state, STATE_BUFFER, slot);
        }
}

static int restore_lease(struct work *work, uint32_t slot) {
        struct state *state = work->state;
        enum state_word word = state_word(state, STATE_LEASE, slot);
        const char *texts[N_LEASE_TEXTS];
        struct found_process *found;
        struct state_lease fixed;
        int r = -EBADMSG;

        if ((word == STATE_LIVE || word == STATE_DRAINING) && state_read(state, STATE_LEASE, slot, &fixed, texts) &&
            fixed.process < state_n_slots(state, STATE_PROCESS)) {
                found = &work->processes[fixed.process];
                if (found->process)
                        r = registry_restore_lease(work->registry, slot, &fixed, texts, &found->process->holder, found->stored);
        }
        if (r != -EBADMSG)
                return r;
        work_damaged(work, STATE_LEASE, slot);
        return 0;
}

/* ---- all of them ------------------------------------------------------------------------------------------- */

static int found_compare(const void *a, const void *b) {
        const struct found *first = a, *second = b;

        return (first->serial > second->serial) - (first->serial < second->serial);
}

/* A record's serial is the first member of every fixed part but a process's. */
static uint64_t record_serial(const struct state *state, enum state_kind kind, uint32_t slot) {
        const char *texts[STATE_TEXTS_MAX];
        union {
                uint64_t serial;
                struct state_buffer buffer;
                struct state_lease lease;
                struct state_session session;
                struct state_process process;
        } fixed;

        return kind != STATE_PROCESS && state_read(state, kind, slot, &fixed, texts) ? fixed.serial : 0;
}

/* In order of age, as they came into being. */
static int restore_kind(struct work *work, enum state_kind kind, int (*restore)(struct work *work, uint32_t slot)) {
        uint32_t n_slots = state_n_slots(work->state, kind);
        _cleanup_free_ struct found *found = calloc((size_t)n_slots + 1, sizeof(*found));
        size_t n = 0;
        int r = 0;

        if (!found)
                return -ENOMEM;
        for (uint32_t slot = 0; slot < n_slots; slot++) {
                enum state_word word = state_word(work->state, kind, slot);

                if (word == STATE_FREE)
                        continue;
                if (!word_is_known(word))
                        work_damaged(work, kind, slot);
                else
                        found[n++] = (struct found){record_serial(work->state, kind, slot), slot};
        }
        qsort(found, n, sizeof(*found), found_compare);
        for (size_t i = 0; i < n && r == 0; i++)
                r = restore(work, found[i].slot);
        return r;
}

/* Who died meanwhile is gone, and who holds nothing leaves the store. */
static void work_settle_processes(struct work *work) {
        int64_t now_usec = clock_real_usec();
        uint64_t monotonic_usec = clock_monotonic_usec();

        for (uint32_t i = 0; i < state_n_slots(work->state, STATE_PROCESS); i++) {
                struct found_process *found = &work->processes[i];

                if (!found->process)
                        continue;
                if (found->dead)
                        registry_holder_exited(work->registry, &found->process->holder, now_usec, monotonic_usec);
                stored_unref(work->registry, found->stored);
                holder_unref(&found->process->holder);
        }
}

static void work_tell(const struct work *work) {
        const struct registry *registry = work->registry;
        unsigned n_sessions = 0;
        const struct client *client;

        list_for_each(client, &registry->detached, by_registry) n_sessions++;
        if (work->n_damaged > 0 || state_n_damaged(work->state) > 0)
                log_warning("the state an earlier daemon left is damaged: %u records and %" PRIu32 " groups of records were dropped",
                            work->n_damaged, state_n_damaged(work->state));
        if (work->recovery->kept_something)
                log_notice("taken up after a restart: %" PRId64 " buffers, %" PRId64 " leases, %u sessions, which have %g s to come back",
                           registry->n_shown_buffers, registry->n_leases, n_sessions, (double)registry->limits.resume_ms / 1000);
}

/* Nothing is to be kept: what came back is closed. */
static int recovery_drop(struct recovery *recovery, struct lane *lane) {
        struct leftovers *leftovers = recovery->n_left > 0 && !recovery->held ? leftovers_new(recovery->n_left) : NULL;

        if (!leftovers)
                return 0;
        for (size_t i = 0; i < recovery->n_left; i++)
                leftovers_add(leftovers, take_fd(&recovery->left[i]->fd), 0);
        leftovers_send(leftovers, NULL, lane);
        return 0;
}

int recovery_run(struct recovery *recovery, struct house *house, struct lane *lane) {
        struct work work = {.recovery = recovery, .house = house, .registry = &house->registry, .state = recovery->state};
        _cleanup_free_ struct found_process *processes = NULL;
        int r;

        if (!recovery->state)
                return recovery_drop(recovery, lane);
        work.processes = processes = calloc((size_t)state_n_slots(recovery->state, STATE_PROCESS) + 1, sizeof(*processes));
        work.leftovers = leftovers_new(recovery->n_left);
        if (!processes || !work.leftovers)
                return -ENOMEM;
        registry_restore_numbers(work.registry, work.state);
        r = restore_kind(&work, STATE_PROCESS, restore_process);
        if (r == 0)
                r = restore_kind(&work, STATE_SESSION, restore_session);
        if (r == 0)
                r = restore_kind(&work, STATE_BUFFER, restore_buffer);
        if (r == 0)
                restore_pieces(&work);
        if (r == 0)
                r = restore_kind(&work, STATE_LEASE, restore_lease);
        if (r == 0)
                registry_restored(work.registry, clock_real_usec(), clock_monotonic_usec());
        else
                registry_freeze(work.registry); /* the next start finds everything as it is */
        work_settle_processes(&work);
        if (r == 0)
                work_discard(&work);
        leftovers_send(work.leftovers, house->store, lane);
        fault_check(registry_check(work.registry), "after recovery");
        if (r == 0)
                work_tell(&work);
        return r;
}
