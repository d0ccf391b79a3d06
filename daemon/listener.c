/* SPDX-License-Identifier: Apache-2.0 */
/* The door: makes the socket, asks the kernel for credentials before anyone can write, accepts. Loop thread only. Never judges who
 * comes: that is the session's business. */
#include "listener.h"

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>

#include "alarm.h"
#include "clock.h"
#include "fault.h"
#include "log.h"
#include "proto/cleanup.h"
#include "proto/wire.h"
#include "session.h"

#define ACCEPTS_PER_TURN 4 /* each costs as much as several calls, which wait meanwhile */
#define PAUSE_MS 100
#define TOLD_USEC UINT64_C(60000000)

/* Whether the kernel took the option. */
static bool listener_set(int fd, int option, const char *name, int value) {
        return !fault_absent(name) && setsockopt(fd, SOL_SOCKET, option, &value, sizeof(value)) == 0;
}

/* Before listen(), so that nothing slips in unmarked; accepted sockets inherit all three. */
static void listener_ask_credentials(struct listener *listener, int fd) {
        listener->hall->sender_known = listener_set(fd, SO_PASSCRED, "SO_PASSCRED", 1);
        (void)listener_set(fd, SO_PASSPIDFD, "SO_PASSPIDFD", 1);
        listener->hall->sender_refuses = listener_set(fd, SO_PASSRIGHTS, "SO_PASSRIGHTS", 0);
}

static int listener_address(const char *path, struct sockaddr_un *ret) {
        *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
        if (strlen(path) >= sizeof(ret->sun_path))
                return -ENAMETOOLONG;
        memcpy(ret->sun_path, path, strlen(path));
        return 0;
}

/* The socket's own directory, if it is missing; what is above it is not ours to make. */
static void listener_make_directory(const char *path) {
        const char *slash = strrchr(path, '/');
        char directory[sizeof(((struct sockaddr_un *)NULL)->sun_path)];

        if (!slash || slash == path || (size_t)(slash - path) >= sizeof(directory))
                return;
        memcpy(directory, path, (size_t)(slash - path));
        directory[slash - path] = '\0';
        (void)mkdir(directory, 0755); /* what is wrong with it, bind() will say */
}

/* Whether a daemon answers there. */
static bool listener_answers(const struct sockaddr_un *address) {
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        return fd >= 0 && (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 || errno == EAGAIN);
}

static void listener_set_group(const char *path, const char *group) {
        struct group *entry = group ? getgrnam(group) : NULL;

        if (entry && chown(path, (uid_t)-1, entry->gr_gid) < 0)
                log_warning("cannot give %s to group %s: %s", path, group, strerror(errno));
}

/* Bound and listening under a name of its own. */
static int listener_bind(struct listener *listener, const char *path, mode_t mode, const char *group, int *ret_fd) {
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct sockaddr_un address;
        struct stat left;
        int r;

        r = listener_address(path, &address);
        if (r < 0)
                return r;
        if (fd < 0)
                return -errno;
        listener_ask_credentials(listener, fd);
        if (lstat(path, &left) == 0 && S_ISSOCK(left.st_mode))
                (void)unlink(path); /* of a daemon that was killed while it started */
        if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
                return -errno;
        listener_set_group(path, group);
        if (chmod(path, mode) < 0 || listen(fd, SOMAXCONN) < 0) {
                r = -errno;
                (void)unlink(path);
                return r;
        }
        *ret_fd = take_fd(&fd);
        return 0;
}

int listener_open(struct listener *listener, struct hall *hall, const char *path, bool admin, mode_t mode, const char *group) {
        _cleanup_free_ char *final = strdup(path), *making = NULL;
        _cleanup_fd_ int fd = -1;
        struct sockaddr_un address;
        struct stat made;
        int r;

        *listener = (struct listener){.hall = hall, .fd = -1, .admin = admin};
        if (!final || asprintf(&making, "%s" LISTENER_MAKING, path) < 0)
                return -ENOMEM;
        r = listener_address(path, &address);
        if (r < 0)
                return r;
        if (listener_answers(&address))
                return -EADDRINUSE;
        if (lstat(path, &made) == 0 && !S_ISSOCK(made.st_mode))
                return -EEXIST;
        listener_make_directory(path);
        r = listener_bind(listener, making, mode, group, &fd);
        if (r < 0)
                return r;
        if (stat(making, &made) < 0 || rename(making, path) < 0) {
                r = -errno;
                (void)unlink(making);
                return r;
        }
        listener->path = take_ptr(final);
        listener->device = made.st_dev;
        listener->inode = made.st_ino;
        listener->fd = take_fd(&fd);
        return 0;
}

int listener_take(struct listener *listener, struct hall *hall, int fd_take, bool admin) {
        *listener = (struct listener){.hall = hall, .fd = -1, .admin = admin};
        if (sd_is_socket_unix(fd_take, SOCK_STREAM, 1, NULL, 0) <= 0) {
                fd_closep(&fd_take);
                return -ENOTSOCK;
        }
        listener->fd = fd_take;
        listener_ask_credentials(listener, fd_take);
        hall->sender_refuses = false; /* who connected before that may have sent something already */
        return 0;
}

static void listener_on_poll(uv_poll_t *poll, int status, int events);

static void listener_on_pause(void *arg) {
        struct listener *listener = arg;

        uv_poll_start(&listener->poll, UV_READABLE, listener_on_poll);
}

/* No descriptor left, say: waits a little instead of spinning. The log hears of it now and then, not at every try. */
static void listener_pause(struct listener *listener, int error) {
        uint64_t now_usec = clock_monotonic_usec();

        if (listener->told_usec == 0 || now_usec - listener->told_usec >= TOLD_USEC) {
                log_warning("cannot accept a connection: %s; trying again, and saying so once a minute", strerror(error));
                listener->told_usec = now_usec;
        }
        uv_poll_stop(&listener->poll);
        if (alarm_new(listener->hall->house->loop, PAUSE_MS, listener_on_pause, listener, &listener->pause) < 0)
                uv_poll_start(&listener->poll, UV_READABLE, listener_on_poll);
}

static void listener_on_poll(uv_poll_t *poll, int status, int events) {
        struct listener *listener = poll->data;

        (void)status;
        (void)events;
        for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
                int r, fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

                if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
                        continue;
                if (fd < 0 && errno != EAGAIN)
                        listener_pause(listener, errno);
                if (fd < 0)
                        return;
                r = session_new(listener->hall, fd, listener->admin);
                if (r < 0)
                        log_line(LOG_INFO, MESSAGE_REFUSED, NULL, 0, "a connection was closed at once: %s", strerror(-r));
        }
}

int listener_start(struct listener *listener) {
        int r = uv_poll_init(listener->hall->house->loop, &listener->poll, listener->fd);

        if (r < 0)
                return r;
        listener->poll.data = listener;
        listener->polling = true;
        return uv_poll_start(&listener->poll, UV_READABLE, listener_on_poll);
}

/* Another daemon may have taken the path over meanwhile. */
static bool listener_owns_path(const struct listener *listener) {
        struct stat now;

        return stat(listener->path, &now) == 0 && now.st_dev == listener->device && now.st_ino == listener->inode;
}

void listener_close(struct listener *listener) {
        alarm_cancel(&listener->pause);
        if (listener->path && listener_owns_path(listener))
                (void)unlink(listener->path);
        free(take_ptr(listener->path));
        if (listener->polling)
                uv_close((uv_handle_t *)&listener->poll, NULL);
        listener->polling = false;
        fd_closep(&listener->fd);
}
