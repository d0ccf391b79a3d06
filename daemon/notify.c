/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to the service manager. Loop thread. Only notify_ready() may wait for the manager; the rest uses a socket that
 * does not block, since the manager's queue may be full for as long as it is busy. */
#include "notify.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>

#include "clock.h"
#include "proto/cleanup.h"

#define STATUS_MAX 512

/* The address in $NOTIFY_SOCKET, a path or "@" and an abstract name; its length, 0 when there is none. */
static socklen_t notify_address(struct sockaddr_un *ret) {
        const char *name = getenv("NOTIFY_SOCKET");
        size_t n = name ? strlen(name) : 0;

        if (n < 2 || n >= sizeof(ret->sun_path) || (name[0] != '/' && name[0] != '@'))
                return 0;
        *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
        memcpy(ret->sun_path, name, n);
        if (name[0] == '@')
                ret->sun_path[0] = '\0';
        return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (name[0] == '/'));
}

/* False when the manager's queue is full. */
static bool notify_send(const char *text, int flags) {
        struct sockaddr_un address;
        socklen_t n = notify_address(&address);
        _cleanup_fd_ int fd = -1;

        if (n == 0)
                return true;
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        return fd < 0 || sendto(fd, text, strlen(text), flags | MSG_NOSIGNAL, (struct sockaddr *)&address, n) >= 0 ||
               errno != EAGAIN;
}

/* A status is one line. */
static void notify_line(const char *status, char ret[STATUS_MAX]) {
        snprintf(ret, STATUS_MAX, "%s", status);
        for (char *p = ret; (p = strpbrk(p, "\r\n"));)
                *p = ' ';
}

static bool notify_send_ready(const char *status, int flags) {
        char line[STATUS_MAX], text[STATUS_MAX + 32];

        notify_line(status, line);
        snprintf(text, sizeof(text), "READY=1\nSTATUS=%s", line);
        return notify_send(text, flags);
}

void notify_ready(const char *status) {
        (void)notify_send_ready(status, 0);
}

bool notify_reloaded(const char *status) {
        return notify_send_ready(status, MSG_DONTWAIT);
}

void notify_status(const char *status) {
        char line[STATUS_MAX], text[STATUS_MAX + 16];

        notify_line(status, line);
        snprintf(text, sizeof(text), "STATUS=%s", line);
        (void)notify_send(text, MSG_DONTWAIT);
}

void notify_reloading(void) {
        char text[64];

        snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, clock_monotonic_usec());
        (void)notify_send(text, MSG_DONTWAIT);
}

void notify_stopping(void) {
        (void)notify_send("STOPPING=1", MSG_DONTWAIT);
}

void notify_watchdog(void) {
        (void)notify_send("WATCHDOG=1", MSG_DONTWAIT);
}

uint64_t notify_watchdog_interval_ms(void) {
        uint64_t usec;

        if (sd_watchdog_enabled(0, &usec) <= 0)
                return 0;
        return usec < 2000 ? 1 : usec / 2000;
}
