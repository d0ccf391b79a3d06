/* SPDX-License-Identifier: Apache-2.0 */
/* /dev/shm: the daemon's or another, how large, whether it can be used, and whether events in it are closed to this user. Loads nothing. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "doctor.h"

#define CHECK "/dev/shm"
#define SMALL_BYTES ((uint64_t)128 << 20) /* Docker's own choice is half of it */
#define MIB ((uint64_t)1 << 20)

static void check_size(struct doctor *doctor, uint64_t total, uint64_t free_bytes) {
        if (total >= SMALL_BYTES && free_bytes >= SMALL_BYTES / 8)
                return;
        doctor_say(doctor, free_bytes < MIB ? FINDING_WARN : FINDING_NOTE, DOCTOR_SHM_SMALL, CHECK,
                   "/dev/shm has %" PRIu64 " MiB, of which %" PRIu64 " are free.", total / MIB, free_bytes / MIB);
}

/* CUDA keeps what a classic event is there, in a file that it opens again to use the event elsewhere. Whose such files are closed to this
 * process: a user, or -1. */
static int64_t find_closed_events(void) {
        const struct dirent *entry;
        DIR *dir = opendir("/dev/shm");
        int64_t uid = -1;
        struct stat st;

        while (dir && uid < 0 && (entry = readdir(dir)))
                if (strncmp(entry->d_name, "cuda.shm.", strlen("cuda.shm.")) == 0 &&
                    faccessat(dirfd(dir), entry->d_name, R_OK | W_OK, AT_EACCESS) < 0 && errno == EACCES &&
                    fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
                        uid = st.st_uid;
        if (dir)
                (void)closedir(dir);
        return uid;
}

static const char one_user_fix[] =
        "Nothing for gpuipc, whose fences any user can share. For classic events, run both programs as one user:\n"
        "  docker run --user UID ...";

static void say_shared(struct doctor *doctor, uint64_t total) {
        int64_t uid = find_closed_events();

        if (uid < 0)
                doctor_say(doctor, FINDING_OK, DOCTOR_SHM_SHARED, CHECK,
                           "/dev/shm is the daemon's, with %" PRIu64 " MiB. CUDA events can be shared by classic handles, between "
                           "processes of one user.", total / MIB);
        else
                doctor_say_fix(doctor, FINDING_NOTE, DOCTOR_SHM_SHARED, CHECK, one_user_fix, NULL,
                               "/dev/shm is the daemon's, with %" PRIu64 " MiB. CUDA events by classic handles also want one user: those "
                               "of uid %" PRId64 " are there, and to uid %u they are closed (cudaIpcOpenEventHandle answers 205). Memory "
                               "is shared all the same.", total / MIB, uid, (unsigned)geteuid());
}

void check_shm(struct doctor *doctor) {
        int64_t theirs = doctor->daemon.shm_device;
        struct statvfs fs;
        struct stat st;

        if (stat("/dev/shm", &st) < 0 || !S_ISDIR(st.st_mode) || access("/dev/shm", W_OK | X_OK) < 0 ||
            statvfs("/dev/shm", &fs) < 0) {
                doctor_say(doctor, FINDING_WARN, DOCTOR_SHM_UNUSABLE, CHECK,
                           "/dev/shm cannot be used (%s). gpuipc does not need it; CUDA events by classic handles do, and so do "
                           "many programs.", errno ? strerror(errno) : "no directory");
                return;
        }
        if (theirs < 0) {
                if (doctor->daemon.version[0])
                        doctor_say(doctor, FINDING_NOTE, DOCTOR_SHM_UNKNOWN, CHECK,
                                   "The daemon does not tell which /dev/shm it has.");
        } else if (theirs == (int64_t)st.st_dev) {
                say_shared(doctor, (uint64_t)fs.f_blocks * fs.f_frsize);
        } else {
                doctor_say(doctor, FINDING_NOTE, DOCTOR_SHM_PRIVATE, CHECK,
                           "/dev/shm is not the daemon's. Memory is shared all the same; only CUDA events by classic handles "
                           "(cudaIpcOpenEventHandle) answer 205 between here and there.");
        }
        check_size(doctor, (uint64_t)fs.f_blocks * fs.f_frsize, (uint64_t)fs.f_bavail * fs.f_frsize);
}
