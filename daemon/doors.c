/* SPDX-License-Identifier: Apache-2.0 */
/* Which sockets there are and where they come from. Loop thread. */
#include "doors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "log.h"
#include "proto/cleanup.h"

#define SHARED_MODE 0666
#define ADMIN_MODE 0660
#define ADMIN_GROUP "gpuipc-admin"

void doors_init(struct doors *doors) {
        doors->shared = doors->admin = (struct listener){.fd = -1};
}

static const char *door_trouble(int r) {
        switch (r) {
        case -EADDRINUSE: return "another daemon answers there";
        case -EEXIST: return "something that is no socket lies there; remove it or give another path";
        case -EACCES: return "Permission denied; start it as a user who may write there, or give another path";
        case -ENOENT: return "No such file or directory; make the directory, or give another path";
        case -EROFS: return "Read-only file system; mount the directory writable, or give another path";
        case -ENOSPC: return "No space left on device; make room in the directory, or give another path";
        default: return strerror(-r);
        }
}

static int doors_make(struct listener *door, struct hall *hall, const char *path, bool admin) {
        int r = listener_open(door, hall, path, admin, admin ? ADMIN_MODE : SHARED_MODE, admin ? ADMIN_GROUP : NULL);

        if (r < 0)
                log_error("cannot listen at %s: %s", path, door_trouble(r));
        return r;
}

static int doors_take_one(struct doors *doors, struct hall *hall, int fd, const char *name) {
        bool admin = strcmp(name, "admin") == 0;
        struct listener *door = admin ? &doors->admin : &doors->shared;
        int r = door->fd < 0 ? listener_take(door, hall, fd, admin) : -EEXIST;

        if (r == -EEXIST)
                log_error("two sockets were handed over for one purpose (\"%s\"): name the administrators' one \"admin\"", name);
        else if (r < 0)
                log_error("the socket handed over as \"%s\" is not a listening Unix stream socket", name);
        return r;
}

/* Takes what the service manager handed over: how many, or -errno. The one it calls "admin" is the administrators'. */
static int doors_take(struct doors *doors, struct hall *hall, struct handed *handed) {
        int n = 0;

        for (size_t i = 0; i < handed->n; i++) {
                struct handed_item *item = &handed->items[i];
                int r;

                if (item->fd < 0 || (store_number(item->name) != UINT32_MAX && sd_is_socket(item->fd, AF_UNSPEC, 0, 1) <= 0))
                        continue;
                r = doors_take_one(doors, hall, take_fd(&item->fd), item->name);
                if (r < 0)
                        return r;
                n++;
        }
        return n;
}

int doors_open(struct doors *doors, struct hall *hall, struct handed *handed, const char *path, const char *admin_path) {
        int r = doors_take(doors, hall, handed);

        if (r < 0)
                return r;
        if (r == 0) {
                r = doors_make(&doors->shared, hall, path, false);
                if (r == 0 && admin_path && *admin_path)
                        r = doors_make(&doors->admin, hall, admin_path, true);
        }
        if (r >= 0 && doors->shared.fd >= 0)
                r = listener_start(&doors->shared);
        if (r >= 0 && doors->admin.fd >= 0)
                r = listener_start(&doors->admin);
        return r;
}

void doors_announce(const struct doors *doors) {
        log_line(LOG_NOTICE, MESSAGE_STARTED, NULL, 0, "serving at %s%s%s",
                 doors->shared.path ? doors->shared.path : "the socket handed over", doors->admin.path ? " and " : "",
                 doors->admin.path ? doors->admin.path : "");
}

void doors_close(struct doors *doors) {
        listener_close(&doors->shared);
        listener_close(&doors->admin);
}
