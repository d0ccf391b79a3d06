/* SPDX-License-Identifier: Apache-2.0 */
/* libgpuipc: memory shared between processes, by lease from gpuipcd.
 *
 *     gpuipc_client *client;
 *     gpuipc_buffer *buffer;
 *     void *pointer;
 *     gpuipc_error error;
 *
 *     if (gpuipc_connect(NULL, &client, &error) != 0 ||
 *         gpuipc_allocate(client, 1 << 20, NULL, &buffer, &error) != 0 ||
 *         gpuipc_buffer_map(buffer, &pointer, &error) != 0)
 *             errx(1, "%s", error.message);
 *
 * Every function that can fail returns 0 (GPUIPC_OK) or a positive gpuipc_status, and fills `*ret_error` when the caller
 * gives one (NULL is allowed everywhere). Outputs are written only on success. Sizes are bytes, durations milliseconds.
 * Strings handed in are copied; strings handed out are borrowed and live as long as the object they came from.
 *
 * A client object may be used from several threads at once; a buffer object from one thread at a time. Calls that wait
 * (wait_ms) and watches do not hold up other calls. After fork() the child must not use the parent's objects: every
 * call answers GPUIPC_ERROR_FORKED and touches nothing; connect anew. All descriptors are close-on-exec. */
#ifndef GPUIPC_H
#define GPUIPC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GPUIPC_PUBLIC __attribute__((visibility("default")))
#else
#define GPUIPC_PUBLIC
#endif

#define GPUIPC_VERSION "0.1.0"
#define GPUIPC_DEFAULT_SOCKET "/run/gpuipcd/gpuipcd.sock"
#define GPUIPC_DEFAULT_ADMIN_SOCKET "/run/gpuipcd-admin/admin.sock"

/* The version of the library at run time, "0.1.0". */
GPUIPC_PUBLIC const char *gpuipc_version(void);

/* ---- errors ----------------------------------------------------------------------------------------------- */

typedef enum gpuipc_status {
        GPUIPC_OK = 0,
        /* The daemon's own words: io.gpuipc.Broker errors. */
        GPUIPC_ERROR_NO_SUCH_BUFFER = 1,
        GPUIPC_ERROR_NO_SUCH_LEASE = 2,
        GPUIPC_ERROR_NO_SUCH_SESSION = 3,
        GPUIPC_ERROR_NO_SUCH_DEVICE = 4,
        GPUIPC_ERROR_NAME_TAKEN = 5,
        GPUIPC_ERROR_ACCESS_DENIED = 6,
        GPUIPC_ERROR_QUOTA_EXCEEDED = 7,
        GPUIPC_ERROR_OUT_OF_MEMORY = 8, /* of a device; error.free_bytes and error.asked say how much */
        GPUIPC_ERROR_HANDLE_UNSUPPORTED = 9,
        GPUIPC_ERROR_ALREADY_SEALED = 10,
        GPUIPC_ERROR_TIMED_OUT = 11,
        GPUIPC_ERROR_DEVICE_DEGRADED = 12,
        GPUIPC_ERROR_TOO_MANY_REQUESTS = 13,
        GPUIPC_ERROR_EVENTS_LOST = 14,
        GPUIPC_ERROR_INTERNAL = 15, /* a fault of the daemon's; error.subject finds it in its log */
        GPUIPC_ERROR_INVALID_PARAMETER = 16, /* error.subject names it */
        GPUIPC_ERROR_UNSUPPORTED = 17,       /* the daemon does not know this method, interface or way of calling */
        /* The library's own. */
        GPUIPC_ERROR_UNREACHABLE = 32,  /* no daemon answers at the socket; error.system_errno says why */
        GPUIPC_ERROR_DISCONNECTED = 33, /* the connection ended, and the call could not be made again */
        GPUIPC_ERROR_PROTOCOL = 34,     /* the peer's answer makes no sense */
        GPUIPC_ERROR_FORKED = 35,       /* made before fork(), used in the child: connect anew. Or CUDA was */
        GPUIPC_ERROR_MAP = 36,          /* the handle could not be mapped; error.system_errno or the text says why */
        GPUIPC_ERROR_NO_MEMORY = 37,    /* this process is out of memory */
        GPUIPC_ERROR_CLOSED = 38,       /* a watch was ended, by gpuipc_watch_stop() or by the daemon */
        GPUIPC_ERROR_LEASE_LOST = 39,   /* the lease ended with its connection and could not be taken up again */
        GPUIPC_ERROR_CORRUPT = 40,      /* a channel's control page was written over by a process that shares it ("G701") */
} gpuipc_status;

typedef struct gpuipc_error {
        gpuipc_status status;
        int system_errno;     /* 0 when no system call is to blame */
        const char *name;     /* static: "io.gpuipc.Broker.NameTaken" or "gpuipc.Unreachable" */
        char subject[132];    /* the parameter, device, name, limit or reference it is about; may be "" */
        char message[512];    /* one or two sentences: cause and, where there is one, remedy */
        int64_t limit, used, asked, free_bytes, oldest; /* −1 where the error carries no such figure */
        const char *code; /* static: "G101", as in the text's end, gpuipcctl(1) and `gpuipcctl doctor`; NULL: it has none */
} gpuipc_error;

/* "GPUIPC_ERROR_NAME_TAKEN" and so on; never NULL. */
GPUIPC_PUBLIC const char *gpuipc_status_name(gpuipc_status status);

/* ---- client ----------------------------------------------------------------------------------------------- */

typedef struct gpuipc_client gpuipc_client;
typedef struct gpuipc_buffer gpuipc_buffer;
typedef struct gpuipc_watch gpuipc_watch;
typedef struct gpuipc_fence gpuipc_fence;
typedef struct gpuipc_channel gpuipc_channel;

typedef struct gpuipc_connect_options {
        size_t struct_size;      /* sizeof(gpuipc_connect_options) */
        const char *socket_path; /* NULL: $GPUIPC_SOCKET, else GPUIPC_DEFAULT_SOCKET */
        int timeout_ms;          /* for each call, beyond its own wait_ms, and for each reply of a list; 0: 30 seconds;
                                  * −1: none. A lease that comes after its time is given back by the library */
        int restart_ms;          /* how long the daemon may be away before its leases are given up; 0: 30 seconds; −1: any end
                                  * of a connection ends its leases, and no call is made a second time */
        int no_thread;           /* non-zero: the library starts no thread; see gpuipc_client_fd() */
} gpuipc_connect_options;
#define GPUIPC_CONNECT_OPTIONS_INIT { sizeof(gpuipc_connect_options), NULL, 0, 0, 0 }

/* Connects. The caller owns *ret_client. */
GPUIPC_PUBLIC int gpuipc_connect(const gpuipc_connect_options *options, gpuipc_client **ret_client, gpuipc_error *ret_error);

/* Closes every connection of the client and stops its watches; no other thread may be using it. Buffers not released
 * before are lost to it (their leases end; the memory stays mapped until gpuipc_release(), which may still be called, or
 * the process exits, and until then its bytes count as draining). Watches are still to be freed. NULL is allowed. In a
 * forked child it frees the child's own copy and says nothing to the daemon; so does gpuipc_release(). */
GPUIPC_PUBLIC void gpuipc_client_free(gpuipc_client *client);

/* The path of the socket this client speaks to. */
GPUIPC_PUBLIC const char *gpuipc_client_socket(const gpuipc_client *client);

/* ---- when the daemon is restarted -------------------------------------------------------------------------
 *
 * Mappings, pointers and descriptors do not depend on the daemon: they stay valid while it is away. A call made meanwhile,
 * or caught in the midst of it, only takes longer: the library connects anew (at once, then after growing pauses, for
 * restart_ms), takes up its session where the daemon has a store that kept it, and makes the call again; waits go on with
 * the time that is left of them, watches with the next event. Within the client's timeout_ms: a call that is out of time
 * returns GPUIPC_ERROR_TIMED_OUT or GPUIPC_ERROR_UNREACHABLE, and the leases stand nevertheless until restart_ms is over.
 * After that each call tries once. What the socket refuses by its mode (EACCES) is not tried again.
 *
 * So that a program which makes no call keeps its leases too, a client with leases on such a daemon has one thread of the
 * library's, all signals blocked, asleep until a connection ends. With no_thread there is none: poll gpuipc_client_fd() and
 * call gpuipc_client_dispatch(). gpuipc_client_free() ends the thread; a forked child never had it, and never takes up its
 * parent's sessions.
 *
 * A lease is lost when the daemon has no store (as without systemd), no longer knows the session, or does not come back in
 * time; cuda-ipc buffers end with the daemon. gpuipc_buffer_check() tells, and gpuipc_release(). Until then what is mapped
 * stays mapped, and host memory and cuda-fd memory keep their bytes; but the daemon no longer answers for them: it does not
 * list them, others cannot open them, and their limits are not charged. Memory behind a cuda-ipc handle ended with the
 * daemon: do not touch it any more. */

/* How many connections ended, other than by this program's doing, and were made anew. When it has grown, a lease may have
 * been lost. */
GPUIPC_PUBLIC int64_t gpuipc_client_restarts(const gpuipc_client *client);

/* With the option no_thread: a descriptor that is readable (POLLIN) while gpuipc_client_dispatch() has something to do.
 * Borrowed; only to be polled. Without it: −1. */
GPUIPC_PUBLIC int gpuipc_client_fd(const gpuipc_client *client);

/* Sees to connections that ended. Never waits for the daemon; comes back to it when the descriptor is readable again. */
GPUIPC_PUBLIC int gpuipc_client_dispatch(gpuipc_client *client, gpuipc_error *ret_error);

/* ---- buffers ---------------------------------------------------------------------------------------------- */

typedef enum gpuipc_access {
        GPUIPC_RW = 0,
        GPUIPC_RO = 1, /* mapped read-only. This guards against mistakes; on a GPU a hostile holder can map it anew */
} gpuipc_access;

typedef struct gpuipc_allocate_options {
        size_t struct_size;
        const char *device; /* UUID or "host"; NULL: the daemon's default */
        const char *name;   /* [A-Za-z0-9._/-]{1,128}; NULL: none */
        const char *handle; /* "auto", "memfd", "cuda-fd", "cuda-ipc"; NULL: "auto" */
        const char *mode;   /* "0640": r opens ro, w opens rw; NULL: "0600" */
        const char *meta;   /* JSON object of at most 4 KiB, opaque to the daemon; NULL: none */
        int64_t keep_ms;    /* keep once, from the end of the last lease; 0: not */
        int64_t wait_ms;    /* wait for quota or memory; 0: not */
        const char *label;  /* shown in lists; NULL: none */
} gpuipc_allocate_options;
#define GPUIPC_ALLOCATE_OPTIONS_INIT { sizeof(gpuipc_allocate_options), NULL, NULL, NULL, NULL, NULL, 0, 0, NULL }

typedef struct gpuipc_open_options {
        size_t struct_size;
        gpuipc_access access;
        int64_t owner;     /* by name: whose buffer is wanted, a uid; −1: the caller's own or root's; −2: anyone's, which
                            * trusts every user of the daemon not to take the name first */
        int64_t wait_ms;   /* by name: wait for it; 0: not */
        const char *label; /* NULL: none */
} gpuipc_open_options;
#define GPUIPC_OPEN_OPTIONS_INIT { sizeof(gpuipc_open_options), GPUIPC_RW, -1, 0, NULL }

/* Makes a buffer of `size` bytes, zero at first sight, and a rw lease on it. The caller owns *ret_buffer. */
GPUIPC_PUBLIC int gpuipc_allocate(gpuipc_client *client, int64_t size, const gpuipc_allocate_options *options,
                                  gpuipc_buffer **ret_buffer, gpuipc_error *ret_error);

/* A lease on an existing buffer, by name or by id. The caller owns *ret_buffer.
 *
 * By name with owner −1 the caller's own buffer is asked for, then root's; if neither is there and wait_ms is given, both
 * are waited for at once and the first to come is taken. The caller's own uid is the effective one at gpuipc_connect(), as
 * seen from outside the caller's user namespace. Whatever waits is asked for without waiting first. */
GPUIPC_PUBLIC int gpuipc_open_name(gpuipc_client *client, const char *name, const gpuipc_open_options *options,
                                   gpuipc_buffer **ret_buffer, gpuipc_error *ret_error);
GPUIPC_PUBLIC int gpuipc_open_id(gpuipc_client *client, const char *id, const gpuipc_open_options *options,
                                 gpuipc_buffer **ret_buffer, gpuipc_error *ret_error);

/* Maps the buffer and gives its first byte: a host pointer, or a device pointer for memory on a GPU. All gpuipc_buffer
 * objects of one buffer with one access share a mapping within the process; a further call gives the same pointer. Unmapped
 * by gpuipc_release().
 *
 * Memory on a GPU is mapped for one GPU: that of the calling thread's current context; without one, that which holds the
 * memory, or the process's first when that one is hidden by CUDA_VISIBLE_DEVICES. gpuipc_buffer_is_peer() tells when this is
 * not the one that holds the memory, and GPUIPC_ERROR_HANDLE_UNSUPPORTED names both when the one cannot reach the other.
 * Objects mapped for different GPUs do not share a mapping. The current context is as before afterwards; when there is none,
 * the GPU's primary context is held until the mapping ends. Let work that uses the memory finish before gpuipc_release(). */
GPUIPC_PUBLIC int gpuipc_buffer_map(gpuipc_buffer *buffer, void **ret_pointer, gpuipc_error *ret_error);

/* Copies `n` bytes between this process's memory and the buffer, from its byte `offset` on, whatever the buffer lies on; maps
 * it first if it was not. Done when it returns: a lease opened afterwards, in any process, sees the bytes. Memory on a GPU goes
 * through the device's primary context unless a context of that GPU is current, in the legacy default stream, so neither may
 * be called while that stream is captured. Memory that other processes write meanwhile is copied as it is met.
 * GPUIPC_ERROR_INVALID_PARAMETER where the range is not inside gpuipc_buffer_size(), or to write was not asked for at opening;
 * GPUIPC_ERROR_MAP with the driver's own words. */
GPUIPC_PUBLIC int gpuipc_buffer_read(gpuipc_buffer *buffer, int64_t offset, void *to, size_t n, gpuipc_error *ret_error);
GPUIPC_PUBLIC int gpuipc_buffer_write(gpuipc_buffer *buffer, int64_t offset, const void *from, size_t n,
                                      gpuipc_error *ret_error);

/* Unmaps (when no other object of this process uses the mapping), closes the handle and ends the lease. The object is
 * gone whatever is returned; the status tells whether the daemon confirmed: GPUIPC_ERROR_LEASE_LOST when the lease had been
 * lost before, GPUIPC_ERROR_DISCONNECTED when the client had been freed, GPUIPC_ERROR_TIMED_OUT or
 * GPUIPC_ERROR_UNREACHABLE when it will end as soon as the daemon answers again. NULL is allowed. */
GPUIPC_PUBLIC int gpuipc_release(gpuipc_buffer *buffer, gpuipc_error *ret_error);

/* GPUIPC_OK while the lease stands as far as the library knows (it does not ask the daemon, and a lease whose daemon is away
 * stands until it is lost); else GPUIPC_ERROR_LEASE_LOST, and error.message says by what. A buffer object that lost its lease
 * remains usable for what does not need the daemon, and is still to be released. */
GPUIPC_PUBLIC int gpuipc_buffer_check(gpuipc_buffer *buffer, gpuipc_error *ret_error);

/* Facts of a buffer as they were when the lease was made. */
GPUIPC_PUBLIC const char *gpuipc_buffer_id(const gpuipc_buffer *buffer);
GPUIPC_PUBLIC const char *gpuipc_buffer_name(const gpuipc_buffer *buffer);   /* NULL when it has none */
GPUIPC_PUBLIC const char *gpuipc_buffer_lease(const gpuipc_buffer *buffer);  /* the lease's id */
GPUIPC_PUBLIC const char *gpuipc_buffer_device(const gpuipc_buffer *buffer); /* UUID or "host" */
GPUIPC_PUBLIC const char *gpuipc_buffer_handle(const gpuipc_buffer *buffer); /* "memfd", "cuda-fd", "cuda-ipc" */
GPUIPC_PUBLIC const char *gpuipc_buffer_meta(const gpuipc_buffer *buffer);   /* JSON text; NULL when it has none */
GPUIPC_PUBLIC int64_t gpuipc_buffer_size(const gpuipc_buffer *buffer);       /* bytes asked for */
GPUIPC_PUBLIC int64_t gpuipc_buffer_allocated(const gpuipc_buffer *buffer);  /* bytes it takes */
GPUIPC_PUBLIC int64_t gpuipc_buffer_offset(const gpuipc_buffer *buffer);     /* where it starts in its handle */
GPUIPC_PUBLIC gpuipc_access gpuipc_buffer_access(const gpuipc_buffer *buffer);

/* The handle's descriptor, borrowed: valid until gpuipc_release(). −1 when the handle has none. */
GPUIPC_PUBLIC int gpuipc_buffer_fd(const gpuipc_buffer *buffer);

#define GPUIPC_IPC_HANDLE_SIZE 64

/* The 64 bytes of a cudaIpcMemHandle_t, for a program that knows nothing else; the buffer begins gpuipc_buffer_offset() bytes into what it
 * opens. What it is given to is outside the books: keep the lease for as long as that has it open. GPUIPC_ERROR_HANDLE_UNSUPPORTED: the
 * handle is of another kind than "cuda-ipc". */
GPUIPC_PUBLIC int gpuipc_buffer_ipc_handle(const gpuipc_buffer *buffer, void *ret_handle, gpuipc_error *ret_error);

/* 1 when the mapping reaches the memory over peer access from another GPU (correct, slower), else 0. */
GPUIPC_PUBLIC int gpuipc_buffer_is_peer(const gpuipc_buffer *buffer);

/* The ordinal, in this process, of the GPU that the buffer is mapped for. −1: not mapped yet, or host memory. */
GPUIPC_PUBLIC int gpuipc_buffer_cuda_device(const gpuipc_buffer *buffer);

/* Refuses further rw leases; the owner only. */
GPUIPC_PUBLIC int gpuipc_seal(gpuipc_client *client, const char *id, gpuipc_error *ret_error);

/* Takes the name away, ends any keep, refuses new opens; exactly one of id and name, the other NULL. The owner only. */
GPUIPC_PUBLIC int gpuipc_free(gpuipc_client *client, const char *id, const char *name, gpuipc_error *ret_error);

/* Closes another session of the caller's own uid (an administrator: any). */
GPUIPC_PUBLIC int gpuipc_kick(gpuipc_client *client, const char *session, gpuipc_error *ret_error);

/* ---- pools ------------------------------------------------------------------------------------------------ */

/* A pool is an allocator of a framework's, whose every block is a buffer of its own: two plain C functions of the form that PyTorch's
 * CUDAPluggableAllocator and torch.cuda.MemPool take, and a way from any address to the buffer that it lies in. Such a framework cuts its
 * blocks into pieces and gives freed pieces out anew: who opens the buffer sees all of them, and whatever is written there later.
 *
 * Memory on a GPU is mapped for the GPU that was asked for, whichever is current. Both functions may be called from any thread. */

typedef struct gpuipc_pool gpuipc_pool;

typedef struct gpuipc_pool_options {
        size_t struct_size;
        const char *handle; /* as of gpuipc_allocate_options; so are the rest */
        const char *mode;
        int64_t keep_ms;    /* of blocks that this process leaves behind; one that it frees is not kept */
        int64_t wait_ms;
        const char *label;
} gpuipc_pool_options;
#define GPUIPC_POOL_OPTIONS_INIT { sizeof(gpuipc_pool_options), NULL, NULL, 0, 0, NULL }

#define GPUIPC_POOLS 32

/* The caller owns *ret_pool. GPUIPC_ERROR_QUOTA_EXCEEDED: this process has GPUIPC_POOLS. */
GPUIPC_PUBLIC int gpuipc_pool_new(gpuipc_client *client, const gpuipc_pool_options *options, gpuipc_pool **ret_pool,
                                  gpuipc_error *ret_error);

/* It gives out no more. Blocks that are out stay, and the client with them, until each is freed by its function. NULL is allowed. */
GPUIPC_PUBLIC void gpuipc_pool_free(gpuipc_pool *pool);

/* `device` is the GPU's ordinal in this process, or -1 for host memory; `stream` is not looked at. NULL: gpuipc_pool_failures() says why.
 * The function serves its pool alone, and after gpuipc_pool_free() nobody until another pool is given the same. */
typedef void *(*gpuipc_pool_alloc_fn)(int64_t size, int device, void *stream);
GPUIPC_PUBLIC gpuipc_pool_alloc_fn gpuipc_pool_alloc_function(const gpuipc_pool *pool);

/* Waits for the GPU's work, as cudaFree() does, unmaps, and ends the lease: other holders keep the memory. Takes any pool's blocks; an
 * address that is none of theirs, and NULL, are left alone. `size`, `device` and `stream` are not looked at. */
typedef void (*gpuipc_pool_free_fn)(void *pointer, int64_t size, int device, void *stream);
GPUIPC_PUBLIC gpuipc_pool_free_fn gpuipc_pool_free_function(const gpuipc_pool *pool);

/* How many allocations failed, and what the last one's error was: left alone when there was none. */
GPUIPC_PUBLIC int64_t gpuipc_pool_failures(const gpuipc_pool *pool, gpuipc_error *ret_error);

/* Bytes of the blocks that are out. */
GPUIPC_PUBLIC int64_t gpuipc_pool_bytes(const gpuipc_pool *pool);

/* A copy: the block may be freed by another thread meanwhile. */
typedef struct gpuipc_pool_block {
        size_t struct_size;  /* sizeof(gpuipc_pool_block), set by the caller */
        void *pointer;       /* its first byte, and the buffer's */
        int64_t size;        /* as it was asked for */
        int32_t cuda_device; /* the ordinal; -1: host memory */
        char buffer[68];     /* the buffer's id */
} gpuipc_pool_block;
#define GPUIPC_POOL_BLOCK_INIT { sizeof(gpuipc_pool_block), NULL, 0, -1, { 0 } }

/* The block of any of this process's pools that the address lies in. GPUIPC_ERROR_NO_SUCH_BUFFER: none. */
GPUIPC_PUBLIC int gpuipc_pool_find(const void *pointer, gpuipc_pool_block *block, gpuipc_error *ret_error);

/* ---- fences ----------------------------------------------------------------------------------------------- */

/* A fence is a 64-bit word of a buffer, at a multiple of 8 bytes, that only grows: who has done something writes the next value, who
 * needs it waits until the word has come so far. New buffers read zero, and so do their fences. Processes that make a fence of the same
 * word share it; one buffer holds as many as fit. Values are compared as on a circle: reached means (int64_t)(word - value) >= 0, so the
 * two may be up to 2^63 - 1 apart.
 *
 * A fence may be used from several threads at once. It keeps the buffer mapped beyond gpuipc_release(), not the lease. Memory on a GPU
 * is reached in the context that was current when the fence was made, if that is of the GPU that the buffer is mapped for, else in that
 * GPU's primary context, which is then held: free the fence before that context ends. */

/* Maps the buffer if it was not. The caller owns *ret_fence. GPUIPC_ERROR_INVALID_PARAMETER: the offset is not inside the buffer or not
 * a multiple of 8. */
GPUIPC_PUBLIC int gpuipc_fence_new(gpuipc_buffer *buffer, int64_t offset, gpuipc_fence **ret_fence, gpuipc_error *ret_error);

/* Nothing that was enqueued may use it any more; with a context's last fence the library's own stream there goes too, for which the
 * driver may wait until the GPU is idle. NULL is allowed; so is a forked child. */
GPUIPC_PUBLIC void gpuipc_fence_free(gpuipc_fence *fence);

/* 1 when streams cannot wait for the word by themselves: it lies in host memory, the GPU has no 64-bit stream memory operations ("G031"
 * of gpuipcctl doctor), or the driver is older than 515. The two calls with a stream then wait on the processor. Else 0. */
GPUIPC_PUBLIC int gpuipc_fence_is_synchronous(const gpuipc_fence *fence);

/* `stream` is a CUstream or cudaStream_t: one of a context of the GPU that the buffer is mapped for, which need not be current; or 0
 * (also (void *)1 and (void *)2, as CUDA has it) for a default stream of the current context, without one of the fence's. For a fence in
 * host memory 0 is no stream at all. */

/* The stream writes the value once all that was given to it before is done and visible to the whole system (cuStreamWriteValue64,
 * CU_STREAM_WRITE_VALUE_DEFAULT: its memory barrier is wanted). The call does not wait. Of a synchronous fence: waits for the stream, then
 * writes. */
GPUIPC_PUBLIC int gpuipc_fence_signal_stream(gpuipc_fence *fence, void *stream, uint64_t value, gpuipc_error *ret_error);

/* What is given to the stream afterwards is done once the word has reached the value (cuStreamWaitValue64, CU_STREAM_WAIT_VALUE_GEQ, and
 * CU_STREAM_WAIT_VALUE_FLUSH where the GPU has it, for what other devices wrote). The call does not wait, timeout_ms is not looked at,
 * and the stream waits without end: gpuipc_fence_signal() frees it. Of a synchronous fence: waits as gpuipc_fence_wait() does, before
 * anything is given to the stream.
 *
 * CUDA does not know of this order. Within one process give a stream its signal before another stream the wait for it, or have no more
 * streams than CUDA_DEVICE_MAX_CONNECTIONS, since two streams may share a hardware queue in which the wait stands before the signal. A
 * default stream that waits holds up the blocking streams of its context, and every call that synchronises. */
GPUIPC_PUBLIC int gpuipc_fence_wait_stream(gpuipc_fence *fence, void *stream, uint64_t value, int timeout_ms, gpuipc_error *ret_error);

/* Writes the value from the processor, done when it returns, whatever other streams of this process wait for: on a GPU by a stream of
 * the library's own, non-blocking, of the highest priority, one a context. What this thread wrote to host memory before, and by
 * gpuipc_buffer_write(), is seen by who sees the value; it says nothing of streams. */
GPUIPC_PUBLIC int gpuipc_fence_signal(gpuipc_fence *fence, uint64_t value, gpuipc_error *ret_error);

/* The word as it is now. On a GPU this is a copy of eight bytes through that same stream, and its synchronisation. */
GPUIPC_PUBLIC int gpuipc_fence_query(gpuipc_fence *fence, uint64_t *ret_value, gpuipc_error *ret_error);

/* Waits on the processor until the word has reached the value, at most timeout_ms (−1: without end; 0: one look), then
 * GPUIPC_ERROR_TIMED_OUT. In host memory by futex; a plain store of somebody's, which wakes nobody, is seen within 20 ms. On a GPU by
 * gpuipc_fence_query() again and again, after the first few with pauses that grow to a millisecond. */
GPUIPC_PUBLIC int gpuipc_fence_wait(gpuipc_fence *fence, uint64_t value, int timeout_ms, gpuipc_error *ret_error);

/* ---- channels --------------------------------------------------------------------------------------------- */

/* A channel is a ring of slots in one buffer for a steady flow of items between processes; gpuipc-channel(7) tells how. Its members are
 * producers and consumers, 64 at most. A producer begins an item, which gives it a slot, has it written, and publishes it; a consumer
 * takes an item, has it read, and releases it. Once attached neither calls the daemon, and none of the four makes a system call while the
 * other side keeps up.
 *
 * On a GPU the four order streams, not the processor: begin and take have the stream wait until the slot is free, or the item written;
 * publish and release note in the stream that it is written, or read. Nobody waits for the stream but where
 * gpuipc_channel_is_synchronous() says so. `stream` is as for fences: in host memory 0 is no stream at all, and one that is given is
 * waited for. Several streams of one member are put into the order of its calls: what one publishes or releases counts once what was
 * published or released before it does. Keep streams until the channel is freed.
 *
 * When a process dies, its items that were not whole are broken, what it was reading comes back, and no stream goes on waiting for it, all
 * at once when the process has ended, also while the daemon is down. A driver may take more than a tenth of a second to end a process that
 * was killed; with a daemon that is there its unfinished items are known to be broken before that, as a rule within a tenth of a second
 * (gpuipc_item_is_broken(), gpuipc-channel(7)). For this each channel has a thread of the library's, all signals blocked, and one more from
 * gpuipc_channel_fd() on; so a client with the option no_thread has no channels.
 *
 * A channel object may be used from several threads at once, but not while it is freed; a consumer of a broadcast holds one item at a
 * time. On a GPU the memory is mapped for the GPU of the calling thread's context when the channel is made, as by gpuipc_buffer_map(). */

typedef enum gpuipc_channel_kind {
        GPUIPC_CHANNEL_QUEUE = 0,     /* each item to one consumer */
        GPUIPC_CHANNEL_BROADCAST = 1, /* each item to every consumer that was attached when the item was begun */
} gpuipc_channel_kind;

typedef enum gpuipc_channel_policy {
        GPUIPC_CHANNEL_BLOCK = 0,       /* a full channel lets producers wait */
        GPUIPC_CHANNEL_DROP_OLDEST = 1, /* a full channel gives up its oldest item that nobody has in hand */
} gpuipc_channel_policy;

typedef enum gpuipc_channel_role { GPUIPC_CHANNEL_PRODUCER = 0, GPUIPC_CHANNEL_CONSUMER = 1 } gpuipc_channel_role;

typedef struct gpuipc_channel_create_options {
        size_t struct_size;
        const char *name; /* as of a buffer; NULL: none */
        gpuipc_channel_kind kind;
        gpuipc_channel_policy policy;
        int64_t slots;      /* 1 to 65536; how many items there are at once */
        int64_t slot_bytes; /* the largest item */
        int64_t meta_bytes; /* the most metadata of an item, 0 to GPUIPC_ITEM_META_MAX */
        const char *device; /* UUID or "host"; NULL: the daemon's default. On a GPU the memory is of the kind cuda-fd */
        const char *mode;   /* r lets attach consumers, w producers; NULL: "0600" */
        int64_t keep_ms;    /* as of a buffer */
        int64_t wait_ms;    /* wait for quota or memory; 0: not */
        const char *label;  /* shown in lists; NULL: none */
        gpuipc_channel_role role; /* the caller's own */
} gpuipc_channel_create_options;
#define GPUIPC_CHANNEL_CREATE_OPTIONS_INIT                                                                                                 \
        { sizeof(gpuipc_channel_create_options), NULL, GPUIPC_CHANNEL_QUEUE, GPUIPC_CHANNEL_BLOCK, 0, 0, 0, NULL, NULL, 0, 0, NULL,        \
          GPUIPC_CHANNEL_PRODUCER }

typedef struct gpuipc_channel_attach_options {
        size_t struct_size;
        gpuipc_channel_role role;
        int64_t owner;     /* as of gpuipc_open_options */
        int64_t wait_ms;   /* wait for the name; 0: not */
        const char *label; /* NULL: none */
} gpuipc_channel_attach_options;
#define GPUIPC_CHANNEL_ATTACH_OPTIONS_INIT { sizeof(gpuipc_channel_attach_options), GPUIPC_CHANNEL_CONSUMER, -1, 0, NULL }

/* Makes a channel and its first member. The caller owns *ret_channel. */
GPUIPC_PUBLIC int gpuipc_channel_create(gpuipc_client *client, const gpuipc_channel_create_options *options,
                                        gpuipc_channel **ret_channel, gpuipc_error *ret_error);

/* Becomes a member of the channel of that name. The caller owns *ret_channel. GPUIPC_ERROR_QUOTA_EXCEEDED: it has 64. */
GPUIPC_PUBLIC int gpuipc_channel_attach(gpuipc_client *client, const char *name, const gpuipc_channel_attach_options *options,
                                        gpuipc_channel **ret_channel, gpuipc_error *ret_error);

/* Leaves: gives back what is in hand, after this member's streams have come to what they were given, for which it waits as long as for a
 * call of the client's. GPUIPC_ERROR_TIMED_OUT: they have not, and the channel is as it was; else the object is gone whatever is returned,
 * as by gpuipc_release(). GPUIPC_ERROR_MAP: CUDA has failed, and nobody can tell whether they will; what is not done breaks when this
 * process ends. Let work that uses the slots finish before. NULL is allowed; so is a forked child. */
GPUIPC_PUBLIC int gpuipc_channel_free(gpuipc_channel *channel, gpuipc_error *ret_error);

/* No more is begun, by anyone: GPUIPC_ERROR_CLOSED for producers, and for consumers once they have taken what is there. */
GPUIPC_PUBLIC int gpuipc_channel_close(gpuipc_channel *channel, gpuipc_error *ret_error);

/* GPUIPC_OK while this member is one: as gpuipc_buffer_check(), and GPUIPC_ERROR_CORRUPT. */
GPUIPC_PUBLIC int gpuipc_channel_check(gpuipc_channel *channel, gpuipc_error *ret_error);

#define GPUIPC_ITEM_META_MAX 1024

/* What a member has in hand, and gives back once: a second time is GPUIPC_ERROR_INVALID_PARAMETER, and changes nothing. */
typedef struct gpuipc_item {
        void *pointer;    /* the slot: of a producer to write, of a consumer to read; on a GPU a device pointer. NULL: the item is broken */
        int64_t size;     /* of a producer what there is room for, of a consumer the item's */
        uint64_t ticket;  /* items of a channel are numbered from 0, in the order in which they were begun */
        int32_t slot;     /* which of the channel's */
        int32_t producer; /* the number of the member that made it */
        int32_t broken;   /* 1: its producer died before it was whole */
        int32_t n_meta;
        unsigned char meta[GPUIPC_ITEM_META_MAX];
        uint64_t own[4];  /* the library's */
} gpuipc_item;

/* A slot to write to, once there is one; waits at most timeout_ms (−1: without end; 0: one look), then GPUIPC_ERROR_TIMED_OUT. The stream
 * waits until the slot's readers are done with it. GPUIPC_ERROR_CLOSED; GPUIPC_ERROR_LEASE_LOST: this member is no longer one. */
GPUIPC_PUBLIC int gpuipc_channel_begin(gpuipc_channel *channel, void *stream, int timeout_ms, gpuipc_item *ret_item,
                                       gpuipc_error *ret_error);

/* Publishes what was begun: `size` bytes from its pointer on, and n_meta bytes of metadata (which are copied). Consumers see it whole once
 * what was given to the stream before is done. GPUIPC_ERROR_INVALID_PARAMETER, and GPUIPC_ERROR_MAP by the driver or for want of CUDA,
 * leave it in hand. */
GPUIPC_PUBLIC int gpuipc_channel_publish(gpuipc_channel *channel, const gpuipc_item *item, int64_t size, const void *meta, size_t n_meta,
                                         void *stream, gpuipc_error *ret_error);

/* Gives up what was begun. Nothing may still write to its slot, so have a stream finish first. */
GPUIPC_PUBLIC int gpuipc_channel_cancel(gpuipc_channel *channel, const gpuipc_item *item, gpuipc_error *ret_error);

/* The next item, waited for as by gpuipc_channel_begin(). The stream waits until it is written. An item that is known to be broken comes
 * with `broken` set, nothing in it and nothing to release (it may be). GPUIPC_ERROR_MAP, by the driver, and
 * GPUIPC_ERROR_INVALID_PARAMETER, as for a stream of another GPU, lose nothing: the next call gets the item. */
GPUIPC_PUBLIC int gpuipc_channel_take(gpuipc_channel *channel, void *stream, int timeout_ms, gpuipc_item *ret_item,
                                      gpuipc_error *ret_error);

/* The item's slot may be written to again once what was given to the stream before is done. GPUIPC_ERROR_MAP, by the driver
 * or for want of CUDA, leaves it in hand. */
GPUIPC_PUBLIC int gpuipc_channel_release(gpuipc_channel *channel, const gpuipc_item *item, void *stream, gpuipc_error *ret_error);

/* Whether a taken item is broken: 1 when its producer died before its stream had written it. To be asked when the consumer's stream is
 * past the take, before or after the release; what it read counts if the answer is 0. Asked before that, 0 means that it is not known yet,
 * and 1 that there is nothing to wait for: the stream may stay held up until the producer's process has ended. */
GPUIPC_PUBLIC int gpuipc_item_is_broken(gpuipc_channel *channel, const gpuipc_item *item);

/* A descriptor for event loops, readable (POLLIN) while the next take or begin need not wait. A call that comes to
 * GPUIPC_ERROR_TIMED_OUT, as one with timeout_ms 0 does, makes it unreadable until there is something: so poll, then call until that.
 * Borrowed; only to be polled. −1: no memory, threads or descriptors left, or the channel is another process's. */
GPUIPC_PUBLIC int gpuipc_channel_fd(gpuipc_channel *channel);

/* 1 when the memory is on a GPU and streams cannot wait by themselves, as gpuipc_fence_is_synchronous(): begin and take then wait on the
 * processor, and publish and release for the stream. Else 0. In host memory nothing is ever waited for but a stream that is given. */
GPUIPC_PUBLIC int gpuipc_channel_is_synchronous(const gpuipc_channel *channel);

/* The channel's own facts, as they were when it was attached to. */
GPUIPC_PUBLIC const char *gpuipc_channel_id(const gpuipc_channel *channel);
GPUIPC_PUBLIC const char *gpuipc_channel_name(const gpuipc_channel *channel);   /* NULL when it has none */
GPUIPC_PUBLIC const char *gpuipc_channel_device(const gpuipc_channel *channel); /* UUID or "host" */
GPUIPC_PUBLIC gpuipc_channel_kind gpuipc_channel_get_kind(const gpuipc_channel *channel);
GPUIPC_PUBLIC gpuipc_channel_policy gpuipc_channel_get_policy(const gpuipc_channel *channel);
GPUIPC_PUBLIC gpuipc_channel_role gpuipc_channel_get_role(const gpuipc_channel *channel);
GPUIPC_PUBLIC int gpuipc_channel_number(const gpuipc_channel *channel); /* this member's: 0 to 63 */
GPUIPC_PUBLIC int64_t gpuipc_channel_slots(const gpuipc_channel *channel);
GPUIPC_PUBLIC int64_t gpuipc_channel_slot_bytes(const gpuipc_channel *channel);
GPUIPC_PUBLIC int64_t gpuipc_channel_meta_bytes(const gpuipc_channel *channel);
GPUIPC_PUBLIC int gpuipc_channel_is_peer(const gpuipc_channel *channel);     /* as gpuipc_buffer_is_peer() */
GPUIPC_PUBLIC int gpuipc_channel_cuda_device(const gpuipc_channel *channel); /* as gpuipc_buffer_cuda_device() */

#define GPUIPC_CHANNEL_MEMBERS 64

typedef struct gpuipc_channel_member {
        int32_t number;
        gpuipc_channel_role role;
        int32_t alive;   /* 0: its process is dead, or it has left with something in hand */
        uint64_t items;  /* published, or released */
        uint64_t bytes;  /* of those */
        uint64_t drops;  /* that this producer of a queue made, or that this consumer of a broadcast suffered */
        uint64_t broken; /* that this consumer was told of */
        uint64_t lag;    /* of a consumer of a broadcast: items that it has yet to read */
        int64_t pid;     /* as the daemon sees it; −1: not known, as by gpuipc_channel_get_stats() */
} gpuipc_channel_member;

/* As the members have written it: one of them that is hostile can make it say anything. */
typedef struct gpuipc_channel_stats {
        size_t struct_size; /* sizeof(gpuipc_channel_stats), set by the caller */
        uint64_t begun;     /* items since the channel was made */
        uint64_t depth;     /* of those, not yet taken by (all of) the consumers */
        int32_t closed;
        int32_t n_members;  /* a consumer of a broadcast once it gets what comes: when gpuipc_channel_attach() has returned */
        uint64_t sleeps, wakes; /* system calls that this member's ring made: to wait, and to wake others. 0 by gpuipc_channel_look() */
        gpuipc_channel_member members[GPUIPC_CHANNEL_MEMBERS];
} gpuipc_channel_stats;
#define GPUIPC_CHANNEL_STATS_INIT                                                                                                          \
        { sizeof(gpuipc_channel_stats), 0, 0, 0, 0, 0, 0, { { 0, GPUIPC_CHANNEL_PRODUCER, 0, 0, 0, 0, 0, 0, -1 } } }

/* Makes no call. */
GPUIPC_PUBLIC int gpuipc_channel_get_stats(gpuipc_channel *channel, gpuipc_channel_stats *stats, gpuipc_error *ret_error);

/* The same of a channel by its id, without being a member: for its owner, for who may attach to it, and for administrators. */
GPUIPC_PUBLIC int gpuipc_channel_look(gpuipc_client *client, const char *id, gpuipc_channel_stats *stats, gpuipc_error *ret_error);

/* ---- looking ---------------------------------------------------------------------------------------------- */

/* Integers not known are −1, strings not known NULL. */
typedef struct gpuipc_channel_info {
        gpuipc_channel_kind kind;
        gpuipc_channel_policy policy;
        int64_t slots, slot_bytes, meta_bytes, participants;
        int64_t control_bytes; /* of the control page, in host memory beside what the buffer takes */
} gpuipc_channel_info;

typedef struct gpuipc_buffer_info {
        const char *id, *name, *device, *handle, *mode, *state, *meta;
        int64_t size, allocated, owner_uid, owner_gid, created_usec, leases, charged_uid;
        int sealed, ro_enforced;
        const gpuipc_channel_info *channel; /* NULL: it is none's, or an event tells of it */
} gpuipc_buffer_info;

typedef struct gpuipc_lease_info {
        const char *id, *buffer, *name, *device, *access, *state, *session, *command, *container, *label;
        int64_t size, pid, uid, gid, since_usec;
} gpuipc_lease_info;

typedef struct gpuipc_device_info {
        const char *uuid, *name, *kind, *zeroed;
        int64_t total_bytes, free_bytes, brokered_bytes, draining_bytes;
        const char *const *handles; /* NULL-ended */
        int degraded;
        int64_t spare_bytes; /* made ahead for the next allocation, nobody's, given back when needed; −1: none are ever made */
} gpuipc_device_info;

typedef struct gpuipc_status_info {
        const char *version, *backend, *session;
        int64_t uptime_usec, buffers, leases, sessions;
        const char *const *features; /* NULL-ended */
        const gpuipc_device_info *devices;
        size_t n_devices;
        const char *limits; /* JSON object: name to number */
        int64_t daemon_pid; /* in its own pid namespace: who has the same number in another cannot open classic handles */
        int64_t shm_device; /* st_dev of its /dev/shm: only who shares that has the same */
} gpuipc_status_info;

typedef struct gpuipc_event_info {
        int64_t sequence, time_usec;
        const char *kind;                 /* "created", "opened", … */
        const gpuipc_buffer_info *buffer; /* NULL when the event is about none */
        const gpuipc_lease_info *lease;   /* NULL likewise */
} gpuipc_event_info;

/* What a callback is given lives until it returns. A callback that returns non-zero ends the enumeration, and the
 * function returns GPUIPC_OK. Callbacks must not use the same client. */
GPUIPC_PUBLIC int gpuipc_get_status(gpuipc_client *client, void (*callback)(const gpuipc_status_info *status, void *data),
                                    void *data, gpuipc_error *ret_error);

typedef struct gpuipc_list_options {
        size_t struct_size;
        int64_t uid;      /* −1: everyone's that one may see */
        const char *name; /* NULL: any */
} gpuipc_list_options;
#define GPUIPC_LIST_OPTIONS_INIT { sizeof(gpuipc_list_options), -1, NULL }

GPUIPC_PUBLIC int gpuipc_list(gpuipc_client *client, const gpuipc_list_options *options,
                              int (*callback)(const gpuipc_lease_info *lease, void *data), void *data,
                              gpuipc_error *ret_error);
GPUIPC_PUBLIC int gpuipc_list_buffers(gpuipc_client *client, const gpuipc_list_options *options,
                                      int (*callback)(const gpuipc_buffer_info *buffer, void *data), void *data,
                                      gpuipc_error *ret_error);

/* Events from now on (since < 0) or after the one numbered `since`, over a connection of their own. After a restart of the
 * daemon it goes on with the event after the last one it gave (before the first: with those from then on). The caller owns
 * *ret_watch. */
GPUIPC_PUBLIC int gpuipc_watch_new(gpuipc_client *client, int64_t since, gpuipc_watch **ret_watch, gpuipc_error *ret_error);

/* Readable (POLLIN) exactly while gpuipc_watch_next() may have something, its end included. Borrowed; only to be polled. */
GPUIPC_PUBLIC int gpuipc_watch_fd(const gpuipc_watch *watch);

/* The next event, borrowed until the next call. Waits at most timeout_ms (−1: without end) and then answers
 * GPUIPC_ERROR_TIMED_OUT. GPUIPC_ERROR_EVENTS_LOST: error.oldest is the first event still remembered; make a new watch
 * with since = oldest − 1. */
GPUIPC_PUBLIC int gpuipc_watch_next(gpuipc_watch *watch, int timeout_ms, const gpuipc_event_info **ret_event,
                                    gpuipc_error *ret_error);

/* May be called from another thread: gpuipc_watch_next() returns GPUIPC_ERROR_CLOSED, now and from then on. */
GPUIPC_PUBLIC void gpuipc_watch_stop(gpuipc_watch *watch);
GPUIPC_PUBLIC void gpuipc_watch_free(gpuipc_watch *watch);

/* ---- for Python -------------------------------------------------------------------------------------------
 *
 * What the package gpuipc cannot do in Python itself: a tensor of DLPack is ended by whoever consumed it, in any thread, with the
 * interpreter's lock or without, amid an exception, after the interpreter's end. The library links no Python; it is told what to call. */

/* Functions of Python's own interface: PyGILState_Ensure, PyGILState_Release, PyErr_Fetch, PyErr_Restore, Py_IncRef, Py_DecRef,
 * PyCapsule_New, PyCapsule_IsValid, PyCapsule_GetPointer. */
typedef struct gpuipc_python {
        size_t struct_size;
        int (*gil_ensure)(void);
        void (*gil_release)(int state);
        void (*err_fetch)(void **ret_type, void **ret_value, void **ret_traceback);
        void (*err_restore)(void *type, void *value, void *traceback);
        void (*inc_ref)(void *object);
        void (*dec_ref)(void *object);
        void *(*capsule_new)(void *pointer, const char *name, void (*destructor)(void *capsule));
        int (*capsule_is_valid)(void *capsule, const char *name);
        void *(*capsule_get)(void *capsule, const char *name);
} gpuipc_python;

/* Copied. To be called before the first capsule is made; again, it does nothing. */
GPUIPC_PUBLIC int gpuipc_python_begin(const gpuipc_python *calls, gpuipc_error *ret_error);

/* To be called when the interpreter is about to end: tensors that end from now on free what is the library's, and no owner. */
GPUIPC_PUBLIC void gpuipc_python_end(void);

typedef struct gpuipc_tensor {
        size_t struct_size; /* sizeof(gpuipc_tensor) */
        void *data;
        const int64_t *shape, *strides; /* of n_dimensions each, copied; strides in elements */
        int32_t n_dimensions;
        int32_t device_type, device_id; /* as DLPack numbers them */
        uint8_t type_code, type_bits;
        uint16_t versioned; /* 1: a DLManagedTensorVersioned, 1.0, of the name "dltensor_versioned"; 0: a DLManagedTensor, "dltensor" */
        uint64_t flags;     /* of the versioned: 1 read-only, 2 a copy */
} gpuipc_tensor;

/* A new capsule (a PyObject), which takes a reference on `owner` (a PyObject) until it, or the tensor in it once consumed, is ended. To be
 * called with the interpreter's lock. */
GPUIPC_PUBLIC int gpuipc_python_capsule(const gpuipc_tensor *tensor, void *owner, void **ret_capsule, gpuipc_error *ret_error);

/* ---- the wire itself -------------------------------------------------------------------------------------- */

/* Calls any method with JSON parameters (NULL: none) over a connection of its own and hands each reply's "parameters"
 * object, as JSON text, to the callback; several with `more` non-zero. Reading methods are called again when the daemon went
 * away before the first reply. Descriptors in replies are closed, and a lease made
 * this way ends with the call. Each reply has the client's timeout_ms. A callback that returns non-zero ends the call, and
 * the function returns GPUIPC_OK. */
GPUIPC_PUBLIC int gpuipc_call_json(gpuipc_client *client, const char *method, const char *parameters, int more,
                                   int (*callback)(const char *parameters, void *data), void *data,
                                   gpuipc_error *ret_error);

#ifdef __cplusplus
}
#endif

#endif
