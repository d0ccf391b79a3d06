/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the descriptors handed over come from the store, and which of those is the state. Main thread, at start: what is sent to the
 * manager here may wait for it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "log.h"
#include "proto/cleanup.h"
#include "recovery.h"

/* The state lies under one of two names: a file of another layout is replaced by one under the other. */
#define N_STATE_PARCELS 2

struct candidate {
        uint32_t parcel;
        struct state *state;
};

static int left_compare(const void *a, const void *b) {
        uint32_t first = store_number((*(struct handed_item *const *)a)->name);
        uint32_t second = store_number((*(struct handed_item *const *)b)->name);

        return (first > second) - (first < second);
}

/* Those with a name of ours that are no sockets to listen at. */
static int recovery_sort(struct recovery *recovery, struct handed *handed) {
        recovery->left = calloc(handed->n + 1, sizeof(struct handed_item *));
        if (!recovery->left)
                return -ENOMEM;
        for (size_t i = 0; i < handed->n; i++) {
                struct handed_item *item = &handed->items[i];

                if (store_number(item->name) != UINT32_MAX && sd_is_socket(item->fd, AF_UNSPEC, 0, 1) <= 0)
                        recovery->left[recovery->n_left++] = item;
        }
        qsort(recovery->left, recovery->n_left, sizeof(struct handed_item *), left_compare);
        return 0;
}

static int recovery_hold(struct recovery *recovery, const char *why) {
        snprintf(recovery->words, sizeof(recovery->words),
                 "what an earlier gpuipcd left in the service manager's store cannot be read (%s): its buffers are held as they are, and "
                 "nothing else is served; install the gpuipcd that wrote it, or stop the service, which empties the store and ends them",
                 why);
        recovery->held = recovery->words;
        log_error("%s", recovery->words);
        return 0;
}

/* The newest state there is. What else lies under a state's name is left over from a change of layout that was cut short. */
static int recovery_find(struct recovery *recovery, struct candidate *ret) {
        char why[STATE_WHY_MAX];
        int r;

        *ret = (struct candidate){0};
        for (size_t i = 0; i < recovery->n_left && store_number(recovery->left[i]->name) < N_STATE_PARCELS; i++) {
                struct candidate found = {.parcel = store_number(recovery->left[i]->name)};
                int fd = fcntl(recovery->left[i]->fd, F_DUPFD_CLOEXEC, 0);

                r = fd < 0 ? -errno : state_open(fd, &found.state, why);
                if (r == -EBADMSG)
                        (void)recovery_hold(recovery, why);
                if (r < 0) {
                        state_free(ret->state);
                        ret->state = NULL;
                        return r == -EBADMSG ? 0 : r;
                }
                if (ret->state && state_generation(ret->state) > state_generation(found.state)) {
                        state_free(found.state);
                        continue;
                }
                state_free(ret->state);
                *ret = found;
        }
        return 0;
}

/* The items under states' names are not left over, but the one that is in use no longer. */
static void recovery_claim(struct recovery *recovery, uint32_t parcel) {
        for (size_t i = 0; i < recovery->n_left; i++)
                if (store_number(recovery->left[i]->name) == parcel)
                        fd_closep(&recovery->left[i]->fd); /* mapped: never the last */
}

static int recovery_convert(struct recovery *recovery, struct candidate *candidate) {
        uint32_t parcel = 1 - candidate->parcel;
        struct state *state;
        int r;

        r = state_convert(candidate->state, &state);
        if (r < 0)
                return r;
        for (size_t i = 0; i < recovery->n_left; i++)
                if (store_number(recovery->left[i]->name) == parcel)
                        (void)store_remove_now(parcel);
        r = store_put_now(parcel, state_fd(state));
        if (r < 0) {
                state_free(state);
                return r;
        }
        (void)store_remove_now(candidate->parcel);
        recovery_claim(recovery, candidate->parcel);
        state_free(candidate->state);
        *candidate = (struct candidate){.parcel = parcel, .state = state};
        log_notice("the state an earlier gpuipcd left was rewritten for this one");
        return 0;
}

static int recovery_make(struct recovery *recovery) {
        int r = state_new(&state_layout, 1, &recovery->state);

        if (r == 0)
                r = store_put_now(0, state_fd(recovery->state));
        if (r < 0) {
                log_warning("the service manager's descriptor store cannot be used (%s): a restart loses all buffers", strerror(-r));
                state_free(recovery->state);
                recovery->state = NULL;
        }
        return 0;
}

/* The devices its buffers are on, each once. */
static int recovery_list_devices(struct recovery *recovery) {
        const struct state *state = recovery->state;
        const char *texts[N_BUFFER_TEXTS];
        struct state_buffer fixed;

        for (uint32_t slot = 0; slot < state_n_slots(state, STATE_BUFFER); slot++) {
                bool known = false;
                char **devices;

                if (state_word(state, STATE_BUFFER, slot) == STATE_FREE || !state_read(state, STATE_BUFFER, slot, &fixed, texts) ||
                    !texts[BUFFER_DEVICE])
                        continue;
                for (size_t i = 0; i < recovery->n_devices && !known; i++)
                        known = strcmp(recovery->devices[i], texts[BUFFER_DEVICE]) == 0;
                if (known)
                        continue;
                devices = reallocarray(recovery->devices, recovery->n_devices + 1, sizeof(*devices));
                if (!devices)
                        return -ENOMEM;
                recovery->devices = devices;
                devices[recovery->n_devices] = strdup(texts[BUFFER_DEVICE]);
                if (!devices[recovery->n_devices++])
                        return -ENOMEM;
        }
        return 0;
}

int recovery_begin(struct recovery *recovery, struct handed *handed, const struct config *config) {
        struct candidate candidate;
        bool offered;
        int r;

        *recovery = (struct recovery){0};
        offered = store_offered(&recovery->stored_max);
        r = recovery_sort(recovery, handed);
        if (r < 0)
                return r;
        if (config->store == STORE_NO || (config->store == STORE_AUTO && !offered && recovery->n_left == 0)) {
                log_notice("no descriptor store: a restart of the daemon loses all buffers%s",
                           recovery->n_left > 0 ? "; what an earlier one left is dropped, as Store=no says" : "");
                for (size_t i = 0; i < recovery->n_left; i++)
                        (void)store_remove_now(store_number(recovery->left[i]->name));
                return 0;
        }
        r = recovery_find(recovery, &candidate);
        if (r < 0 || recovery->held)
                return r;
        if (!candidate.state)
                return recovery_make(recovery);
        if (!state_is_current(candidate.state)) {
                r = recovery_convert(recovery, &candidate);
                if (r < 0) {
                        log_error("the state an earlier gpuipcd left cannot be rewritten: %s", strerror(-r));
                        state_free(candidate.state);
                        return r;
                }
        }
        recovery->state = candidate.state;
        recovery->kept_something = true;
        recovery_claim(recovery, candidate.parcel);
        return recovery_list_devices(recovery);
}

void recovery_deinit(struct recovery *recovery) {
        for (size_t i = 0; i < recovery->n_devices; i++)
                free(recovery->devices[i]);
        free(recovery->devices);
        free(recovery->left);
        state_free(recovery->state);
        *recovery = (struct recovery){0};
}
