/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into the daemon: makes the nth call of one function fail, as test_failures.py's page of figures says. Any thread.
 * Counts what is allocated and not freed, too. Allocates nothing itself. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

/* In the order of FUNCTIONS in test_failures.py. */
enum function {
        F_MALLOC, F_CALLOC, F_REALLOC, F_MEMFD_CREATE, F_FALLOCATE, F_FTRUNCATE, F_FCHMOD, F_ACCEPT4, F_RECVMSG, F_SENDMSG,
        F_OPEN, F_FCNTL, F_EPOLL_PROBE, F_GETSOCKOPT, F_PIDFD_OPEN, N_FUNCTIONS,
};

struct figures {
        _Atomic int64_t calls, fail_at, failed, error; /* fail_at 0: never */
};

struct page {
        _Atomic int64_t live; /* allocations not freed */
        struct figures functions[N_FUNCTIONS];
};

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *pointer, size_t size);
void __libc_free(void *pointer);

static struct page nothing, *page = &nothing;
static _Thread_local int spared;

__attribute__((constructor)) static void shim_begin(void) {
        const char *path = getenv("GPUIPC_SHIM");
        int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
        void *memory = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

        if (fd >= 0)
                close(fd);
        if (memory == MAP_FAILED)
                return;
        atomic_store(&((struct page *)memory)->live, atomic_load(&nothing.live));
        page = memory;
}

/* Whether this call is the one to fail; errno is set then. */
static int shim_fails(enum function function) {
        struct figures *figures = &page->functions[function];
        int64_t call = spared ? 0 : atomic_fetch_add(&figures->calls, 1) + 1;

        if (call == 0 || call != atomic_load(&figures->fail_at))
                return 0;
        atomic_fetch_add(&figures->failed, 1);
        errno = (int)atomic_load(&figures->error);
        return 1;
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

static void *shim_count(void *pointer) {
        if (pointer)
                atomic_fetch_add(&page->live, 1);
        return pointer;
}

EXPORTED void *malloc(size_t size) {
        return shim_fails(F_MALLOC) ? NULL : shim_count(__libc_malloc(size));
}

EXPORTED void *calloc(size_t n, size_t size) {
        return shim_fails(F_CALLOC) ? NULL : shim_count(__libc_calloc(n, size));
}

/* libuv aborts when the table of what it polls cannot grow, whatever its user does. */
static int shim_from_libuv(const void *caller) {
        Dl_info info;

        return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "/libuv.");
}

EXPORTED void *realloc(void *pointer, size_t size) {
        if (!shim_from_libuv(__builtin_return_address(0)) && shim_fails(F_REALLOC))
                return NULL;
        return pointer ? __libc_realloc(pointer, size) : shim_count(__libc_realloc(NULL, size));
}

EXPORTED void free(void *pointer) {
        if (pointer)
                atomic_fetch_sub(&page->live, 1);
        __libc_free(pointer);
}

/* glibc 2.36 crashes in here when it finds no memory (nss_database.c). */
EXPORTED struct group *getgrnam(const char *name) {
        static struct group *(*next)(const char *name);
        struct group *group;

        if (!next)
                *(void **)&next = dlsym(RTLD_NEXT, "getgrnam");
        spared++;
        group = next(name);
        spared--;
        return group;
}

/* ---- system calls ------------------------------------------------------------------------------------------ */

EXPORTED int memfd_create(const char *name, unsigned flags) {
        return shim_fails(F_MEMFD_CREATE) ? -1 : (int)syscall(SYS_memfd_create, name, flags);
}

EXPORTED int fallocate(int fd, int mode, off_t offset, off_t length) {
        return shim_fails(F_FALLOCATE) ? -1 : (int)syscall(SYS_fallocate, fd, mode, offset, length);
}

EXPORTED int ftruncate(int fd, off_t length) {
        return shim_fails(F_FTRUNCATE) ? -1 : (int)syscall(SYS_ftruncate, fd, length);
}

EXPORTED int fchmod(int fd, mode_t mode) {
        return shim_fails(F_FCHMOD) ? -1 : (int)syscall(SYS_fchmod, fd, mode);
}

EXPORTED int accept4(int fd, __SOCKADDR_ARG address, socklen_t *length, int flags) {
        return shim_fails(F_ACCEPT4) ? -1 : (int)syscall(SYS_accept4, fd, address.__sockaddr__, length, flags);
}

EXPORTED ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
        return shim_fails(F_RECVMSG) ? -1 : (ssize_t)syscall(SYS_recvmsg, fd, message, flags);
}

EXPORTED ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
        return shim_fails(F_SENDMSG) ? -1 : (ssize_t)syscall(SYS_sendmsg, fd, message, flags);
}

EXPORTED int open(const char *path, int flags, ...) {
        mode_t mode = 0;
        va_list ap;

        if (shim_fails(F_OPEN))
                return -1;
        va_start(ap, flags);
        if (flags & (O_CREAT | __O_TMPFILE))
                mode = va_arg(ap, mode_t);
        va_end(ap);
        return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

EXPORTED int fcntl(int fd, int command, ...) {
        void *argument;
        va_list ap;

        if (shim_fails(F_FCNTL))
                return -1;
        va_start(ap, command);
        argument = va_arg(ap, void *);
        va_end(ap);
        return (int)syscall(SYS_fcntl, fd, command, argument);
}

/* Only libuv's question whether a descriptor can be polled at all: when the loop itself cannot register one after that,
 * libuv aborts, whatever its user does. */
EXPORTED int epoll_ctl(int epoll, int command, int fd, struct epoll_event *event) {
        if (command == EPOLL_CTL_ADD && event->data.fd == -1 && shim_fails(F_EPOLL_PROBE))
                return -1;
        return (int)syscall(SYS_epoll_ctl, epoll, command, fd, event);
}

EXPORTED int getsockopt(int fd, int level, int name, void *restrict value, socklen_t *restrict length) {
        return shim_fails(F_GETSOCKOPT) ? -1 : (int)syscall(SYS_getsockopt, fd, level, name, value, length);
}

EXPORTED long syscall(long number, ...) {
        static long (*next)(long, long, long, long, long, long, long);
        long arguments[6];
        va_list ap;

        if (number == SYS_pidfd_open && shim_fails(F_PIDFD_OPEN))
                return -1;
        if (!next)
                *(void **)&next = dlsym(RTLD_NEXT, "syscall");
        va_start(ap, number);
        for (int i = 0; i < 6; i++)
                arguments[i] = va_arg(ap, long);
        va_end(ap);
        return next(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}
