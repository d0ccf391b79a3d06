/* SPDX-License-Identifier: Apache-2.0 */
/* Scope-bound ownership for C: `_cleanup_(fn)` runs fn on leaving the scope, `take_*` moves a value out. */
#ifndef PROTO_CLEANUP_H
#define PROTO_CLEANUP_H

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(fn) __attribute__((cleanup(fn)))

/* Closes *fd unless it is -1, keeps errno, leaves -1 behind. */
static inline void fd_closep(int *fd) {
        if (*fd >= 0) {
                int saved = errno;
                (void)close(*fd);
                errno = saved;
        }
        *fd = -1;
}

static inline void freep(void *p) {
        free(*(void **)p);
}

#define _cleanup_fd_ _cleanup_(fd_closep)
#define _cleanup_free_ _cleanup_(freep)

static inline int take_fd(int *fd) {
        int taken = *fd;
        *fd = -1;
        return taken;
}

#define take_ptr(p)                                                                                          \
        ({                                                                                                   \
                __typeof__(p) *_source = &(p);                                                               \
                __typeof__(p) _taken = *_source;                                                             \
                *_source = NULL;                                                                             \
                _taken;                                                                                      \
        })

#define ELEMENTSOF(a) (sizeof(a) / sizeof((a)[0]))

#endif
