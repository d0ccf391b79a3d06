/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to the descriptor store. The loop thread owns everything; a pool thread runs store_work() alone, which has the batch for
 * itself. The loop never waits for the manager: not to send, not for the barrier. */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "fault.h"
#include "lane.h"
#include "proto/cleanup.h"

#define STUCK_MS 5000

static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
#define BASE 62

struct store {
        uv_loop_t *loop;
        store_sender *sender;
        struct lane *lane;
        struct job job;
        struct list queue;    /* errand.by_store: to be sent */
        struct list batch;    /* being sent */
        struct list unpassed; /* sent; no barrier since */
        struct list waiting;  /* sent before the barrier that is out */
        bool sending, ask;    /* the batch ends with a barrier */
        int barrier_fd;       /* readable once the barrier has passed; -1: none is out */
        uv_poll_t barrier;
        bool polling;         /* `barrier` is in the loop, or being closed */
        bool stopped, freed;
};

/* ---- names ------------------------------------------------------------------------------------------------- */

void store_name(uint32_t parcel, char ret[STORE_NAME_SIZE]) {
        for (size_t i = STORE_NAME_SIZE - 1; i-- > 0; parcel /= BASE)
                ret[i] = digits[parcel % BASE];
        ret[STORE_NAME_SIZE - 1] = '\0';
}

uint32_t store_number(const char *name) {
        uint32_t number = 0;

        if (strlen(name) != STORE_NAME_SIZE - 1)
                return UINT32_MAX;
        for (; *name; name++) {
                const char *digit = strchr(digits, *name);

                if (!digit)
                        return UINT32_MAX;
                number = number * BASE + (uint32_t)(digit - digits);
        }
        return number;
}

/* ---- sending ----------------------------------------------------------------------------------------------- */

static int store_notify(const char *text, const int *fds, unsigned n) {
        return sd_pid_notify_with_fds(0, 0, text, fds, n);
}

static int sent(int r) {
        return r > 0 ? 0 : r == 0 ? -ENOTCONN : r;
}

static int parcel_put(store_sender *sender, uint32_t parcel, int fd) {
        char text[64], name[STORE_NAME_SIZE];

        store_name(parcel, name);
        snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
        return sent(sender(text, &fd, 1));
}

static int parcel_remove(store_sender *sender, uint32_t parcel) {
        char text[64], name[STORE_NAME_SIZE];

        store_name(parcel, name);
        snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);
        return sent(sender(text, NULL, 0));
}

int store_put_now(uint32_t parcel, int fd) {
        return parcel_put(store_notify, parcel, fd);
}

int store_remove_now(uint32_t parcel) {
        return parcel_remove(store_notify, parcel);
}

static void errand_run(struct errand *errand, store_sender *sender) {
        errand->result = 0;
        for (size_t i = 0; i < errand->n; i++) {
                bool put = errand->what == ERRAND_PUT;
                int r;

                fault_point("Store", put ? "putting" : "removing");
                r = put ? parcel_put(sender, errand->parcels[i], errand->fds[i]) : parcel_remove(sender, errand->parcels[i]);
                fault_point("Store", put ? "put" : "remove");

                if (r < 0 && errand->result == 0)
                        errand->result = r;
        }
}

/* The manager closes its copy of the pipe's end when it has come so far: the other end hangs up then. -1: it cannot be asked. */
static int barrier_send(store_sender *sender) {
        _cleanup_fd_ int ours = -1, theirs = -1;
        int ends[2];

        if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
                return -1;
        ours = ends[0];
        theirs = ends[1];
        return sender("BARRIER=1", &theirs, 1) > 0 ? take_fd(&ours) : -1;
}

static int store_work(struct job *job) {
        struct store *store = container_of(job, struct store, job);
        struct errand *errand;

        list_for_each(errand, &store->batch, by_store)
                errand_run(errand, store->sender);
        if (store->ask)
                store->barrier_fd = barrier_send(store->sender);
        return 0;
}

/* ---- the loop's side --------------------------------------------------------------------------------------- */

static void store_pass(struct list *errands) {
        struct list passed;
        struct list *link;

        list_move_all(errands, &passed);
        while ((link = list_first(&passed))) {
                struct errand *errand = container_of(link, struct errand, by_store);

                list_remove(link);
                errand->passed(errand);
        }
}

static void store_release(struct store *store) {
        if (store->freed && !store->polling)
                free(store);
}

static void store_proceed(struct store *store);

static void barrier_on_close(uv_handle_t *handle) {
        struct store *store = handle->data;

        store->polling = false;
        fd_closep(&store->barrier_fd);
        if (!store->freed)
                store_proceed(store);
        store_release(store);
}

static void barrier_end(struct store *store) {
        if (store->polling && !uv_is_closing((uv_handle_t *)&store->barrier))
                uv_close((uv_handle_t *)&store->barrier, barrier_on_close);
        store_pass(&store->waiting);
}

static void barrier_on_poll(uv_poll_t *poll, int status, int events) {
        (void)status, (void)events;
        barrier_end(poll->data);
}

/* A manager that cannot be asked has no copies either. */
static void barrier_watch(struct store *store) {
        if (store->barrier_fd < 0 || uv_poll_init(store->loop, &store->barrier, store->barrier_fd) < 0) {
                fd_closep(&store->barrier_fd);
                store_pass(&store->waiting);
                return;
        }
        store->barrier.data = store;
        store->polling = true;
        uv_poll_start(&store->barrier, UV_READABLE | UV_DISCONNECT, barrier_on_poll);
}

static void store_done(struct job *job) {
        struct store *store = container_of(job, struct store, job);
        struct list batch;
        struct list *link;

        list_move_all(&store->batch, &batch);
        while ((link = list_first(&batch))) {
                struct errand *errand = container_of(link, struct errand, by_store);

                list_remove(link);
                if (errand->passed)
                        list_append(&store->unpassed, link);
                errand->done(errand);
        }
        store->sending = false; /* what was sent meanwhile has only been queued */
        if (store->ask) {
                store->ask = false;
                list_move_all(&store->unpassed, &store->waiting);
                barrier_watch(store);
        }
        if (store->stopped) {
                store_pass(&store->unpassed);
                barrier_end(store);
        }
        store_proceed(store);
}

static bool store_wants_barrier(const struct store *store) {
        struct errand *errand;

        if (store->polling || store->stopped)
                return false;
        if (!list_empty(&store->unpassed))
                return true;
        list_for_each(errand, &store->queue, by_store)
                if (errand->passed)
                        return true;
        return false;
}

static void store_proceed(struct store *store) {
        if (store->sending)
                return;
        store->ask = store_wants_barrier(store);
        if (list_empty(&store->queue) && !store->ask)
                return;
        list_move_all(&store->queue, &store->batch);
        store->sending = true;
        store->job.uid = 0; /* one for all: in order */
        store->job.work = store_work;
        store->job.done = store_done;
        lane_submit(store->lane, &store->job);
}

void store_send(struct store *store, struct errand *errand) {
        list_init(&errand->by_store);
        list_append(&store->queue, &errand->by_store);
        store_proceed(store);
}

bool store_idle(const struct store *store) {
        return !store->sending && list_empty(&store->queue);
}

bool store_settled(const struct store *store) {
        return store_idle(store) && !store->polling && list_empty(&store->unpassed) && list_empty(&store->waiting);
}

int store_new(uv_loop_t *loop, store_sender *sender, void (*on_stuck)(void *arg, bool stuck), void *arg, struct store **ret) {
        struct store *store = calloc(1, sizeof(*store));
        int r;

        if (!store)
                return -ENOMEM;
        store->loop = loop;
        store->sender = sender ? sender : store_notify;
        store->barrier_fd = -1;
        list_init(&store->queue);
        list_init(&store->batch);
        list_init(&store->unpassed);
        list_init(&store->waiting);
        r = lane_new(loop, "store", STUCK_MS, on_stuck, arg, &store->lane);
        if (r < 0) {
                free(store);
                return r;
        }
        *ret = store;
        return 0;
}

void store_stop(struct store *store) {
        store->stopped = true;
        if (store->sending)
                return; /* store_done() goes on */
        store_pass(&store->unpassed);
        barrier_end(store);
}

void store_free(struct store *store) {
        if (!store)
                return;
        lane_close(store->lane);
        store->freed = true;
        if (store->polling && !uv_is_closing((uv_handle_t *)&store->barrier))
                uv_close((uv_handle_t *)&store->barrier, barrier_on_close);
        store_release(store);
}

/* Since systemd 254 the variable says so. Before, a service that systemd itself started is taken to have one: the unit gives it. */
bool store_offered(int64_t *ret_max) {
        const char *max = getenv("FDSTORE"), *pid = getenv("SYSTEMD_EXEC_PID");

        *ret_max = 0;
        if (!getenv("NOTIFY_SOCKET"))
                return false;
        if (max) {
                *ret_max = strtoll(max, NULL, 10);
                return *ret_max > 0;
        }
        return pid && strtoll(pid, NULL, 10) == getpid();
}
