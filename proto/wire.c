/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes and descriptors of one stream socket to messages, and back. One thread at a time, the owner's; it
 * never waits, never decodes, never logs. Received descriptors stay in the wire's set until the owner takes
 * them: closing a stranger's descriptor can block, so where to close it is the owner's to choose. */
#include "wire.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "cleanup.h"

enum {
        READ_ROOM = 4096,      /* read at least this much at once */
        KEEP_CAPACITY = 32768, /* an empty buffer larger than this is given back */
        WRITE_VECTORS = 64,
};

struct wire_out {
        struct wire_out *next;
        size_t n, at; /* bytes with the NUL; bytes written */
        void (*release)(void *arg);
        void *arg;
        const char *data; /* after the descriptors */
        size_t n_fds;
        int fds[];
};

void wire_init(struct wire *wire, int fd_take, size_t max_message) {
        *wire = (struct wire){ .fd = fd_take, .max_message = max_message, .sender.pidfd = -1 };
}

static void out_release(struct wire_out *out) {
        void (*release)(void *) = out->release;

        out->release = NULL;
        if (release != NULL)
                release(out->arg);
}

void wire_drop_output(struct wire *wire) {
        while (wire->out_first != NULL) {
                struct wire_out *out = wire->out_first;

                wire->out_first = out->next;
                out_release(out);
                free(out);
        }
        wire->out_last = NULL;
        wire->out_pending = 0;
}

void wire_deinit(struct wire *wire) {
        wire_drop_output(wire);
        fdset_deinit(&wire->fds);
        fd_closep(&wire->sender.pidfd);
        fd_closep(&wire->fd);
        bytes_deinit(&wire->in);
}

/* The shutdown comes first: nothing more gets in after it. Descriptors come with at least one byte. */
bool wire_shut(struct wire *wire) {
        int unread = 0;

        (void)shutdown(wire->fd, SHUT_RDWR);
        return wire->fds.n == 0 && ioctl(wire->fd, SIOCINQ, &unread) == 0 && unread == 0;
}

bool wire_hung_up(const struct wire *wire) {
        struct pollfd socket = { .fd = wire->fd };

        return poll(&socket, 1, 0) == 1;
}

/* ---- receiving -------------------------------------------------------------------------------------------- */

/* The negative number the kernel gives in place of a pidfd: the process is gone, or it had no descriptor to
 * spare. */
static void read_pidfd(const struct cmsghdr *header, struct wire_sender *sender) {
        int pidfd;

        memcpy(&pidfd, CMSG_DATA(header), sizeof(pidfd));
        fd_closep(&sender->pidfd);
        if (pidfd >= 0)
                sender->pidfd = pidfd;
        else
                sender->dead = pidfd == -ESRCH || pidfd == -EINVAL;
}

static void read_credentials(const struct cmsghdr *header, struct wire_sender *sender) {
        struct ucred credentials;

        memcpy(&credentials, CMSG_DATA(header), sizeof(credentials));
        sender->known = true;
        sender->pid = credentials.pid;
        sender->uid = credentials.uid;
        sender->gid = credentials.gid;
}

static int read_rights(const struct cmsghdr *header, struct fdset *fds) {
        size_t n = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        int r = 0;

        for (size_t i = 0; i < n; i++) {
                int fd;

                memcpy(&fd, CMSG_DATA(header) + i * sizeof(fd), sizeof(fd));
                r = r < 0 ? r : fdset_add_take(fds, fd);
                if (r < 0)
                        (void)close(fd);
        }
        return r;
}

static int read_control(struct msghdr *message, struct wire_sender *sender, struct fdset *fds) {
        int r = 0;

        for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
             header = CMSG_NXTHDR(message, header)) {
                if (header->cmsg_level != SOL_SOCKET)
                        continue;
                if (header->cmsg_type == SCM_CREDENTIALS && header->cmsg_len >= CMSG_LEN(sizeof(struct ucred)))
                        read_credentials(header, sender);
                else if (header->cmsg_type == SCM_PIDFD && header->cmsg_len >= CMSG_LEN(sizeof(int)))
                        read_pidfd(header, sender);
                else if (header->cmsg_type == SCM_RIGHTS && r == 0)
                        r = read_rights(header, fds);
        }
        return r;
}

/* Processes outside our pid namespace all show pid 0: there the pidfds' inodes tell them apart, where inodes
 * do. */
static bool same_process(const struct wire_sender *a, const struct wire_sender *b) {
        struct stat a_stat, b_stat;

        if (a->known != b->known || a->pid != b->pid || a->uid != b->uid || a->gid != b->gid)
                return false;
        if (a->pid != 0 || a->pidfd < 0 || b->pidfd < 0)
                return true;
        if (fstat(a->pidfd, &a_stat) < 0 || fstat(b->pidfd, &b_stat) < 0)
                return true;
        return a_stat.st_ino == b_stat.st_ino;
}

static void discard_used(struct wire *wire) {
        bytes_consume(&wire->in, wire->in_used);
        wire->scanned = wire->scanned > wire->in_used ? wire->scanned - wire->in_used : 0;
        wire->in_used = 0;
        if (wire->in.n == 0 && wire->in.capacity > KEEP_CAPACITY)
                bytes_deinit(&wire->in);
}

ssize_t wire_fill(struct wire *wire) {
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(FDSET_MAX * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred)) +
                           CMSG_SPACE(sizeof(int))];
        } control;
        struct wire_sender sender = { .pidfd = -1 };
        struct iovec vector;
        struct msghdr message = {
                .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
        };
        ssize_t n;
        int r;

        discard_used(wire);
        vector.iov_base = bytes_reserve(&wire->in, READ_ROOM);
        if (vector.iov_base == NULL) {
                wire->in.failed = false; /* nothing was lost: there may be memory another time */
                return -ENOMEM;
        }
        vector.iov_len = wire->in.capacity - wire->in.n;
        do
                n = recvmsg(wire->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return -errno;
        r = read_control(&message, &sender, &wire->fds);
        if ((message.msg_flags & MSG_CTRUNC) != 0)
                wire->truncated = true;
        /* The bytes are out of the socket: without them the stream would make no sense any more. */
        if (r < 0)
                wire->forgotten = true;
        if (n == 0) {
                fd_closep(&sender.pidfd);
                return 0;
        }
        if (wire->in.n > 0 && !same_process(&wire->sender, &sender))
                wire->mixed = true;
        fd_closep(&wire->sender.pidfd);
        wire->sender = sender;
        wire->in.n += (size_t)n;
        return n;
}

static const char *find_end(const struct wire *wire) {
        if (wire->scanned == wire->in.n)
                return NULL;
        return memchr(wire->in.data + wire->scanned, '\0', wire->in.n - wire->scanned);
}

bool wire_ready(const struct wire *wire) {
        return find_end(wire) != NULL;
}

int wire_next(struct wire *wire, char **ret_text, size_t *ret_n) {
        const char *end = find_end(wire);
        size_t n = (end != NULL ? (size_t)(end - wire->in.data) : wire->in.n) - wire->in_used;

        if (wire->max_message > 0 && n > wire->max_message)
                return -EMSGSIZE;
        if (wire->mixed)
                return -EPERM;
        if (end == NULL) {
                wire->scanned = wire->in.n;
                return 0;
        }
        *ret_text = wire->in.data + wire->in_used;
        *ret_n = n;
        wire->in_used += n + 1;
        wire->scanned = wire->in_used;
        return 1;
}

void wire_put_back(struct wire *wire, size_t n) {
        wire->in_used -= n + 1;
        wire->scanned = wire->in_used;
}

const char *wire_fault(int r) {
        switch (r) {
        case -EMSGSIZE: return "a message is too long";
        case -EPERM: return "one message came from two processes";
        default: return "out of memory";
        }
}

/* ---- sending ---------------------------------------------------------------------------------------------- */

int wire_put(struct wire *wire, const char *text, size_t n, const int *fds, size_t n_fds,
             void (*release)(void *arg), void *arg) {
        size_t n_fd_bytes = n_fds * sizeof(*fds);
        struct wire_out *out;
        char *data;

        if (n_fds > FDSET_MAX)
                return -EINVAL;
        out = malloc(sizeof(*out) + n_fd_bytes + n + 1);
        if (out == NULL)
                return -ENOMEM;
        *out = (struct wire_out){ .n = n + 1, .release = release, .arg = arg, .n_fds = n_fds };
        if (n_fds > 0)
                memcpy(out->fds, fds, n_fd_bytes);
        data = (char *)out->fds + n_fd_bytes;
        if (n > 0)
                memcpy(data, text, n);
        data[n] = '\0';
        out->data = data;
        if (wire->out_last != NULL)
                wire->out_last->next = out;
        else
                wire->out_first = out;
        wire->out_last = out;
        wire->out_pending += out->n;
        return 0;
}

/* The first message and those after it that carry no descriptors: descriptors go with the first byte of a
 * write. */
static size_t gather(const struct wire *wire, struct iovec *vectors) {
        size_t n = 0;

        for (const struct wire_out *out = wire->out_first; out != NULL && n < WRITE_VECTORS; out = out->next) {
                if (n > 0 && out->n_fds > 0)
                        break;
                vectors[n++] =
                        (struct iovec){ .iov_base = (char *)out->data + out->at, .iov_len = out->n - out->at };
        }
        return n;
}

static ssize_t send_some(const struct wire *wire) {
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(FDSET_MAX * sizeof(int))];
        } control;
        const struct wire_out *first = wire->out_first;
        struct iovec vectors[WRITE_VECTORS];
        struct msghdr message = { .msg_iov = vectors, .msg_iovlen = gather(wire, vectors) };
        ssize_t n;

        if (first->n_fds > 0 && first->at == 0) {
                struct cmsghdr *header = &control.align;

                memset(&control, 0, CMSG_SPACE(first->n_fds * sizeof(int)));
                header->cmsg_level = SOL_SOCKET;
                header->cmsg_type = SCM_RIGHTS;
                header->cmsg_len = CMSG_LEN(first->n_fds * sizeof(int));
                memcpy(CMSG_DATA(header), first->fds, first->n_fds * sizeof(int));
                message.msg_control = &control;
                message.msg_controllen = CMSG_SPACE(first->n_fds * sizeof(int));
        }
        do
                n = sendmsg(wire->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
        return n < 0 ? -errno : n;
}

static void out_written(struct wire *wire, size_t n) {
        wire->out_pending -= n;
        while (n > 0) {
                struct wire_out *out = wire->out_first;
                size_t part = n < out->n - out->at ? n : out->n - out->at;

                n -= part;
                out->at += part;
                out_release(out);
                if (out->at < out->n)
                        return;
                wire->out_first = out->next;
                if (wire->out_first == NULL)
                        wire->out_last = NULL;
                free(out);
        }
}

/* Whether the next message carries descriptors while too much of what went before is unread. */
static bool must_wait(const struct wire *wire) {
        const struct wire_out *first = wire->out_first;
        int unread = 0;

        if (wire->unread_max == 0 || first->n_fds == 0 || first->at > 0)
                return false;
        return ioctl(wire->fd, SIOCOUTQ, &unread) == 0 && unread >= 0 && (size_t)unread > wire->unread_max;
}

int wire_flush(struct wire *wire) {
        while (wire->out_first != NULL) {
                ssize_t n;

                if (must_wait(wire))
                        return -EBUSY;
                n = send_some(wire);
                if (n < 0)
                        return (int)n;
                out_written(wire, (size_t)n);
        }
        return 0;
}
