/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that hold buffers and use the broker all the time, to see what a restart of it does to them.
 *
 *     load WORKERS READERS HELD BYTES
 *
 * Each worker is a process of one of five users with a client of its own. It holds HELD buffers of at least BYTES, filled with a pattern
 * of their own. Then it goes round: allocates, fills, opens, compares and releases, and looks at what its neighbour holds. The first
 * READERS only open, list and release: nothing that the daemon would have to store. Each takes one command a line and answers with a line:
 *
 *     go      the workers go round
 *     stand   each finishes its round; then all it holds and all its neighbour holds is hashed anew
 *     report  where they are, while they go on
 *     mark    what was slowest is forgotten
 *     more    each worker, standing, tries to allocate one buffer more, and releases it
 *     end     all is released
 *
 * Any refusal of a call, and any byte that is not as it was written, ends the worker that met it; the answer says so. */
#include <err.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <gpuipc.h>

#define FIRST_UID 4000
#define N_UIDS 5
#define LOOK_AGAIN_MS 50

enum call { CALL_ALLOCATE, CALL_OPEN, CALL_RELEASE, CALL_SEAL, CALL_FREE, CALL_LIST, CALL_STATUS, N_CALLS };
static const char *const call_names[N_CALLS] = { "allocate", "open", "release", "seal", "free", "list", "status" };

enum order { ORDER_STAND, ORDER_GO, ORDER_MORE, ORDER_END };

struct held {
        gpuipc_buffer *buffer; /* the worker's own */
        char id[32], lease[32];
        int64_t size, allocated;
        uint64_t hash; /* as its holder reads it */
        uint64_t seen; /* as the worker before reads it through a lease of its own */
};

struct worker {
        pid_t pid;
        atomic_uint done; /* the order that was carried out, by its number */
        atomic_bool ended;
        _Atomic int64_t rounds, restarts;
        _Atomic int64_t n_calls[N_CALLS], slowest_usec[N_CALLS];
        char failure[700], refusal[700];
};

/* Shared by all. Orders are numbered, so that the same one can be given twice. */
struct board {
        atomic_uint number;
        _Atomic enum order order;
        atomic_uint changed;
        struct worker workers[];
};

static struct board *board;
static struct held *helds;
static unsigned n_workers, n_readers, n_held;
static int64_t least_bytes;

/* ---- words that processes wait for ------------------------------------------------------------------------ */

static void wait_while(atomic_uint *word, unsigned value, int ms) {
        struct timespec time = { .tv_nsec = INT64_C(1000000) * ms };

        (void)syscall(SYS_futex, word, FUTEX_WAIT, value, ms < 0 ? NULL : &time, NULL, 0);
}

static void add_one(atomic_uint *word) {
        atomic_fetch_add(word, 1);
        (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* ---- a worker --------------------------------------------------------------------------------------------- */

struct self {
        unsigned place;
        struct worker *worker;
        gpuipc_client *client;
        gpuipc_error error;
        int64_t began_usec;
};

__attribute__((format(printf, 2, 3), noreturn)) static void fail(struct self *self, const char *format, ...) {
        va_list arguments;

        va_start(arguments, format);
        (void)vsnprintf(self->worker->failure, sizeof(self->worker->failure), format, arguments);
        va_end(arguments);
        add_one(&board->changed);
        _exit(1);
}

static int64_t now_usec(void) {
        struct timespec now;

        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;
}

static void begin(struct self *self) {
        self->began_usec = now_usec();
}

static void ended(struct self *self, enum call call, int status) {
        int64_t usec = now_usec() - self->began_usec;

        if (status != GPUIPC_OK)
                fail(self, "worker %u, round %" PRId64 ", %s after %" PRId64 " ms: %s: %s", self->place, self->worker->rounds,
                     call_names[call], usec / 1000, self->error.name, self->error.message);
        self->worker->n_calls[call]++;
        if (usec > self->worker->slowest_usec[call])
                self->worker->slowest_usec[call] = usec;
}

/* No two buffers, rounds or words have the same. */
static uint64_t pattern(uint64_t seed, uint64_t i) {
        uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + i;

        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        return x ^ x >> 31;
}

static uint64_t seed_of(unsigned place, unsigned i) {
        return ((uint64_t)place + 1) << 32 | i;
}

static void fill(struct self *self, gpuipc_buffer *buffer, uint64_t seed) {
        size_t n = (size_t)gpuipc_buffer_size(buffer) / 8;
        void *memory;
        uint64_t *words;

        if (gpuipc_buffer_map(buffer, &memory, &self->error) != GPUIPC_OK)
                fail(self, "worker %u: map: %s", self->place, self->error.message);
        words = memory;
        for (size_t i = 0; i < n; i++)
                words[i] = pattern(seed, i);
}

/* The hash of all its words, each of which is compared with what was written. */
static uint64_t look(struct self *self, gpuipc_buffer *buffer, uint64_t seed, const char *what) {
        size_t n = (size_t)gpuipc_buffer_size(buffer) / 8;
        uint64_t hash = UINT64_C(0xcbf29ce484222325);
        const uint64_t *words;
        void *memory;

        if (gpuipc_buffer_map(buffer, &memory, &self->error) != GPUIPC_OK)
                fail(self, "worker %u: map of %s: %s", self->place, what, self->error.message);
        words = memory;
        for (size_t i = 0; i < n; i++) {
                if (words[i] != pattern(seed, i))
                        fail(self, "worker %u, round %" PRId64 ": wrong data in %s, buffer %s, word %zu", self->place,
                             self->worker->rounds, what, gpuipc_buffer_id(buffer), i);
                hash = (hash ^ words[i]) * UINT64_C(0x100000001b3);
        }
        return hash;
}

static gpuipc_buffer *allocate(struct self *self, const char *name, int64_t size) {
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_buffer *buffer;

        options.name = name;
        options.mode = "0644";
        options.device = "host";
        begin(self);
        ended(self, CALL_ALLOCATE, gpuipc_allocate(self->client, size, &options, &buffer, &self->error));
        return buffer;
}

static gpuipc_buffer *open_named(struct self *self, const char *name) {
        gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;
        gpuipc_buffer *buffer;

        options.access = GPUIPC_RO;
        options.owner = -2;
        begin(self);
        ended(self, CALL_OPEN, gpuipc_open_name(self->client, name, &options, &buffer, &self->error));
        return buffer;
}

static void release(struct self *self, gpuipc_buffer *buffer) {
        begin(self);
        ended(self, CALL_RELEASE, gpuipc_release(buffer, &self->error));
}

static struct held *held_of(unsigned place, unsigned i) {
        return &helds[(size_t)place * n_held + i];
}

static void hold(struct self *self) {
        for (unsigned i = 0; i < n_held; i++) {
                struct held *held = held_of(self->place, i);
                char name[64];

                (void)snprintf(name, sizeof(name), "held.%u.%u", self->place, i);
                held->buffer = allocate(self, name, least_bytes * (1 + (self->place + i) % 4));
                fill(self, held->buffer, seed_of(self->place, i));
                (void)snprintf(held->id, sizeof(held->id), "%s", gpuipc_buffer_id(held->buffer));
                (void)snprintf(held->lease, sizeof(held->lease), "%s", gpuipc_buffer_lease(held->buffer));
                held->size = gpuipc_buffer_size(held->buffer);
                held->allocated = gpuipc_buffer_allocated(held->buffer);
        }
}

/* What worker `place` holds, through a new lease. */
static uint64_t look_at(struct self *self, unsigned place, unsigned i) {
        gpuipc_buffer *buffer;
        char name[64];
        uint64_t hash;

        (void)snprintf(name, sizeof(name), "held.%u.%u", place, i);
        buffer = open_named(self, name);
        hash = look(self, buffer, seed_of(place, i), name);
        release(self, buffer);
        return hash;
}

static int count_lease(const gpuipc_lease_info *lease, void *data) {
        int64_t *n = data;

        *n += lease->pid > 0;
        return 0;
}

static void list(struct self *self) {
        gpuipc_list_options options = GPUIPC_LIST_OPTIONS_INIT;
        int64_t n = 0;

        options.uid = getuid();
        begin(self);
        ended(self, CALL_LIST, gpuipc_list(self->client, &options, count_lease, &n, &self->error));
        if (n < n_held)
                fail(self, "worker %u: %" PRId64 " leases in the list, while it holds %u", self->place, n, n_held);
        begin(self);
        ended(self, CALL_STATUS, gpuipc_get_status(self->client, NULL, NULL, &self->error));
}

static void look_at_all(struct self *self) {
        unsigned next = (self->place + 1) % n_workers;

        for (unsigned i = 0; i < n_held; i++) {
                struct held *held = held_of(self->place, i);

                if (gpuipc_buffer_check(held->buffer, &self->error) != GPUIPC_OK)
                        fail(self, "worker %u: held.%u.%u: %s", self->place, self->place, i, self->error.message);
                held->hash = look(self, held->buffer, seed_of(self->place, i), "what it holds");
                held_of(next, i)->seen = look_at(self, next, i);
        }
        list(self); /* so that the connection for lists, which a restart cuts as well, stands again */
}

/* A buffer from its making to its end. */
static void make_and_end(struct self *self, int64_t round) {
        uint64_t seed = (uint64_t)round << 32 | (self->place + 1);
        gpuipc_buffer *buffer, *again;
        char name[64];

        (void)snprintf(name, sizeof(name), "made.%u", self->place);
        buffer = allocate(self, name, 4096 * (1 + round % 8) + 8 * (round % 100));
        fill(self, buffer, seed);
        again = open_named(self, name);
        (void)look(self, again, seed, name);
        if (round % 3 == 1) {
                begin(self);
                ended(self, CALL_SEAL, gpuipc_seal(self->client, gpuipc_buffer_id(buffer), &self->error));
        }
        if (round % 3 == 2) {
                begin(self);
                ended(self, CALL_FREE, gpuipc_free(self->client, gpuipc_buffer_id(buffer), NULL, &self->error));
        }
        release(self, buffer);
        (void)look(self, again, seed, name);
        release(self, again);
}

static void go_round(struct self *self) {
        int64_t round = self->worker->rounds;

        (void)look_at(self, (self->place + 1 + (unsigned)round) % n_workers, (unsigned)round % n_held);
        if (self->place < n_readers || round % 8 == 0)
                list(self);
        if (self->place >= n_readers)
                make_and_end(self, round);
        self->worker->rounds++;
        self->worker->restarts = gpuipc_client_restarts(self->client);
}

static void try_more(struct self *self) {
        gpuipc_buffer *buffer;

        self->worker->refusal[0] = '\0';
        if (gpuipc_allocate(self->client, 16, NULL, &buffer, &self->error) == GPUIPC_OK)
                release(self, buffer);
        else
                (void)snprintf(self->worker->refusal, sizeof(self->worker->refusal), "%s: %s", self->error.name, self->error.message);
}

static void let_go(struct self *self) {
        for (unsigned i = 0; i < n_held; i++)
                release(self, held_of(self->place, i)->buffer);
        gpuipc_client_free(self->client);
        self->worker->ended = true;
}

/* The first order has been given when all are there. */
__attribute__((noreturn)) static void work(unsigned place) {
        struct self self = { .place = place, .worker = &board->workers[place] };
        gid_t gid = FIRST_UID + place % N_UIDS;
        unsigned number = 0;

        /* In this order: who becomes another user no longer hears of its parent's death. */
        if (setgroups(0, NULL) < 0 || setresgid(gid, gid, gid) < 0 || setresuid(gid, gid, gid) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
                fail(&self, "worker %u: cannot become user %u: %s", place, gid, strerror(errno));
        if (gpuipc_connect(NULL, &self.client, &self.error) != GPUIPC_OK)
                fail(&self, "worker %u: connect: %s", place, self.error.message);
        hold(&self);
        for (;;) {
                enum order order;

                atomic_store(&self.worker->done, number);
                add_one(&board->changed);
                while (atomic_load(&board->number) == number) {
                        if (number > 0 && atomic_load(&board->order) == ORDER_GO)
                                go_round(&self);
                        else
                                wait_while(&board->number, number, -1);
                }
                number = atomic_load(&board->number);
                order = atomic_load(&board->order);
                if (order == ORDER_STAND)
                        look_at_all(&self);
                else if (order == ORDER_MORE)
                        try_more(&self);
                else if (order == ORDER_END)
                        break;
                self.worker->restarts = gpuipc_client_restarts(self.client);
        }
        let_go(&self);
        _exit(0);
}

/* ---- who gives the orders --------------------------------------------------------------------------------- */

/* Workers that have ended are told apart from those that failed by `ended`. */
static bool is_gone(unsigned place) {
        struct worker *worker = &board->workers[place];
        int status;

        if (worker->pid > 0 && waitpid(worker->pid, &status, WNOHANG) == worker->pid) {
                if (!worker->ended && worker->failure[0] == '\0')
                        (void)snprintf(worker->failure, sizeof(worker->failure), "worker %u ended with status %d", place, status);
                worker->pid = -1;
        }
        return worker->pid < 0;
}

static bool all_done(unsigned number) {
        for (unsigned i = 0; i < n_workers; i++)
                if (!is_gone(i) && atomic_load(&board->workers[i].done) != number)
                        return false;
        return true;
}

static void wait_done(unsigned number) {
        for (;;) {
                unsigned changed = atomic_load(&board->changed);

                if (all_done(number))
                        return;
                wait_while(&board->changed, changed, LOOK_AGAIN_MS);
        }
}

static void give(enum order order) {
        atomic_store(&board->order, order);
        add_one(&board->number);
        wait_done(atomic_load(&board->number));
}

static void forget_slowest(void) {
        for (unsigned i = 0; i < n_workers; i++)
                for (unsigned call = 0; call < N_CALLS; call++)
                        board->workers[i].slowest_usec[call] = 0;
}

static void print_text(const char *text) {
        (void)putchar('"');
        for (; *text; text++)
                if (*text == '"' || *text == '\\')
                        (void)printf("\\%c", *text);
                else
                        (void)putchar((unsigned char)*text < ' ' ? ' ' : *text);
        (void)putchar('"');
}

static void print_worker(unsigned place) {
        const struct worker *worker = &board->workers[place];

        (void)printf("{\"reader\":%s,\"pid\":%d,\"rounds\":%" PRId64 ",\"restarts\":%" PRId64 ",\"failure\":",
                     place < n_readers ? "true" : "false", (int)worker->pid, worker->rounds, worker->restarts);
        print_text(worker->failure);
        (void)printf(",\"refusal\":");
        print_text(worker->refusal);
        (void)printf(",\"calls\":{");
        for (unsigned call = 0; call < N_CALLS; call++)
                (void)printf("%s\"%s\":%" PRId64, call ? "," : "", call_names[call], worker->n_calls[call]);
        (void)printf("},\"slowest_ms\":{");
        for (unsigned call = 0; call < N_CALLS; call++)
                (void)printf("%s\"%s\":%.1f", call ? "," : "", call_names[call], (double)worker->slowest_usec[call] / 1000);
        (void)printf("},\"held\":[");
        for (unsigned i = 0; i < n_held; i++) {
                const struct held *held = held_of(place, i);

                (void)printf("%s{\"id\":\"%s\",\"lease\":\"%s\",\"size\":%" PRId64 ",\"allocated\":%" PRId64
                             ",\"hash\":\"%016" PRIx64 "\",\"seen\":\"%016" PRIx64 "\"}",
                             i ? "," : "", held->id, held->lease, held->size, held->allocated, held->hash, held->seen);
        }
        (void)printf("]}");
}

static void answer(void) {
        (void)printf("[");
        for (unsigned i = 0; i < n_workers; i++) {
                if (i > 0)
                        (void)putchar(',');
                (void)is_gone(i);
                print_worker(i);
        }
        (void)printf("]\n");
        if (fflush(stdout) != 0)
                err(1, "stdout");
}

/* False: it was the last. */
static bool obey(const char *command) {
        bool last = strcmp(command, "end") == 0;

        if (strcmp(command, "go") == 0)
                give(ORDER_GO);
        else if (strcmp(command, "stand") == 0 || last)
                give(ORDER_STAND);
        else if (strcmp(command, "more") == 0)
                give(ORDER_MORE);
        else if (strcmp(command, "mark") == 0)
                forget_slowest();
        else if (strcmp(command, "report") != 0)
                errx(2, "%s: no command", command);
        /* Nobody looks at a neighbour any more. */
        if (last)
                give(ORDER_END);
        answer();
        return !last;
}

static void *shared(size_t n_bytes) {
        void *memory = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

        if (memory == MAP_FAILED)
                err(1, "mmap");
        return memory;
}

static void start_workers(void) {
        board = shared(sizeof(*board) + n_workers * sizeof(board->workers[0]));
        helds = shared((size_t)n_workers * n_held * sizeof(*helds));
        for (unsigned i = 0; i < n_workers; i++) {
                struct worker *worker = &board->workers[i];
                pid_t pid;

                worker->done = UINT32_MAX;
                pid = fork();
                if (pid < 0)
                        err(1, "fork");
                if (pid == 0)
                        work(i);
                worker->pid = pid; /* the board is the child's as well */
        }
        wait_done(0);
}

int main(int argc, char **argv) {
        char *line = NULL;
        size_t n_line = 0;
        ssize_t n;

        if (argc != 5)
                errx(2, "usage: load WORKERS READERS HELD BYTES");
        n_workers = (unsigned)atoi(argv[1]);
        n_readers = (unsigned)atoi(argv[2]);
        n_held = (unsigned)atoi(argv[3]);
        least_bytes = atoll(argv[4]);
        if (n_workers < 1 || n_held < 1 || least_bytes < 8)
                errx(2, "at least one worker, one buffer and eight bytes");
        start_workers();
        answer();
        while ((n = getline(&line, &n_line, stdin)) > 0) {
                if (line[n - 1] == '\n')
                        line[n - 1] = '\0';
                if (!obey(line))
                        break;
        }
        free(line);
        return 0;
}
