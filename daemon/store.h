/* SPDX-License-Identifier: Apache-2.0 */
/* The service manager's descriptor store: what is put there comes back to the next daemon. Errands are done in order on a lane of
 * their own, since sending waits while the manager is busy; that it has done them is asked by a barrier, one for many, which nobody
 * waits for but those who want to know. Loop thread; knows nothing of buffers. */
#ifndef DAEMON_STORE_H
#define DAEMON_STORE_H

#include <stdbool.h>
#include <uv.h>

#include "errand.h"

struct store;

/* How a message and its descriptors get to the manager: > 0 sent, 0 there is none, -errno. Pool thread. NULL: sd_notify's way. */
typedef int store_sender(const char *text, const int *fds, unsigned n);

/* -errno. `on_stuck` (may be NULL) hears when the manager does not take a message for some seconds, and when it does again. */
int store_new(uv_loop_t *loop, store_sender *sender, void (*on_stuck)(void *arg, bool stuck), void *arg, struct store **ret);

/* From now on no barrier is asked for, and who waits for one is told that it has passed. Errands under way are still done. */
void store_stop(struct store *store);

/* Frees it once the loop has closed its handles. Nothing may be under way but what hangs in the manager. NULL is harmless. */
void store_free(struct store *store);

/* Never completes within the call. Cannot fail. */
void store_send(struct store *store, struct errand *errand);

bool store_idle(const struct store *store);    /* nothing to be sent; barriers may be out */
bool store_settled(const struct store *store); /* nor is one out */

/* Blocks; for the start, before the loop runs. 0 or -errno. */
int store_put_now(uint32_t parcel, int fd);
int store_remove_now(uint32_t parcel);

/* A descriptor's name in the store: four digits of base 62, since all names come back in one environment variable. */
#define STORE_NAME_SIZE 5
void store_name(uint32_t parcel, char ret[STORE_NAME_SIZE]);

/* The number in such a name; UINT32_MAX when it is none. */
uint32_t store_number(const char *name);

/* Whether the manager that started this process has a store, and how many descriptors it takes (0: not known). */
bool store_offered(int64_t *ret_max);

#endif
