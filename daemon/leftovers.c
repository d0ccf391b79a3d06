/* SPDX-License-Identifier: Apache-2.0 */
/* Gets rid of descriptors that nobody claims. Loop thread, but for leftovers_work(). */
#include "leftovers.h"

#include <stdlib.h>
#include <unistd.h>

struct leftovers *leftovers_new(size_t n) {
        struct leftovers *leftovers = calloc(1, sizeof(*leftovers));

        if (!leftovers)
                return NULL;
        leftovers->fds = calloc(n + 1, sizeof(int));
        leftovers->parcels = calloc(n + 1, sizeof(uint32_t));
        leftovers->errands = calloc(n / ERRAND_PARCELS_MAX + 1, sizeof(struct errand));
        if (leftovers->fds && leftovers->parcels && leftovers->errands)
                return leftovers;
        free(leftovers->fds);
        free(leftovers->parcels);
        free(leftovers->errands);
        free(leftovers);
        return NULL;
}

void leftovers_add(struct leftovers *leftovers, int fd_take, uint32_t parcel) {
        if (fd_take >= 0)
                leftovers->fds[leftovers->n_fds++] = fd_take;
        if (parcel > 0)
                leftovers->parcels[leftovers->n_parcels++] = parcel;
}

static int leftovers_work(struct job *job) {
        struct leftovers *leftovers = container_of(job, struct leftovers, job);

        for (size_t i = 0; i < leftovers->n_fds; i++)
                (void)close(leftovers->fds[i]);
        return 0;
}

static void leftovers_release(struct leftovers *leftovers) {
        if (!leftovers->closed || leftovers->n_sent < leftovers->n_errands)
                return;
        free(leftovers->fds);
        free(leftovers->parcels);
        free(leftovers->errands);
        free(leftovers);
}

static void leftovers_done(struct job *job) {
        struct leftovers *leftovers = container_of(job, struct leftovers, job);

        leftovers->closed = true;
        leftovers_release(leftovers);
}

static void leftovers_sent(struct errand *errand) {
        struct leftovers *leftovers = errand->arg;

        leftovers->n_sent++;
        leftovers_release(leftovers);
}

void leftovers_send(struct leftovers *leftovers_take, struct store *store, struct lane *lane) {
        struct leftovers *leftovers = leftovers_take;

        if (leftovers->n_fds == 0 && leftovers->n_parcels == 0) {
                leftovers->closed = true;
                leftovers_release(leftovers);
                return;
        }
        for (size_t i = 0; store && i < leftovers->n_parcels; i += ERRAND_PARCELS_MAX) {
                struct errand *errand = &leftovers->errands[leftovers->n_errands++];

                *errand = (struct errand){.what = ERRAND_REMOVE, .done = leftovers_sent, .arg = leftovers};
                for (size_t j = i; j < leftovers->n_parcels && errand->n < ERRAND_PARCELS_MAX; j++)
                        errand->parcels[errand->n++] = leftovers->parcels[j];
        }
        for (size_t i = 0; i < leftovers->n_errands; i++)
                store_send(store, &leftovers->errands[i]);
        leftovers->job.uid = 0;
        leftovers->job.work = leftovers_work;
        leftovers->job.done = leftovers_done;
        lane_submit(lane, &leftovers->job);
}
