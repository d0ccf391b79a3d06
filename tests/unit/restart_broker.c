/* SPDX-License-Identifier: Apache-2.0 */
/* The broker with books. The scripted server's thread answers; the test's threads plan and look. */
#include "restart_broker.h"

#include <check.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/verdict.h"

static void lock(struct restart_broker *broker) {
        (void)pthread_mutex_lock(&broker->lock);
}

static void unlock(struct restart_broker *broker) {
        (void)pthread_mutex_unlock(&broker->lock);
}

/* ---- the books, under the lock ---------------------------------------------------------------------------- */

static unsigned session_of(struct restart_broker *broker, int peer) {
        for (unsigned i = 0; i < broker->n_sessions; i++)
                if (broker->sessions[i].known && broker->sessions[i].peer == peer)
                        return i;
        ck_assert_uint_lt(broker->n_sessions, BROKER_SESSIONS_MAX);
        broker->sessions[broker->n_sessions].peer = peer;
        broker->sessions[broker->n_sessions].known = true;
        broker->sessions[broker->n_sessions].token = broker->sessions[broker->n_sessions].before = broker->n_sessions * 100000;
        return broker->n_sessions++;
}

static void crash_locked(struct restart_broker *broker) {
        broker->n_crashes++;
        broker->stopping = false;
        for (unsigned i = 0; i < broker->n_leases; i++)
                broker->leases[i].listed = false;
        broker->plan.method = NULL;
        broker->n_waiting = 0;
        if (broker->down_at_crash)
                fake_down(broker->fake, ENOENT);
        broker->down_at_crash = false;
        broker->n_dead = fake_peers(broker->fake);
        for (unsigned i = 0; i < broker->n_sessions; i++) {
                broker->sessions[i].peer = -1;
                broker->sessions[i].partly = false;
                if (broker->store != STORE_NONE && broker->store != STORE_FORGETS)
                        continue;
                broker->sessions[i].known = false;
                for (unsigned j = 0; j < broker->n_leases; j++)
                        broker->leases[j].live = broker->leases[j].live && broker->leases[j].session != i;
        }
        free(broker->held_call);
        broker->held_call = NULL;
        fake_hang_up_all(broker->fake);
}

/* Notes the leases that the call lists. */
static void note_listed(struct restart_broker *broker, const char *call, unsigned session, unsigned omit) {
        for (const char *at = call; (at = strstr(at, "\"l")); at += 2) {
                char *end;
                unsigned long n = strtoul(at + 2, &end, 10);

                if (end > at + 2 && *end == '"' && n < broker->n_leases && n != omit && broker->leases[n].session == session)
                        broker->leases[n].listed = true;
        }
}

/* ---- answers: JSON, heap ---------------------------------------------------------------------------------- */

#define SERVICE_ERROR "org.varlink.service."
#define BROKER_ERROR "io.gpuipc.Broker."

__attribute__((format(printf, 1, 2))) static char *text(const char *format, ...) {
        char *out = NULL;
        va_list list;

        va_start(list, format);
        ck_assert_int_ge(vasprintf(&out, format, list), 0);
        va_end(list);
        return out;
}

static char *grant_new(struct restart_broker *broker, int peer) {
        char id[32], lease[32];
        unsigned n = broker->n_leases++;

        ck_assert_uint_lt(n, BROKER_LEASES_MAX);
        broker->leases[n].session = session_of(broker, peer);
        broker->leases[n].live = true;
        (void)snprintf(id, sizeof(id), "b%u", n);
        (void)snprintf(lease, sizeof(lease), "l%u", n);
        return fake_grant(&(struct fake_grant){ .id = id, .lease = lease, .size = BROKER_BYTES });
}

static char *release(struct restart_broker *broker, int peer, const char *call) {
        const char *at = strstr(call, "\"lease\":\"l");
        unsigned n = at ? (unsigned)strtoul(at + 10, NULL, 10) : BROKER_LEASES_MAX;

        if (n >= broker->n_leases || !broker->leases[n].live || broker->leases[n].session != session_of(broker, peer))
                return text("{\"error\":\"" BROKER_ERROR "NoSuchLease\",\"parameters\":{}}");
        broker->leases[n].live = false;
        return text("{\"parameters\":{}}");
}

static char *once(struct restart_broker *broker, bool *done, const char *error) {
        if (*done && broker->strict_seal)
                return text("{\"error\":\"" BROKER_ERROR "%s\",\"parameters\":{}}", error);
        *done = true;
        return text("{\"parameters\":{}}");
}

static char *status(struct restart_broker *broker, int peer) {
        unsigned session = session_of(broker, peer);

        if (broker->store == STORE_NONE)
                return text("%s", fake_status);
        return text("{\"parameters\":{\"version\":\"1\",\"backend\":\"host\",\"uptime_usec\":1,\"session\":\"s%u\",\"resume_token\":"
                    "\"t%u\",\"features\":[],\"devices\":[],\"buffers\":0,\"leases\":0,\"sessions\":1,\"limits\":{}}}", session,
                    broker->sessions[session].token);
}

/* Of one session, or with `session` BROKER_SESSIONS_MAX of all; from the i-th on. */
static char *leases_of(struct restart_broker *broker, const char *before, unsigned session, unsigned i, unsigned end,
                       const char *after) {
        size_t size = 0;
        char *out = NULL;
        FILE *file = open_memstream(&out, &size);
        bool any = false;

        ck_assert_ptr_nonnull(file);
        (void)fputs(before, file);
        for (; i < end; i++) {
                if (!broker->leases[i].live || (session < BROKER_SESSIONS_MAX && broker->leases[i].session != session))
                        continue;
                (void)fprintf(file, "%s{\"id\":\"l%u\",\"buffer\":\"b%u\",\"name\":null,\"size\":1,\"device\":\"host\",\"access\":\"rw\","
                              "\"state\":\"active\",\"session\":\"s\",\"pid\":1,\"uid\":0,\"gid\":0,\"since_usec\":1}", any ? "," : "",
                              i, i);
                any = true;
        }
        (void)fputs(after, file);
        (void)fclose(file);
        return out;
}

static char *leases_text(struct restart_broker *broker, const char *before, unsigned i, unsigned end, const char *after) {
        return leases_of(broker, before, BROKER_SESSIONS_MAX, i, end, after);
}

static bool has_token(const char *call, unsigned token) {
        char word[32];

        (void)snprintf(word, sizeof(word), "\"token\":\"t%u\"", token);
        return strstr(call, word);
}

static char *resume(struct restart_broker *broker, int peer, const char *call) {
        char tail[64];
        unsigned i, omit = broker->omit ? (unsigned)strtoul(broker->omit + 1, NULL, 10) : BROKER_LEASES_MAX;

        if (broker->store == STORE_OLD)
                return text("{\"error\":\"" SERVICE_ERROR "MethodNotFound\",\"parameters\":{\"method\":\"" BROKER_ERROR "Resume\"}}");
        if (broker->store == STORE_DENIES)
                return text("{\"error\":\"" BROKER_ERROR "AccessDenied\",\"parameters\":{\"reason\":\"not you\"}}");
        if (broker->store == STORE_BUSY_ONCE) {
                broker->store = STORE_KEEPS;
                return text("{\"error\":\"" BROKER_ERROR "TooManyRequests\",\"parameters\":{\"reason\":\"later\"}}");
        }
        for (i = 0; i < broker->n_sessions; i++)
                if (broker->sessions[i].known && (broker->sessions[i].peer < 0 || broker->sessions[i].partly) &&
                    (has_token(call, broker->sessions[i].token) || has_token(call, broker->sessions[i].before)))
                        break;
        if (i == broker->n_sessions)
                return text("{\"error\":\"" BROKER_ERROR "NoSuchSession\",\"parameters\":{}}");
        broker->n_resumes++;
        broker->sessions[i].peer = peer;
        if (has_token(call, broker->sessions[i].token))
                broker->sessions[i].before = broker->sessions[i].token;
        broker->sessions[i].token++;
        broker->sessions[i].partly = strstr(call, "\"follow\"");
        note_listed(broker, call, i, omit);
        for (unsigned j = 0; j < broker->n_leases && !broker->sessions[i].partly; j++)
                if (broker->leases[j].session == i)
                        broker->leases[j].live = broker->leases[j].live && broker->leases[j].listed;
        (void)snprintf(tail, sizeof(tail), "],\"session\":\"s%u\",\"resume_token\":\"t%u\"}}", i, broker->sessions[i].token);
        return leases_of(broker, "{\"parameters\":{\"leases\":[", i, 0, broker->n_leases, tail);
}

static char *open_call(struct restart_broker *broker, int peer, const char *call) {
        if (!broker->no_names)
                return grant_new(broker, peer);
        if (!strstr(call, "wait_ms"))
                return text("{\"error\":\"" BROKER_ERROR "NoSuchBuffer\",\"parameters\":{}}");
        ck_assert_uint_lt(broker->n_waiting, 8);
        broker->waiting[broker->n_waiting++] = peer;
        return NULL;
}

#define STOPPING "{\"error\":\"" BROKER_ERROR "TooManyRequests\",\"parameters\":{\"reason\":\"" VERDICT_REASON_STOPPING "\"}}"

static char *answer(struct restart_broker *broker, int peer, const char *call) {
        if (broker->stopping)
                return text(STOPPING);
        for (unsigned i = 0; i < broker->n_sessions; i++)
                if (broker->sessions[i].peer == peer)
                        broker->sessions[i].before = broker->sessions[i].token;
        if (strstr(call, ".Allocate\""))
                return grant_new(broker, peer);
        if (strstr(call, ".Open\""))
                return open_call(broker, peer, call);
        if (strstr(call, ".Release\""))
                return release(broker, peer, call);
        if (strstr(call, ".GetStatus\""))
                return status(broker, peer);
        if (strstr(call, ".Resume\""))
                return resume(broker, peer, call);
        if (strstr(call, ".Seal\""))
                return once(broker, &broker->sealed, "AlreadySealed");
        if (strstr(call, ".Free\""))
                return once(broker, &broker->freed, "NoSuchBuffer");
        if (strstr(call, ".Kick\""))
                return once(broker, &broker->kicked, "NoSuchSession");
        if (strstr(call, ".ListBuffers\""))
                return text("{\"parameters\":{\"buffers\":[]}}");
        if (strstr(call, ".List\""))
                return leases_text(broker, "{\"parameters\":{\"leases\":[", 0, broker->n_leases, "]}}");
        if (strstr(call, ".GetInfo\""))
                return text("{\"parameters\":{\"vendor\":\"v\",\"product\":\"p\",\"version\":\"1\",\"url\":\"u\",\"interfaces\":[]}}");
        return NULL; /* a Watch: the test sends */
}

/* A list in pages, of which a plan lets only the first come out. */
static void send_pages(struct restart_broker *broker, int peer) {
        size_t n = 0;

        for (unsigned i = 0; i < broker->n_leases; n++) {
                unsigned end = i + (unsigned)broker->page;
                char *page;

                if (broker->plan.method && n == broker->break_after_pages) {
                        crash_locked(broker);
                        return;
                }
                end = end < broker->n_leases ? end : broker->n_leases;
                page = leases_text(broker, "{\"parameters\":{\"leases\":[", i, end,
                                   end < broker->n_leases ? "]},\"continues\":true}" : "]}}");
                fake_send(broker->fake, peer, page);
                free(page);
                i = end;
        }
}

static void send_reply(struct restart_broker *broker, int peer, const char *call, const char *reply, size_t n) {
        bool grant = strstr(call, ".Allocate\"") || strstr(call, ".Open\"");

        if (n > 0)
                fake_send_bytes(broker->fake, peer, reply, n, &broker->fd, grant ? 1 : 0);
}

static void broker_answer(struct fake *fake, int peer, const char *call, void *data) {
        struct restart_broker *broker = data;
        struct broker_plan plan;
        char *reply = NULL;

        (void)fake;
        lock(broker);
        plan = broker->plan;
        if (peer < broker->n_dead) {
                unlock(broker); /* it speaks to the dead */
                return;
        }
        if (!*call || (broker->always && strstr(call, broker->always)) || (plan.method && strstr(call, plan.method) && plan.before)) {
                crash_locked(broker);
        } else if (broker->store == STORE_SILENT && strstr(call, ".Resume\"")) {
                free(broker->held_call);
                broker->held_call = strdup(call);
                broker->held_peer = peer;
        } else if (broker->page > 0 && strstr(call, ".List\"")) {
                send_pages(broker, peer);
        } else if ((reply = answer(broker, peer, call))) {
                size_t n = strlen(reply) + 1;

                broker->reply_bytes = n;
                if (plan.method && strstr(call, plan.method)) {
                        send_reply(broker, peer, call, reply, plan.n_bytes < n ? plan.n_bytes : n);
                        crash_locked(broker);
                } else {
                        send_reply(broker, peer, call, reply, n);
                }
        }
        unlock(broker);
        free(reply);
}

/* ---- for the test ----------------------------------------------------------------------------------------- */

struct restart_broker *broker_start(void) {
        struct restart_broker *broker = calloc(1, sizeof(*broker));

        ck_assert_ptr_nonnull(broker);
        (void)pthread_mutex_init(&broker->lock, NULL);
        broker->fd = fake_memfd(BROKER_BYTES, false);
        lock(broker);
        broker->fake = fake_start(broker_answer, broker);
        unlock(broker);
        return broker;
}

void broker_stop(struct restart_broker *broker) {
        fake_stop(broker->fake);
        (void)close(broker->fd);
        free(broker->held_call);
        (void)pthread_mutex_destroy(&broker->lock);
        free(broker);
}

void broker_plan(struct restart_broker *broker, struct broker_plan plan) {
        lock(broker);
        broker->plan = plan;
        unlock(broker);
}

void broker_stopping(struct restart_broker *broker) {
        lock(broker);
        broker->stopping = true;
        for (size_t i = 0; i < broker->n_waiting; i++)
                fake_send(broker->fake, broker->waiting[i], STOPPING);
        broker->n_waiting = 0;
        unlock(broker);
}

void broker_always(struct restart_broker *broker, const char *method) {
        lock(broker);
        broker->always = method;
        unlock(broker);
}

bool broker_planned(struct restart_broker *broker) {
        bool planned;

        lock(broker);
        planned = broker->plan.method != NULL;
        unlock(broker);
        return planned;
}

void broker_crash_planning(struct restart_broker *broker, struct broker_plan plan) {
        lock(broker);
        crash_locked(broker);
        broker->plan = plan;
        unlock(broker);
}

void broker_crash(struct restart_broker *broker) {
        broker_crash_planning(broker, (struct broker_plan){ 0 });
}

void broker_grant_waiting(struct restart_broker *broker, size_t n_bytes) {
        char *reply;
        int peer;

        lock(broker);
        ck_assert_uint_gt(broker->n_waiting, 0);
        peer = broker->waiting[0];
        broker->waiting[0] = broker->waiting[--broker->n_waiting];
        reply = grant_new(broker, peer);
        send_reply(broker, peer, ".Open\"", reply, n_bytes < strlen(reply) ? n_bytes : strlen(reply) + 1);
        if (n_bytes < strlen(reply))
                crash_locked(broker);
        unlock(broker);
        free(reply);
}

void broker_answer_resumes(struct restart_broker *broker) {
        char *call, *reply;

        lock(broker);
        broker->store = STORE_KEEPS;
        call = broker->held_call;
        broker->held_call = NULL;
        ck_assert_ptr_nonnull(call);
        reply = answer(broker, broker->held_peer, call);
        fake_send(broker->fake, broker->held_peer, reply);
        unlock(broker);
        free(call);
        free(reply);
}

static size_t count(struct restart_broker *broker, bool attached) {
        size_t n = 0;

        lock(broker);
        for (unsigned i = 0; i < broker->n_leases; i++)
                n += broker->leases[i].live && (!attached || broker->sessions[broker->leases[i].session].peer >= 0);
        unlock(broker);
        return n;
}

size_t broker_leases(struct restart_broker *broker) {
        return count(broker, false);
}

size_t broker_attached(struct restart_broker *broker) {
        return count(broker, true);
}

bool broker_has(struct restart_broker *broker, const char *lease) {
        unsigned n = (unsigned)strtoul(lease + 1, NULL, 10);
        bool live;

        lock(broker);
        live = n < broker->n_leases && broker->leases[n].live;
        unlock(broker);
        return live;
}

unsigned broker_resumes(struct restart_broker *broker) {
        unsigned n;

        lock(broker);
        n = broker->n_resumes;
        unlock(broker);
        return n;
}

size_t broker_reply_bytes(struct restart_broker *broker) {
        size_t n;

        lock(broker);
        n = broker->reply_bytes;
        unlock(broker);
        return n;
}

/* ---- its clients ------------------------------------------------------------------------------------------ */

gpuipc_client *broker_connect(struct restart_broker *broker, int timeout_ms, int restart_ms, int no_thread) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client;
        gpuipc_error error;

        options.socket_path = broker->fake->path;
        options.timeout_ms = timeout_ms;
        options.restart_ms = restart_ms;
        options.no_thread = no_thread;
        ck_assert_msg(gpuipc_connect(&options, &client, &error) == GPUIPC_OK, "%s", error.message);
        return client;
}

gpuipc_buffer *broker_allocate(gpuipc_client *client) {
        gpuipc_buffer *buffer;
        gpuipc_error error;

        ck_assert_msg(gpuipc_allocate(client, BROKER_BYTES, NULL, &buffer, &error) == GPUIPC_OK, "%s", error.message);
        return buffer;
}
