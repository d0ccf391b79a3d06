/* SPDX-License-Identifier: Apache-2.0 */
/* What the broker adds to the driver's own time, in one run:
 *
 *     cost SOCKET ROUNDS SIZE...   a line for each size and operation: medians in microseconds
 *     cost idle                    a process that called cuInit() and nothing else; holds until told to stop
 *     cost calls                   medians, in microseconds, of the driver's calls that order streams
 *
 * Bare: a second process without a context makes memory and exports it, as the daemon does, and passes the descriptor over a
 * socket; this one imports and maps it, as the library does. `driver` is the time inside those calls alone, `bare` the whole of
 * it, `gpuipc` the same by Allocate or Open and a mapping. Turn and turn about, so that all meet the same GPU. */
#include <err.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cuda.h>
#include <gpuipc.h>

#include "first_gpu.h"

#define ROUNDS_MAX 400
#define HELD_BYTES ((size_t)48 << 30) /* by each side */

static char gpu[FIRST_GPU_SIZE]; /* where the bare side's memory is too */

/* Memory by hand, and both sides of a comparison. */
struct bare {
        CUdeviceptr memory;
        int fd;
};

struct pair {
        struct bare bare;
        gpuipc_buffer *ours;
};

struct sample {
        double driver[ROUNDS_MAX], bare[ROUNDS_MAX], ours[ROUNDS_MAX];
};

static double now_usec(void) {
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void check(CUresult result, const char *call) {
        const char *text = "?";

        if (result == CUDA_SUCCESS)
                return;
        cuGetErrorString(result, &text);
        errx(1, "%s: %d %s", call, (int)result, text);
}

static CUmemAllocationProp properties(void) {
        return (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 } };
}

/* ---- the other process: no context ------------------------------------------------------------------------ */

static void pass(int to, int fd, double usec) {
        char control[CMSG_SPACE(sizeof(int))] = { 0 };
        struct iovec part = { &usec, sizeof(usec) };
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);

        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
        if (sendmsg(to, &message, 0) < 0)
                err(1, "sendmsg");
}

static _Noreturn void make_memory(int talk) {
        CUmemAllocationProp prop = properties();
        size_t size;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        check(cuInit(0), "cuInit");
        while (read(talk, &size, sizeof(size)) == sizeof(size)) {
                double started = now_usec();
                CUmemGenericAllocationHandle handle;
                int fd = -1;

                check(cuMemCreate(&handle, size, &prop, 0), "cuMemCreate");
                check(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                      "cuMemExportToShareableHandle");
                check(cuMemRelease(handle), "cuMemRelease");
                pass(talk, fd, now_usec() - started);
                close(fd);
        }
        _exit(0);
}

static int ask_memory(int talk, size_t size, double *ret_usec) {
        char control[CMSG_SPACE(sizeof(int))];
        struct iovec part = { ret_usec, sizeof(*ret_usec) };
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
        int fd;

        if (write(talk, &size, sizeof(size)) != sizeof(size) || recvmsg(talk, &message, MSG_CMSG_CLOEXEC) != sizeof(*ret_usec) ||
            !CMSG_FIRSTHDR(&message))
                errx(1, "the other process is gone");
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
        return fd;
}

/* ---- by hand ---------------------------------------------------------------------------------------------- */

/* As long as it took inside the driver. */
static double map_bare(int fd, size_t size, CUdeviceptr *ret) {
        CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
                                   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        CUmemGenericAllocationHandle handle;
        double started = now_usec();

        check(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              "cuMemImportFromShareableHandle");
        check(cuMemAddressReserve(ret, size, 0, 0, 0), "cuMemAddressReserve");
        check(cuMemMap(*ret, size, 0, handle, 0), "cuMemMap");
        check(cuMemSetAccess(*ret, size, &access, 1), "cuMemSetAccess");
        check(cuMemRelease(handle), "cuMemRelease");
        return now_usec() - started;
}

static void unmap_bare(CUdeviceptr memory, size_t size) {
        check(cuMemUnmap(memory, size), "cuMemUnmap");
        check(cuMemAddressFree(memory, size), "cuMemAddressFree");
}

static struct bare allocate_bare(int talk, size_t size, double *ret_driver, double *ret_all) {
        double started = now_usec(), usec;
        struct bare bare = { .fd = ask_memory(talk, size, &usec) };

        *ret_driver = usec + map_bare(bare.fd, size, &bare.memory);
        *ret_all = now_usec() - started;
        return bare;
}

static void free_bare(struct bare bare, size_t size) {
        unmap_bare(bare.memory, size);
        close(bare.fd);
}

static void open_bare(int fd, size_t size, double *ret_driver) {
        CUdeviceptr memory;

        *ret_driver = map_bare(fd, size, &memory);
        unmap_bare(memory, size);
}

/* ---- by the broker ---------------------------------------------------------------------------------------- */

static void ok(int r, const gpuipc_error *error) {
        if (r != GPUIPC_OK)
                errx(1, "%s", error->message);
}

static gpuipc_buffer *allocate(gpuipc_client *client, size_t size) {
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_buffer *buffer;
        gpuipc_error error;

        options.handle = "cuda-fd";
        options.device = gpu;
        ok(gpuipc_allocate(client, (int64_t)size, &options, &buffer, &error), &error);
        return buffer;
}

static void release(gpuipc_buffer *buffer) {
        gpuipc_error error;

        ok(gpuipc_release(buffer, &error), &error);
}

static double map(gpuipc_buffer *buffer, double started) {
        gpuipc_error error;
        void *memory;

        ok(gpuipc_buffer_map(buffer, &memory, &error), &error);
        return now_usec() - started;
}

static gpuipc_buffer *allocate_ours(gpuipc_client *client, size_t size, double *ret_all) {
        double started = now_usec();
        gpuipc_buffer *buffer = allocate(client, size);

        *ret_all = map(buffer, started);
        return buffer;
}

static double open_ours(gpuipc_client *client, const char *id) {
        gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;
        double usec = now_usec();
        gpuipc_buffer *buffer;
        gpuipc_error error;

        ok(gpuipc_open_id(client, id, &options, &buffer, &error), &error);
        usec = map(buffer, usec);
        release(buffer);
        return usec;
}

/* ---- figures ---------------------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static double median(double *values, int n) {
        qsort(values, (size_t)n, sizeof(*values), by_size);
        return values[n / 2];
}

static void tell(const char *what, size_t size, struct sample *sample, int n) {
        double driver = median(sample->driver, n), bare = median(sample->bare, n), ours = median(sample->ours, n);

        printf("%s %zu %d %.1f %.1f %.1f %.1f\n", what, size, n, driver, bare, ours, ours - driver);
        fflush(stdout);
}

/* The driver clears what is freed in its own time, and lets who allocates wait for it. */
static void let_settle(void) {
        struct timespec t = { 0, 500000000 };

        nanosleep(&t, NULL);
}

static void allocate_both(gpuipc_client *client, int talk, size_t size, struct sample *sample, int at, struct pair *pair) {
        for (int turn = 0; turn < 2; turn++)
                if ((turn + at) % 2 == 0)
                        pair->bare = allocate_bare(talk, size, &sample->driver[at], &sample->bare[at]);
                else
                        pair->ours = allocate_ours(client, size, &sample->ours[at]);
}

static void free_both(struct pair *pair, size_t size) {
        free_bare(pair->bare, size);
        release(pair->ours);
}

/* All held until the end, so that nobody waits for memory to be cleared; fewer when they are large. */
static void measure_allocate(gpuipc_client *client, int talk, size_t size, int rounds) {
        static struct sample sample;
        static struct pair pairs[ROUNDS_MAX];

        if (rounds > (int)(HELD_BYTES / size))
                rounds = (int)(HELD_BYTES / size);
        for (int i = 0; i < rounds; i++)
                allocate_both(client, talk, size, &sample, i, &pairs[i]);
        for (int i = 0; i < rounds; i++)
                free_both(&pairs[i], size);
        tell("allocate", size, &sample, rounds);
        let_settle();
}

/* Each given back before the next is made. */
static void measure_again(gpuipc_client *client, int talk, size_t size, int rounds) {
        static struct sample sample;
        struct pair pair;

        for (int i = 0; i < rounds; i++) {
                pair.bare = allocate_bare(talk, size, &sample.driver[i], &sample.bare[i]);
                free_bare(pair.bare, size);
                pair.ours = allocate_ours(client, size, &sample.ours[i]);
                release(pair.ours);
        }
        tell("again", size, &sample, rounds);
        let_settle();
}

static void measure_open(gpuipc_client *client, int talk, size_t size, int rounds) {
        static struct sample sample;
        gpuipc_buffer *buffer = allocate(client, size);
        double usec;
        int fd = ask_memory(talk, size, &usec);

        for (int i = 0; i < rounds; i++) {
                open_bare(fd, size, &sample.driver[i]);
                sample.bare[i] = sample.driver[i];
                sample.ours[i] = open_ours(client, gpuipc_buffer_id(buffer));
        }
        tell("open", size, &sample, rounds);
        close(fd);
        release(buffer);
}

static void measure(gpuipc_client *client, int talk, size_t size, int rounds) {
        struct sample first;
        struct pair pair;

        allocate_both(client, talk, size, &first, 0, &pair); /* counts for nothing */
        free_both(&pair, size);
        let_settle();
        measure_allocate(client, talk, size, rounds);
        measure_again(client, talk, size, rounds);
        measure_open(client, talk, size, rounds);
}

static int hold_idle(void) {
        check(cuInit(0), "cuInit");
        printf("ok\n");
        fflush(stdout);
        while (getchar() != EOF)
                continue;
        return 0;
}

/* ---- calls that order streams ----------------------------------------------------------------------------- */

#define CALLS_ROUNDS 2000
#define CALLS_SETTLE 32 /* rounds, so that the stream never holds up its caller */
enum { CALL_WRITE, CALL_WAIT, CALL_BOTH, CALL_CONTEXTS, CALL_DEVICE, N_CALLS };

static void write_and_wait(CUstream stream, CUdeviceptr at, uint64_t value) {
        CUstreamBatchMemOpParams both[2] = { 0 };

        both[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
        both[0].writeValue.address = at;
        both[0].writeValue.value64 = value;
        both[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
        both[1].waitValue.address = at;
        both[1].waitValue.value64 = value;
        both[1].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
        check(cuStreamBatchMemOp(stream, 2, both, 0), "cuStreamBatchMemOp");
}

static void time_calls(CUstream stream, CUdeviceptr at, uint64_t value, double ret_usec[N_CALLS]) {
        double t[N_CALLS + 1];
        CUcontext context;
        CUdevice device;

        t[CALL_WRITE] = now_usec();
        check(cuStreamWriteValue64(stream, at, value, 0), "cuStreamWriteValue64");
        t[CALL_WAIT] = now_usec();
        check(cuStreamWaitValue64(stream, at, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue64");
        t[CALL_BOTH] = now_usec();
        write_and_wait(stream, at, value);
        t[CALL_CONTEXTS] = now_usec();
        check(cuStreamGetCtx(stream, &context), "cuStreamGetCtx");
        check(cuCtxGetCurrent(&context), "cuCtxGetCurrent");
        t[CALL_DEVICE] = now_usec();
        check(cuCtxGetDevice(&device), "cuCtxGetDevice");
        t[N_CALLS] = now_usec();
        for (int i = 0; i < N_CALLS; i++)
                ret_usec[i] = t[i + 1] - t[i];
}

static int measure_calls(void) {
        static double times[N_CALLS][CALLS_ROUNDS];
        CUcontext context;
        CUstream stream;
        CUdeviceptr at;

        check(cuInit(0), "cuInit");
        check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        check(cuMemAlloc(&at, 4096), "cuMemAlloc");
        for (int i = 0; i < CALLS_ROUNDS; i++) {
                double usec[N_CALLS];

                time_calls(stream, at, (uint64_t)i + 1, usec);
                for (int what = 0; what < N_CALLS; what++)
                        times[what][i] = usec[what];
                if (i % CALLS_SETTLE == 0)
                        check(cuStreamSynchronize(stream), "cuStreamSynchronize");
        }
        for (int what = 0; what < N_CALLS; what++)
                printf("%.2f%s", median(times[what], CALLS_ROUNDS), what + 1 < N_CALLS ? " " : "\n");
        return 0;
}

int main(int argc, char **argv) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        int talk[2], rounds = argc > 2 ? atoi(argv[2]) : 0;
        gpuipc_client *client;
        gpuipc_error error;
        CUcontext context;
        pid_t pid;

        if (argc == 2 && strcmp(argv[1], "idle") == 0)
                return hold_idle();
        if (argc == 2 && strcmp(argv[1], "calls") == 0)
                return measure_calls();
        if (argc < 4 || rounds < 1 || rounds > ROUNDS_MAX)
                errx(2, "usage: cost SOCKET ROUNDS SIZE... | cost idle | cost calls");
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk) < 0 || (pid = fork()) < 0)
                err(1, NULL);
        if (pid == 0) {
                close(talk[0]);
                make_memory(talk[1]);
        }
        close(talk[1]);
        check(cuInit(0), "cuInit");
        check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        options.socket_path = argv[1];
        ok(gpuipc_connect(&options, &client, &error), &error);
        ok(first_gpu(client, gpu, &error), &error);
        for (int i = 3; i < argc; i++)
                measure(client, talk[0], (size_t)strtoull(argv[i], NULL, 10), rounds);
        return 0;
}
