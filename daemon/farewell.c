/* SPDX-License-Identifier: Apache-2.0 */
/* Closes what may block. Loop thread; farewell_work() alone runs on the pool. */
#include "farewell.h"

#include <stdlib.h>

struct farewell {
        struct job job;
        struct wire wire;
};

struct farewell *farewell_new(void) {
        return calloc(1, sizeof(struct farewell));
}

void farewell_free(struct farewell *farewell) {
        free(farewell);
}

static int farewell_work(struct job *job) {
        struct farewell *farewell = container_of(job, struct farewell, job);

        wire_deinit(&farewell->wire);
        return 0;
}

static void farewell_done(struct job *job) {
        farewell_free(container_of(job, struct farewell, job));
}

void farewell_send(struct farewell *farewell_take, struct lane *lane, uid_t uid, struct wire *wire) {
        farewell_take->wire = *wire;
        wire_init(wire, -1, 0);
        farewell_take->job.uid = uid;
        farewell_take->job.work = farewell_work;
        farewell_take->job.done = farewell_done;
        lane_submit(lane, &farewell_take->job);
}
