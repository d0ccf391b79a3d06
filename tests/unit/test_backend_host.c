/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory with real memfds. Three system calls are wrapped, to fail as a full machine or an old kernel would. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/backend.h"
#include "daemon/memory.h"
#include "tests/support/child.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"

#define MIB (INT64_C(1) << 20)
#define WANTED_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static struct {
        int after; /* calls that succeed before it */
        int error; /* 0: none to come */
        bool once;
} failing;
static int n_fallocates, n_old_flags;
static bool old_kernel, no_chmod;

int fallocate(int fd, int mode, off_t offset, off_t n) {
        n_fallocates++;
        if (failing.error && failing.after-- <= 0) {
                errno = failing.error;
                if (failing.once)
                        failing.error = 0;
                return -1;
        }
        return (int)syscall(SYS_fallocate, fd, mode, offset, n);
}

int memfd_create(const char *name, unsigned flags) {
        if (old_kernel && (flags & ~(unsigned)(MFD_CLOEXEC | MFD_ALLOW_SEALING))) {
                n_old_flags++;
                errno = EINVAL;
                return -1;
        }
        return (int)syscall(SYS_memfd_create, name, flags);
}

int fchmod(int fd, mode_t mode) {
        if (no_chmod) {
                errno = EROFS;
                return -1;
        }
        return (int)syscall(SYS_fchmod, fd, mode);
}

static struct backend_device *device;
static struct backend_detail detail;
static struct fds before;

static void setup(void) {
        struct backend_device **devices;

        before = fds_of(0);
        memset(&failing, 0, sizeof(failing));
        ck_assert_int_eq(backend_host.probe(&backend_host, &devices), 1);
        device = devices[0];
}

static void teardown(void) {
        struct fds after = fds_of(0);

        fds_assert_same(&before, &after, "this process");
        fds_deinit(&before);
        fds_deinit(&after);
}

static int allocate_step(int64_t size, struct backing **backing) {
        memset(&detail, 0, sizeof(detail));
        return backend_host.allocate(device, size, backend_host.round(device, size, "memfd"), "memfd", backing, &detail);
}

static struct backing *allocate(int64_t size) {
        struct backing *backing = NULL;
        int r;

        do
                r = allocate_step(size, &backing);
        while (r == BACKEND_MORE);
        ck_assert_msg(r == 0, "%s", detail.text);
        return backing;
}

static int rw_of(const struct backing *backing) {
        return backing_fd(backing, ACCESS_RW);
}

/* A read-only descriptor, the caller's. */
static int ro_of(struct backing *backing) {
        int fd = -1;

        ck_assert_msg(backend_host.open(backing, ACCESS_RO, &fd, &detail) == 0, "%s", detail.text);
        ck_assert_int_ge(fd, 0);
        return fd;
}

static int64_t pages_of(int fd) {
        struct stat st;

        ck_assert_int_eq(fstat(fd, &st), 0);
        return (int64_t)st.st_blocks * 512;
}

static void expect_error(int got, int errno_value) {
        ck_assert_int_lt(got, 0);
        ck_assert_int_eq(errno, errno_value);
}

START_TEST(the_device_is_described) {
        struct backend_device_info info;
        int64_t usable = memory_usable_bytes();

        backend_host.info(device, &info);
        ck_assert_str_eq(info.uuid, "host");
        ck_assert_str_eq(info.name, "Host memory");
        ck_assert_int_eq(info.kind, DEVICE_HOST);
        ck_assert_int_eq(info.total_bytes, memory_total_bytes());
        ck_assert_int_eq(info.capacity_bytes, usable / 2 / 4096 * 4096);
        ck_assert_int_eq(info.zeroed, ZEROED_DRIVER);
        ck_assert_int_eq((int)info.n_handles, 1);
        ck_assert_str_eq(info.handles[0], "memfd");
        ck_assert(info.ro_enforced);
        ck_assert_str_eq(backend_host.name, "host");
} END_TEST

START_TEST(free_bytes_are_the_machine_s) {
        int64_t free_bytes = backend_host.free_bytes(device);

        ck_assert_int_gt(free_bytes, 0);
        ck_assert_int_le(free_bytes, memory_total_bytes());
        ck_assert_int_lt(llabs(free_bytes - memory_available_bytes()), memory_total_bytes() / 4);
} END_TEST

START_TEST(sizes_are_rounded_to_pages) {
        int64_t page = sysconf(_SC_PAGESIZE);

        ck_assert_int_eq(backend_host.round(device, 1, "memfd"), page);
        ck_assert_int_eq(backend_host.round(device, page, "memfd"), page);
        ck_assert_int_eq(backend_host.round(device, page + 1, "memfd"), 2 * page);
        ck_assert_int_eq(backend_host.round(device, 0, "memfd"), 0);
        ck_assert_int_eq(backend_host.round(device, -1, "memfd"), 0);
        ck_assert_int_eq(backend_host.round(device, SCHEMA_INT_MAX, "memfd"), 0);
        ck_assert_int_eq(backend_host.round(device, INT64_MAX, "memfd"), 0);
} END_TEST

START_TEST(a_buffer_is_what_was_asked_for) {
        struct backing *backing = allocate(10000);
        int fd = rw_of(backing);
        unsigned char *bytes;
        struct stat st;

        ck_assert_int_eq(fstat(fd, &st), 0);
        ck_assert_int_eq(st.st_size, 10000);
        ck_assert_int_eq(pages_of(fd), 12288);
        ck_assert_int_eq(st.st_mode & 07777, 0600);
        ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
        bytes = mmap(NULL, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ck_assert_ptr_ne(bytes, MAP_FAILED);
        for (int i = 0; i < 10000; i++)
                ck_assert_int_eq(bytes[i], 0);
        munmap(bytes, 10000);
        ck_assert(backing_prepared(backing, ACCESS_RW));
        ck_assert(!backing_prepared(backing, ACCESS_RO));
        ck_assert_int_eq(backing_fd(backing, ACCESS_RO), -1);
        backend_host.close(backing);
} END_TEST

START_TEST(its_length_is_final) {
        struct backing *backing = allocate(8192);
        int fd = rw_of(backing);

        ck_assert_int_eq(fcntl(fd, F_GET_SEALS) & WANTED_SEALS, WANTED_SEALS);
        expect_error(ftruncate(fd, 4096), EPERM);
        expect_error(ftruncate(fd, 12288), EPERM);
        expect_error((int)pwrite(fd, "x", 1, 8192), EPERM);
        backend_host.close(backing);
} END_TEST

START_TEST(large_ones_are_made_in_steps) {
        struct backing *backing = NULL;

        n_fallocates = 0;
        ck_assert_int_eq(allocate_step(8 * MIB + 1, &backing), BACKEND_MORE);
        ck_assert_ptr_nonnull(backing);
        ck_assert_int_eq(pages_of(rw_of(backing)), 8 * MIB);
        ck_assert_int_eq(allocate_step(8 * MIB + 1, &backing), 0);
        ck_assert_int_eq(pages_of(rw_of(backing)), 8 * MIB + 4096);
        ck_assert_int_eq(n_fallocates, 2);
        backend_host.close(backing);
} END_TEST

START_TEST(one_step_is_enough_up_to_its_size) {
        struct backing *backing = NULL;

        ck_assert_int_eq(allocate_step(8 * MIB, &backing), 0);
        backend_host.close(backing);
} END_TEST

START_TEST(half_made_ones_can_be_closed) {
        struct backing *backing = NULL;

        ck_assert_int_eq(allocate_step(9 * MIB, &backing), BACKEND_MORE);
        backend_host.close(backing);
} END_TEST

START_TEST(a_full_machine_gives_all_back) {
        static const int errors[] = {ENOSPC, ENOMEM};
        struct backing *backing = NULL;

        failing.error = errors[_i];
        failing.after = 1;
        ck_assert_int_eq(allocate_step(65 * MIB, &backing), BACKEND_MORE);
        ck_assert_int_eq(allocate_step(65 * MIB, &backing), -ENOMEM);
        ck_assert_ptr_null(backing);
        ck_assert_int_gt(detail.free_bytes, 0);
        ck_assert_str_eq(detail.text, errors[_i] == ENOSPC
                         ? "no more memory after 8388608 of 68157440 bytes (fallocate: No space left on device)"
                         : "no more memory after 8388608 of 68157440 bytes (fallocate: Cannot allocate memory)");
} END_TEST

START_TEST(other_failures_keep_their_name) {
        struct backing *backing = NULL;

        failing.error = EIO;
        ck_assert_int_eq(allocate_step(4096, &backing), -EIO);
        ck_assert_ptr_null(backing);
        ck_assert_int_eq(detail.free_bytes, SCHEMA_UNSET);
        ck_assert_str_eq(detail.text, "fallocate of a memfd: Input/output error");
} END_TEST

START_TEST(interrupted_steps_are_tried_again) {
        failing.error = EINTR;
        failing.once = true;
        backend_host.close(allocate(4096));
} END_TEST

START_TEST(out_of_descriptors) {
        struct rlimit old, none = {.rlim_cur = 3};
        struct backing *backing = NULL;
        int r;

        ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
        none.rlim_max = old.rlim_max;
        none.rlim_cur = before.n < 3 ? before.n : 3;
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
        r = allocate_step(4096, &backing);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
        ck_assert_int_eq(r, -EMFILE);
        ck_assert_ptr_null(backing);
        ck_assert_str_eq(detail.text, "memfd_create: Too many open files");
} END_TEST

START_TEST(over_the_file_size_limit) {
        struct rlimit old, small;
        struct backing *backing = NULL;
        int r;

        ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
        small = (struct rlimit){.rlim_cur = 4096, .rlim_max = old.rlim_max};
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
        r = allocate_step(4097, &backing); /* no SIGXFSZ, which would end this process */
        ck_assert_int_eq(allocate_step(4096, &backing), 0);
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
        ck_assert_int_eq(r, -EFBIG);
        backend_host.close(backing);
} END_TEST

START_TEST(nothing_is_left_of_a_failed_start) {
        struct backing *backing = NULL;

        no_chmod = true;
        ck_assert_int_eq(allocate_step(4096, &backing), -EROFS);
        ck_assert_ptr_null(backing);
        ck_assert_str_eq(detail.text, "fchmod of a memfd: Read-only file system");
} END_TEST

START_TEST(kernels_without_newer_flags) {
        old_kernel = true;
        n_old_flags = 0;
        backend_host.close(allocate(4096));
        ck_assert_int_eq(n_old_flags, 1);
} END_TEST

/* ---- read-only -------------------------------------------------------------------------------------------- */

START_TEST(read_only_is_read_only) {
        struct backing *backing = allocate(4096);
        int fd = ro_of(backing);
        char *bytes;

        ck_assert_int_ne(fd, rw_of(backing));
        ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
        ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
        expect_error((int)pwrite(fd, "x", 1, 0), EBADF);
        ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        bytes = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
        ck_assert_ptr_ne(bytes, MAP_FAILED);
        ck_assert_int_eq(mprotect(bytes, 4096, PROT_READ | PROT_WRITE), -1);
        ck_assert_int_eq((int)pwrite(rw_of(backing), "x", 1, 0), 1);
        ck_assert_int_eq(bytes[0], 'x');
        munmap(bytes, 4096);
        close(fd);
        backend_host.close(backing);
} END_TEST

/* What one holder does to its descriptor is no other's business. */
START_TEST(each_read_only_lease_has_an_offset_of_its_own) {
        struct backing *backing = allocate(4096);
        int one = ro_of(backing), other;

        ck_assert_int_eq(lseek(one, 123, SEEK_SET), 123);
        ck_assert_int_eq(fcntl(one, F_SETFL, O_NONBLOCK | O_APPEND), 0);
        other = ro_of(backing);
        ck_assert_int_eq(lseek(other, 0, SEEK_CUR), 0);
        ck_assert_int_eq(fcntl(other, F_GETFL) & (O_NONBLOCK | O_APPEND), 0);
        close(one);
        close(other);
        backend_host.close(backing);
} END_TEST

/* A holder of the daemon's own user may take a lease on the file: nobody waits for it to be broken. */
START_TEST(a_file_lease_holds_up_nobody) {
        struct backing *backing = allocate(4096);
        char path[32];
        int fd = -1, mine;

        signal(SIGIO, SIG_IGN);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", rw_of(backing));
        mine = open(path, O_RDWR | O_CLOEXEC);
        ck_assert_int_ge(mine, 0);
        close(backing->fds[ACCESS_RW]); /* the only other opener, for a lease to be granted */
        backing->fds[ACCESS_RW] = mine;
        ck_assert_int_eq(fcntl(mine, F_SETLEASE, F_WRLCK), 0);
        ck_assert_int_eq(backend_host.open(backing, ACCESS_RO, &fd, &detail), -EBUSY);
        ck_assert_int_eq(fd, -1);
        ck_assert_ptr_nonnull(strstr(detail.text, "F_SETLEASE"));
        ck_assert_int_eq(fcntl(mine, F_SETLEASE, F_UNLCK), 0);
        close(ro_of(backing));
        backend_host.close(backing);
} END_TEST

/* Another user with the read-only descriptor. Returns what went wrong. */
static int stranger(int talk_fd, void *data) {
        int fd = *(int *)data, again;
        char path[32];

        (void)talk_fd;
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        if (access("/proc/self/fd", X_OK) < 0)
                return 1;
        again = open(path, O_RDWR | O_CLOEXEC);
        if (again >= 0 || errno != EACCES)
                return 2;
        again = open(path, O_WRONLY | O_CLOEXEC);
        if (again >= 0 || errno != EACCES)
                return 3;
        if (fchmod(fd, 0666) == 0 || errno != EPERM)
                return 4;
        if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) == 0 || errno != EPERM)
                return 5;
        return mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? 6 : 0;
}

START_TEST(strangers_cannot_open_it_anew_for_writing) {
        struct backing *backing;
        struct child child;
        int fd;

        if (child_needs_root("strangers_cannot_open_it_anew_for_writing"))
                return;
        backing = allocate(4096);
        fd = ro_of(backing);
        child = child_start(&(struct child_options){.uid = 65534, .gid = 65534}, stranger, &fd);
        child_expect_exit(&child, 0);
        close(fd);
        backend_host.close(backing);
} END_TEST

/* In a mount namespace of its own, with nothing in /proc. */
static int without_proc(int talk_fd, void *data) {
        int fd = -1;

        (void)talk_fd;
        if (mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) < 0 || mount("none", "/proc", "tmpfs", 0, NULL) < 0)
                return 1;
        if (backend_host.open(data, ACCESS_RO, &fd, &detail) != -ENOENT || fd != -1)
                return 2;
        return strcmp(detail.text, "cannot make a read-only descriptor: /proc is not mounted") == 0 ? 0 : 3;
}

START_TEST(without_proc_the_reason_is_told) {
        struct backing *backing;
        struct child child;

        if (child_needs_root("without_proc_the_reason_is_told"))
                return;
        backing = allocate(4096);
        child = child_start(&(struct child_options){.namespaces = CLONE_NEWNS}, without_proc, backing);
        child_expect_exit(&child, 0);
        backend_host.close(backing);
} END_TEST

/* ---- seal ------------------------------------------------------------------------------------------------- */

START_TEST(sealed_ones_take_no_new_writer) {
        struct backing *backing = allocate(4096);
        int fd = rw_of(backing);
        char *old = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        const int wanted = WANTED_SEALS | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

        ck_assert_msg(backend_host.seal(backing, &detail) == 0, "%s", detail.text);
        ck_assert_int_eq(fcntl(fd, F_GET_SEALS) & wanted, wanted);
        ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        expect_error((int)pwrite(fd, "x", 1, 0), EPERM);
        old[0] = 'y'; /* who could write before still can */
        int reader = ro_of(backing);
        const char *seen = mmap(NULL, 4096, PROT_READ, MAP_SHARED, reader, 0);
        ck_assert_int_eq(seen[0], 'y');
        munmap((void *)seen, 4096);
        close(reader);
        munmap(old, 4096);
        ck_assert_int_eq(backend_host.seal(backing, &detail), 0);
        backend_host.close(backing);
} END_TEST

START_TEST(seals_of_a_holder) {
        static const struct {
                int seals, result;
        } cases[] = {
                {F_SEAL_SEAL, -EPERM},
                {F_SEAL_FUTURE_WRITE, 0},
                {F_SEAL_FUTURE_WRITE | F_SEAL_SEAL, 0},
                {F_SEAL_WRITE, 0},
                {F_SEAL_WRITE | F_SEAL_SEAL, 0},
        };
        struct backing *backing = allocate(4096);
        int fd = rw_of(backing), seals;

        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, cases[_i].seals), 0);
        memset(&detail, 0, sizeof(detail));
        ck_assert_int_eq(backend_host.seal(backing, &detail), cases[_i].result);
        seals = fcntl(fd, F_GET_SEALS);
        if (cases[_i].result == 0)
                ck_assert((seals & F_SEAL_SEAL) && (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)));
        else
                ck_assert_str_eq(detail.text, "a holder has forbidden further seals on this buffer: free it instead");
        backend_host.close(backing);
} END_TEST

int main(void) {
        Suite *suite = suite_create("backend_host");
        TCase *tcase = tcase_create("backend_host");

        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, the_device_is_described);
        tcase_add_test(tcase, free_bytes_are_the_machine_s);
        tcase_add_test(tcase, sizes_are_rounded_to_pages);
        tcase_add_test(tcase, a_buffer_is_what_was_asked_for);
        tcase_add_test(tcase, its_length_is_final);
        tcase_add_test(tcase, large_ones_are_made_in_steps);
        tcase_add_test(tcase, one_step_is_enough_up_to_its_size);
        tcase_add_test(tcase, half_made_ones_can_be_closed);
        tcase_add_loop_test(tcase, a_full_machine_gives_all_back, 0, 2);
        tcase_add_test(tcase, other_failures_keep_their_name);
        tcase_add_test(tcase, interrupted_steps_are_tried_again);
        tcase_add_test(tcase, out_of_descriptors);
        tcase_add_test(tcase, over_the_file_size_limit);
        tcase_add_test(tcase, nothing_is_left_of_a_failed_start);
        tcase_add_test(tcase, kernels_without_newer_flags);
        tcase_add_test(tcase, read_only_is_read_only);
        tcase_add_test(tcase, each_read_only_lease_has_an_offset_of_its_own);
        tcase_add_test(tcase, a_file_lease_holds_up_nobody);
        tcase_add_test(tcase, strangers_cannot_open_it_anew_for_writing);
        tcase_add_test(tcase, without_proc_the_reason_is_told);
        tcase_add_test(tcase, sealed_ones_take_no_new_writer);
        tcase_add_loop_test(tcase, seals_of_a_holder, 0, 5);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
