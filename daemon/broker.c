/* SPDX-License-Identifier: Apache-2.0 */
/* Ties the rooms together: what one turn of the loop leaves behind (memory to close, room for those who wait, news, sessions with
 * work) is seen to before the loop sleeps again. Loop thread only. */
#include "broker.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <uv.h>

#include "alarm.h"
#include "clock.h"
#include "creds.h"
#include "devices.h"
#include "digest.h"
#include "dispatch.h"
#include "keeper.h"
#include "doors.h"
#include "log.h"
#include "notify.h"
#include "proto/cleanup.h"
#include "session.h"

/* A stop waits no longer for clients to read what they were sent, so that none of them delays a restart for all. */
#define STOP_PATIENCE_USEC UINT64_C(500000)

#define DOORMAN_STUCK_MS 60000
#define STATUS_MS 5000
#define N_SIGNALS 3

static const int broker_signals[N_SIGNALS] = {SIGTERM, SIGINT, SIGHUP};

struct broker {
        uv_loop_t loop;
        struct config config;
        int argc;
        char **argv;
        struct house house;
        struct hall hall;
        struct doors doors;
        struct keeper keeper;
        uv_prepare_t prepare;  /* runs broker_settle() before the loop sleeps */
        uv_idle_t idle;        /* keeps it from sleeping while work is left */
        uv_timer_t timer;      /* keeps that end, turns that change */
        uv_timer_t watchdog, status;
        uv_signal_t signals[N_SIGNALS];
        uint64_t timer_usec;   /* when `timer` rings; UINT64_MAX: not set */
        const char *untold;    /* the outcome of a reload, while the service manager could not take it */
        struct alarm *deadline; /* of a stop */
        uint64_t patience_usec; /* of a stop: until then, who has not read its replies is waited for */
        bool registry_made, clean;
};

static struct registry *broker_registry(struct broker *broker) {
        return &broker->house.registry;
}

/* ---- between two sleeps ------------------------------------------------------------------------------------ */

static void broker_on_timer(uv_timer_t *timer) {
        struct broker *broker = timer->data;

        broker->timer_usec = UINT64_MAX; /* what is due is seen to by broker_settle() */
}

static void broker_set_timer(struct broker *broker, uint64_t usec) {
        uint64_t now = clock_monotonic_usec();

        if (usec == broker->timer_usec)
                return;
        broker->timer_usec = usec;
        if (usec == UINT64_MAX)
                uv_timer_stop(&broker->timer);
        else
                uv_timer_start(&broker->timer, broker_on_timer, usec > now ? (usec - now + 999) / 1000 : 0, 0);
}

static void broker_on_idle(uv_idle_t *idle) {
        (void)idle;
}

static bool broker_lanes_idle(const struct broker *broker) {
        for (size_t i = 0; i < broker->house.n_places; i++)
                if (!workplace_idle(&broker->house.places[i]))
                        return false;
        return lane_idle(broker->hall.doorman) && keeper_idle(&broker->keeper);
}

static void broker_free_buffers(struct broker *broker);

/* Of a stop: replies out, then sessions closed, then memory given back. What is in the store stays there. */
static void broker_wind_down(struct broker *broker) {
        bool patient = clock_monotonic_usec() < broker->patience_usec;

        if (!list_empty(&broker->hall.sessions) && sessions_flushed(&broker->hall, patient)) {
                keeper_freeze(&broker->keeper);
                sessions_close_all(&broker->hall, "the daemon stops");
                broker_free_buffers(broker);
                return; /* the memory goes to the lanes in the next turn */
        }
        if (list_empty(&broker->hall.sessions) && list_empty(&broker_registry(broker)->retiring) && broker_lanes_idle(broker)) {
                broker->clean = true;
                uv_stop(&broker->loop);
        }
}

static void broker_settle(uv_prepare_t *prepare) {
        struct broker *broker = prepare->data;
        uint64_t next_usec;
        bool more = hall_settle(&broker->hall, &next_usec);

        if (broker->house.stopping)
                broker_wind_down(broker);
        if (broker->house.stopping && next_usec > broker->patience_usec && clock_monotonic_usec() < broker->patience_usec)
                next_usec = broker->patience_usec;
        if (more)
                uv_idle_start(&broker->idle, broker_on_idle);
        else
                uv_idle_stop(&broker->idle);
        broker_set_timer(broker, next_usec);
}

/* ---- stop, reload, status ---------------------------------------------------------------------------------- */

/* Nobody holds them any more; what is kept need not be. */
static void broker_free_buffers(struct broker *broker) {
        struct registry *registry = broker_registry(broker);
        struct buffer *buffer;
        struct cursor cursor;

        registry_end_detached(registry, clock_real_usec(), clock_monotonic_usec());
        cursor_init_buffers(&cursor, registry);
        while ((buffer = cursor_buffer(&cursor))) {
                cursor_step(&cursor);
                if (!buffer->freed)
                        registry_free(registry, buffer, clock_real_usec(), clock_monotonic_usec());
        }
        cursor_deinit(&cursor);
}

static void broker_on_deadline(void *arg) {
        struct broker *broker = arg;

        log_warning("stopping although work is still under way: a device or a client does not answer");
        keeper_freeze(&broker->keeper);
        sessions_close_all(&broker->hall, "the daemon stops");
        uv_stop(&broker->loop);
}

static void broker_stop(struct broker *broker) {
        struct registry *registry = broker_registry(broker);

        if (broker->house.stopping)
                return;
        broker->house.stopping = true;
        broker->patience_usec = clock_monotonic_usec() + STOP_PATIENCE_USEC;
        doors_close(&broker->doors);
        if (!broker->house.held)
                digest_stop(registry);
        notify_stopping();
        dispatch_stop(&broker->house);
        if (list_empty(&broker->hall.sessions)) {
                keeper_freeze(&broker->keeper);
                broker_free_buffers(broker);
        }
        if (alarm_new(&broker->loop, (uint64_t)broker->config.drain_ms, broker_on_deadline, broker, &broker->deadline) < 0)
                broker_on_deadline(broker);
}

/* The hard limit is what the daemon may use; the soft one is for programs that still call select(). */
static int broker_raise_descriptors(struct limits *limits) {
        struct rlimit limit;

        if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
                return -errno;
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
        if (limits->descriptors == 0 || (uint64_t)limits->descriptors > limit.rlim_cur)
                limits->descriptors = limit.rlim_cur > INT32_MAX ? INT32_MAX : (int64_t)limit.rlim_cur;
        if (limits->descriptors >= LIMITS_DESCRIPTORS_LEAST)
                return 0;
        log_error("the hard limit of open files is %" PRId64 ", too few to serve anybody; give at least %d (LimitNOFILE= in the unit, "
                  "ulimit -Hn, --ulimit nofile= of a container)", limits->descriptors, LIMITS_DESCRIPTORS_LEAST);
        return -EMFILE;
}

static void broker_tell_reloaded(struct broker *broker, const char *outcome) {
        broker->untold = notify_reloaded(outcome) ? NULL : outcome;
}

/* New limits and policy. With a bad file the old ones stay, and the log says why. */
static void broker_reload(struct broker *broker) {
        _cleanup_free_ char *message = NULL, *restart = NULL, *limits = NULL;
        struct config config = {0};
        enum config_action action;
        int r;

        notify_reloading();
        r = config_load(broker->argc, broker->argv, &config, &action, &message);
        if (r == 0) {
                r = broker_raise_descriptors(&config.limits);
                config.limits.stored_descriptors = broker_registry(broker)->limits.stored_descriptors;
        }
        if (r == 0 && !(limits = limits_json(&config.limits)))
                r = -ENOMEM;
        if (r == 0)
                restart = config_needs_restart(&broker->config, &config);
        if (r == 0)
                r = registry_reload(broker_registry(broker), &config.limits, &config.policy);
        if (r < 0) {
                log_error("configuration not reloaded, the old one stays: %s", message ? message : strerror(-r));
                config_deinit(&config);
                broker_tell_reloaded(broker, "configuration not reloaded");
                return;
        }
        for (size_t i = 0; i < broker->house.n_places; i++)
                if (broker->house.places[i].device.kind == DEVICE_HOST)
                        workplace_set_capacity(&broker->house.places[i], config.limits.host_bytes);
        free(broker->house.limits_json);
        broker->house.limits_json = take_ptr(limits);
        log_set_level(config.log_level);
        log_line(LOG_NOTICE, MESSAGE_RELOADED, NULL, 0, "configuration reloaded%s%s", restart ? "; needs a restart: " : "",
                 restart ? restart : "");
        config_deinit(&broker->config);
        broker->config = config;
        broker_tell_reloaded(broker, "configuration reloaded");
}

static void broker_on_signal(uv_signal_t *handle, int signal) {
        if (signal == SIGHUP)
                broker_reload(handle->data);
        else
                broker_stop(handle->data);
}

static void broker_on_watchdog(uv_timer_t *timer) {
        (void)timer;
        notify_watchdog();
}

static void broker_on_status(uv_timer_t *timer) {
        struct broker *broker = timer->data;
        char status[160];

        if (broker->untold)
                broker_tell_reloaded(broker, broker->untold);
        digest_status(&broker->house, status, sizeof(status));
        notify_status(status);
}

/* ---- start ------------------------------------------------------------------------------------------------- */

static bool broker_makes_ahead(const struct house *house) {
        for (size_t i = 0; i < house->n_places; i++)
                if (house->places[i].backend->ahead)
                        return true;
        return false;
}

static void broker_announce_features(struct broker *broker) {
        struct house *house = &broker->house;
        const char *features[] = {
                "draining",
                "waits",
                broker->hall.sender_known ? "sender-credentials" : NULL,
                broker->hall.sender_refuses ? "descriptors-refused-by-kernel" : NULL,
                house->store ? "restart-keeps-buffers" : NULL,
                house->held ? "restart-state-held" : NULL,
                registry_find_device(&house->registry, "host") ? "channels" : NULL,
                broker_makes_ahead(house) ? "spares" : NULL,
        };

        for (size_t i = 0; i < ELEMENTSOF(features); i++)
                if (features[i])
                        house->features[house->n_features++] = features[i];
}

static void broker_mask_signal(int how, int signal) {
        sigset_t signals;

        sigemptyset(&signals);
        sigaddset(&signals, signal);
        pthread_sigmask(how, &signals, NULL);
}

void broker_hold_reloads(void) {
        broker_mask_signal(SIG_BLOCK, SIGHUP);
}

static void broker_make_handles(struct broker *broker) {
        uint64_t watchdog_ms = notify_watchdog_interval_ms();

        uv_prepare_init(&broker->loop, &broker->prepare);
        uv_idle_init(&broker->loop, &broker->idle);
        uv_timer_init(&broker->loop, &broker->timer);
        uv_timer_init(&broker->loop, &broker->watchdog);
        uv_timer_init(&broker->loop, &broker->status);
        broker->prepare.data = broker->timer.data = broker->status.data = broker;
        uv_timer_start(&broker->status, broker_on_status, STATUS_MS, STATUS_MS);
        if (watchdog_ms > 0)
                uv_timer_start(&broker->watchdog, broker_on_watchdog, 0, watchdog_ms);
        for (int i = 0; i < N_SIGNALS; i++) {
                uv_signal_init(&broker->loop, &broker->signals[i]);
                broker->signals[i].data = broker;
                uv_signal_start(&broker->signals[i], broker_on_signal, broker_signals[i]);
        }
        broker_mask_signal(SIG_UNBLOCK, SIGHUP); /* of the start: carried out as soon as the loop turns */
}

/* Everything up to listening. */
static int broker_build(struct broker *broker, struct limits *limits) {
        struct house *house = &broker->house;
        int r;

        list_init(&house->waiting);
        list_init(&house->watching);
        list_init(&house->woken);
        list_init(&broker->hall.sessions);
        list_init(&broker->hall.ready);
        list_init(&broker->hall.late);
        house->loop = &broker->loop;
        house->started_usec = clock_monotonic_usec();
        house->kick = session_kick;
        broker->hall.house = house;
        broker->hall.overflow_uid = creds_overflow_uid();
        r = keeper_begin(&broker->keeper, &broker->config, limits);
        if (r < 0)
                return r;
        r = registry_init(&house->registry, limits, &broker->config.policy);
        if (r < 0)
                return r;
        broker->registry_made = true;
        house->news_seen = house->registry.events.next;
        house->limits_json = limits_json(limits);
        if (!house->limits_json)
                return -ENOMEM;
        r = devices_find(house, &broker->config, broker->keeper.recovery.devices, broker->keeper.recovery.n_devices);
        if (r < 0)
                return r;
        r = lane_new(&broker->loop, "doorman", DOORMAN_STUCK_MS, NULL, NULL, &broker->hall.doorman);
        if (r < 0)
                return r;
        broker_make_handles(broker);
        r = keeper_open(&broker->keeper, house, broker->hall.doorman);
        if (r < 0)
                return r;
        house->news_seen = house->registry.events.next;
        r = doors_open(&broker->doors, &broker->hall, &broker->keeper.handed, broker->config.socket_path, broker->config.admin_socket_path);
        if (r < 0)
                return r;
        broker_announce_features(broker);
        uv_prepare_start(&broker->prepare, broker_settle);
        return 0;
}

int broker_new(int argc, char *argv[], struct config *config_take, struct broker **ret) {
        struct limits limits = config_take->limits;
        int r = broker_raise_descriptors(&limits); /* before libuv wants some: it takes their lack for a fault of its own */
        struct broker *broker;

        if (r < 0)
                return r;
        broker = calloc(1, sizeof(*broker));
        if (!broker)
                return -ENOMEM;
        broker->argc = argc;
        broker->argv = argv;
        broker->config = *config_take;
        *config_take = (struct config){0};
        doors_init(&broker->doors);
        broker->timer_usec = broker->house.pump_usec = UINT64_MAX;
        r = uv_loop_init(&broker->loop);
        if (r < 0) {
                config_deinit(&broker->config);
                free(broker);
                return r;
        }
        r = broker_build(broker, &limits);
        if (r < 0) {
                broker_free(broker);
                return r;
        }
        *ret = broker;
        return 0;
}

/* It ends already: when libuv lets go of a signal, its default would end the process another way. */
static void broker_ignore_signals(void) {
        for (size_t i = 0; i < N_SIGNALS; i++)
                broker_mask_signal(SIG_BLOCK, broker_signals[i]);
}

bool broker_run(struct broker *broker) {
        char status[160];

        doors_announce(&broker->doors);
        digest_status(&broker->house, status, sizeof(status));
        notify_ready(status);
        uv_run(&broker->loop, UV_RUN_DEFAULT);
        broker_ignore_signals();
        return broker->clean;
}

static void broker_close_handle(uv_handle_t *handle, void *arg) {
        (void)arg;
        if (!uv_is_closing(handle))
                uv_close(handle, NULL);
}

void broker_free(struct broker *broker) {
        struct house *house = &broker->house;

        uv_prepare_stop(&broker->prepare); /* the loop runs on, but what it settled is being taken down */
        uv_idle_stop(&broker->idle);
        alarm_cancel(&broker->deadline);
        doors_close(&broker->doors);
        while (broker->hall.doorman && !broker_lanes_idle(broker)) /* of a start that failed half-way */
                uv_run(&broker->loop, UV_RUN_ONCE);
        keeper_stop(&broker->keeper);
        if (broker->registry_made)
                registry_deinit(&house->registry);
        for (size_t i = 0; i < house->n_places; i++)
                workplace_deinit(&house->places[i]);
        keeper_end(&broker->keeper);
        if (broker->hall.doorman)
                lane_close(broker->hall.doorman);
        uv_run(&broker->loop, UV_RUN_NOWAIT);
        uv_walk(&broker->loop, broker_close_handle, NULL);
        uv_run(&broker->loop, UV_RUN_DEFAULT);
        uv_loop_close(&broker->loop);
        devices_end(house);
        free(house->limits_json);
        bytes_deinit(&house->scratch);
        config_deinit(&broker->config);
        free(broker);
}
