/* SPDX-License-Identifier: Apache-2.0 */
/* One-shot timers. Loop thread only. The handle outlives its owner's interest until libuv has closed it. */
#include "alarm.h"

#include <errno.h>
#include <stdlib.h>

struct alarm {
        uv_timer_t timer;
        void (*ring)(void *arg);
        void *arg;
        struct alarm **where;
};

static void alarm_on_close(uv_handle_t *handle) {
        free(handle->data);
}

static void alarm_on_timer(uv_timer_t *timer) {
        struct alarm *alarm = timer->data;

        *alarm->where = NULL;
        uv_close((uv_handle_t *)timer, alarm_on_close);
        alarm->ring(alarm->arg);
}

int alarm_new(uv_loop_t *loop, uint64_t ms, void (*ring)(void *arg), void *arg, struct alarm **where) {
        struct alarm *alarm = malloc(sizeof(*alarm));

        if (!alarm)
                return -ENOMEM;
        alarm->ring = ring;
        alarm->arg = arg;
        alarm->where = where;
        uv_timer_init(loop, &alarm->timer);
        alarm->timer.data = alarm;
        /* The loop's time is of its last waking, in whole milliseconds: what it has done since, and the rest of one, count as well. */
        uv_update_time(loop);
        uv_timer_start(&alarm->timer, alarm_on_timer, ms + 1, 0);
        *where = alarm;
        return 0;
}

void alarm_cancel(struct alarm **where) {
        struct alarm *alarm = *where;

        if (!alarm)
                return;
        *where = NULL;
        uv_close((uv_handle_t *)&alarm->timer, alarm_on_close);
}
