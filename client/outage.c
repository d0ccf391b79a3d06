/* SPDX-License-Identifier: Apache-2.0 */
/* Patience: pauses that grow, with jitter, so that a thousand clients do not come back at one instant. The thread that has
 * the connection busy enters. Never holds the client's lock while it waits. */
#include "outage.h"

#include <errno.h>
#include <sys/random.h>
#include <time.h>

#include "deadline.h"
#include "error.h"
#include "message.h"
#include "resume.h"

/* Half of it for certain, the other half by chance. */
int64_t outage_pause_usec(unsigned n) {
        int64_t pause = n < 8 ? INT64_C(1000) * OUTAGE_PAUSE_MS << n : INT64_MAX;
        uint32_t chance = 0;

        if (pause > INT64_C(1000) * OUTAGE_PAUSE_MAX_MS)
                pause = INT64_C(1000) * OUTAGE_PAUSE_MAX_MS;
        if (getrandom(&chance, sizeof(chance), GRND_NONBLOCK) != (ssize_t)sizeof(chance))
                chance = (uint32_t)clock_usec();
        return pause / 2 + (int64_t)((uint64_t)(pause / 2) * chance >> 32);
}

static void sleep_until(int64_t usec) {
        struct timespec until = usec_to_timespec(usec);

        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
                ;
}

/* What passes by itself, or may. */
static bool may_pass(const gpuipc_error *error) {
        switch (error->status) {
        case GPUIPC_ERROR_UNREACHABLE:
                return error->system_errno != EACCES && error->system_errno != EPERM && error->system_errno != ENAMETOOLONG &&
                       error->system_errno != EPROTOTYPE;
        case GPUIPC_ERROR_PROTOCOL:
                return false;
        default:
                return true;
        }
}

static bool is_given_up(gpuipc_client *client) {
        bool given_up;

        (void)pthread_mutex_lock(&client->lock);
        given_up = client->given_up;
        (void)pthread_mutex_unlock(&client->lock);
        return given_up;
}

static void set_given_up(gpuipc_client *client, bool given_up) {
        (void)pthread_mutex_lock(&client->lock);
        client->given_up = given_up;
        (void)pthread_mutex_unlock(&client->lock);
}

/* Until when this connection is tried. Once a client has waited in vain, what holds nothing does not wait again. */
static int64_t limit_of(gpuipc_client *client, const struct conn *conn) {
        if (client->restart_ms < 0 || (!resume_wanted(conn) && is_given_up(client)))
                return conn->away_usec;
        return deadline_extend_ms(conn->away_usec, client->restart_ms);
}

static void give_up(gpuipc_client *client, struct conn *conn, const gpuipc_error *error) {
        enum claim_loss why = LOSS_TIME;

        if (client->restart_ms < 0)
                why = LOSS_OFF;
        else if (!may_pass(error))
                why = error->status == GPUIPC_ERROR_UNREACHABLE ? LOSS_REFUSED : LOSS_SESSION;
        conn_close(conn);
        resume_forget(client, conn, why);
        conn->away_usec = 0;
        set_given_up(client, true);
}

void outage_begin(struct conn *conn) {
        int64_t now = clock_usec();
        bool soon = conn->back_usec != 0 && now - conn->back_usec < INT64_C(1000) * OUTAGE_REPEAT_SOON_MS;

        if (conn->away_usec != 0)
                return;
        conn->n_soon = !soon ? 0 : conn->n_soon < OUTAGE_SOON_PAUSES ? conn->n_soon + 1 : OUTAGE_SOON_PAUSES;
        conn->n_retries = 0;
        conn->away_usec = now;
        conn->retry_usec = soon ? now + outage_pause_usec(conn->n_soon) : now;
}

int outage_try(gpuipc_client *client, struct conn *conn, int64_t deadline, gpuipc_error *ret_error) {
        bool again = conn->used;
        gpuipc_error error;
        int64_t limit;
        int r;

        outage_begin(conn);
        limit = limit_of(client, conn);
        r = resume_step(client, conn, limit > conn->away_usec && limit < deadline ? limit : deadline, &error);
        if (r == GPUIPC_OK) {
                conn->away_usec = 0;
                conn->back_usec = clock_usec();
                set_given_up(client, false);
                if (again)
                        atomic_fetch_add(&client->restarts, 1);
                return GPUIPC_OK;
        }
        if (!may_pass(&error) || clock_usec() >= limit) {
                give_up(client, conn, &error);
        } else {
                conn->retry_usec = clock_usec() + outage_pause_usec(conn->n_retries++);
                if (conn->resuming || conn->retry_usec > limit)
                        conn->retry_usec = limit;
        }
        if (ret_error)
                *ret_error = error;
        return r;
}

/* This process lacks something, of which the daemon knows nothing: who waits for the daemon would wait in vain. */
static bool is_our_own(const gpuipc_error *error) {
        int cause = error->status == GPUIPC_ERROR_UNREACHABLE ? error->system_errno : 0;

        return cause == EMFILE || cause == ENFILE || cause == ENOMEM || cause == ENOBUFS;
}

/* What waits for a resume is left as it is by a fault of our own: the next call tries again. */
int outage_mend(gpuipc_client *client, struct conn *conn, int64_t deadline, gpuipc_error *ret_error) {
        for (;;) {
                gpuipc_error error;
                int r = outage_try(client, conn, deadline, &error);
                bool over = r == GPUIPC_OK || conn->away_usec == 0 || is_our_own(&error) || clock_usec() >= deadline;

                if (over && r != GPUIPC_OK && ret_error)
                        *ret_error = error;
                if (over)
                        return r;
                if (!conn->resuming)
                        sleep_until(conn->retry_usec < deadline ? conn->retry_usec : deadline);
        }
}

bool outage_is_hopeful(const gpuipc_client *client, const struct conn *conn) {
        return client->restart_ms >= 0 && (conn->token || !conn->claims);
}

int outage_sees(gpuipc_client *client, struct conn *conn, struct reply *reply, int64_t deadline, gpuipc_error *ret_error) {
        int64_t limit = deadline_after_ms(client->restart_ms);
        int r;

        if (!message_is_stopping(reply) || !outage_is_hopeful(client, conn))
                return GPUIPC_OK;
        reply_deinit(reply);
        *reply = (struct reply){ 0 };
        /* Not closed from here: that would end the session, and the leases with it. */
        conn->owed = true;
        do {
                r = conn_receive(conn, limit < deadline ? limit : deadline, reply, ret_error);
                reply_deinit(reply);
                *reply = (struct reply){ 0 };
        } while (r == GPUIPC_OK);
        return r;
}

int outage_call(gpuipc_client *client, struct conn *conn, const struct bytes *message, int64_t deadline,
                struct reply *ret_reply, gpuipc_error *ret_error) {
        struct reply reply = { 0 };
        int r = conn_call(conn, message, deadline, &reply, ret_error);

        if (r == GPUIPC_OK)
                r = outage_sees(client, conn, &reply, deadline, ret_error);
        if (r == GPUIPC_OK)
                *ret_reply = reply;
        return r;
}

int outage_repeat(gpuipc_client *client, struct conn *conn, int r, struct repeats *repeats, int64_t deadline,
                  gpuipc_error *ret_error) {
        int64_t now = clock_usec();

        if (r != GPUIPC_ERROR_DISCONNECTED)
                return r;
        if (conn->claims && !conn->token) {
                resume_forget(client, conn, resume_loss(client));
                return r;
        }
        if (client->restart_ms < 0)
                return r;
        if (repeats->n > 0 && now - repeats->since_usec >= INT64_C(1000) * OUTAGE_REPEAT_SOON_MS)
                repeats->in_a_row = 0;
        if (repeats->in_a_row >= OUTAGE_REPEATS_MAX)
                return r;
        if (repeats->in_a_row > 0) {
                int64_t until = now + outage_pause_usec(repeats->in_a_row - 1);
                sleep_until(until < deadline ? until : deadline);
        }
        repeats->n++;
        repeats->in_a_row++;
        r = outage_mend(client, conn, deadline, ret_error);
        repeats->since_usec = clock_usec();
        return r;
}
