/* SPDX-License-Identifier: Apache-2.0 */
/* Every death between two beats: each call that works on a lane, abandoned at each moment, by a session that ends and a
 * process that exits, in either order; and calls that wait, stream, fail or cannot be answered. The books add up after each
 * step and are empty at the end. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "office.h"
#include "proto/cleanup.h"
#include "tests/support/json.h"
#include "tests/support/suite.h"

#define CAPACITY (INT64_C(256) << 20)
#define CALL(method, parameters) "{\"method\":\"io.gpuipc.Broker." method "\",\"parameters\":{" parameters "}}"
#define MORE(method, parameters) "{\"method\":\"io.gpuipc.Broker." method "\",\"more\":true,\"parameters\":{" parameters "}}"

#define CREATE(more) CALL("ChannelCreate", "\"slots\":4,\"slot_bytes\":100," more)

/* ---- calls with work --------------------------------------------------------------------------------------- */

static const struct {
        const char *name, *call;
        bool two_steps;
} works[] = {
        { "Allocate", CALL("Allocate", "\"size\":5000,\"name\":\"new\""), false },
        { "Allocate kept", CALL("Allocate", "\"size\":5000,\"name\":\"new\",\"keep_ms\":3600000"), false },
        { "Allocate in steps", CALL("Allocate", "\"size\":68000000,\"label\":\"large\""), true },
        { "Open", CALL("Open", "\"name\":\"there\",\"access\":\"ro\",\"label\":\"mine\""), false },
        { "Seal", CALL("Seal", "\"buffer\":\"b1\""), false },
        { "ChannelCreate", CREATE("\"role\":\"producer\",\"name\":\"new\""), true },
        { "ChannelCreate kept", CREATE("\"role\":\"consumer\",\"name\":\"new\",\"keep_ms\":3600000"), true },
        { "ChannelAttach", CALL("ChannelAttach", "\"name\":\"ring\",\"role\":\"consumer\",\"label\":\"mine\""), false },
        { "ChannelAttach as producer", CALL("ChannelAttach", "\"name\":\"ring\",\"role\":\"producer\""), false },
};

static bool attaches(int work) {
        return strncmp(works[work].name, "ChannelAttach", 13) == 0;
}

static bool makes(int work) {
        return strncmp(works[work].name, "Allocate", 8) == 0 || strncmp(works[work].name, "ChannelCreate", 13) == 0;
}

/* A producer's descriptor is there already: nothing is done on the lane. */
static bool is_work(int work) {
        return !strstr(works[work].name, "as producer");
}

enum moment { BEHIND_ANOTHER, AT_WORK, BETWEEN_STEPS, AFTER_WORK, AFTER_FINISH, WRITTEN, N_MOMENTS };
enum death { LEAVES, EXITS_THEN_LEAVES, LEAVES_THEN_EXITS, EXITS, OTHERS_LEAVE_TOO, N_DEATHS };

static bool stocked; /* with a store: what is granted outlives a restart */

static int n_there;  /* buffers in the office before anybody comes */

/* An office where a buffer "there", b1, is held by somebody of the same user; and to attach to, a channel "ring", b2. */
static void furnish(struct office *office, struct caller *owner) {
        office_init(office, CAPACITY);
        if (stocked)
                office_stock(office);
        caller_init(owner, office, 1000);
        gate_permit(&office->gate);
        caller_call(owner, CALL("Allocate", "\"size\":100,\"name\":\"there\",\"mode\":\"0666\""));
        gate_wait_left(&office->gate, 1);
        turn_until(office, owner->n_replies == 1);
        caller_written(owner);
        office_settle(office);
}

static void furnish_for(struct office *office, struct caller *owner, int work) {
        furnish(office, owner);
        n_there = 1;
        if (!attaches(work))
                return;
        gate_permit(&office->gate);
        caller_call(owner, CREATE("\"role\":\"producer\",\"name\":\"ring\",\"mode\":\"0666\""));
        turn_until(office, owner->n_replies == 2);
        caller_written(owner);
        office_settle(office);
        n_there = 2;
}

static bool has_moment(int work, enum moment moment) {
        return is_work(work) ? moment != BETWEEN_STEPS || works[work].two_steps : moment >= AFTER_FINISH;
}

/* Runs the call to the moment; false when it has no such moment. */
static bool run_to(struct office *office, struct caller *caller, struct caller *other, int work, enum moment moment) {
        if (!has_moment(work, moment))
                return false;
        if (moment == BEHIND_ANOTHER) {
                caller_call(other, CALL("Allocate", "\"size\":1"));
                gate_wait_entered(&office->gate, n_there + 1);
        }
        caller_call(caller, works[work].call);
        if (moment == BEHIND_ANOTHER)
                return true;
        if (is_work(work))
                gate_wait_entered(&office->gate, n_there + 1);
        if (moment == AT_WORK)
                return true;
        gate_permit(&office->gate);
        if (is_work(work))
                gate_wait_left(&office->gate, n_there + 1);
        if (moment == BETWEEN_STEPS || moment == AFTER_WORK)
                return true;
        gate_open(&office->gate);
        turn_until(office, caller->n_replies == 1);
        if (moment == WRITTEN)
                caller_written(caller);
        return true;
}

static void die(struct office *office, struct caller *caller, struct caller *owner, enum death death) {
        if (death == OTHERS_LEAVE_TOO) {
                caller_exit(owner);
                caller_leave(owner);
        }
        if (death == EXITS_THEN_LEAVES || death == EXITS)
                caller_exit(caller);
        office_turn(office);
        if (death != EXITS)
                caller_leave(caller);
        office_turn(office);
        if (death == LEAVES_THEN_EXITS)
                caller_exit(caller);
}

START_TEST(death_at_each_moment_of_work) {
        int work = _i / N_DEATHS / N_MOMENTS % (int)ELEMENTSOF(works);
        enum moment moment = _i / N_DEATHS % N_MOMENTS;
        enum death death = _i % N_DEATHS;
        struct caller owner, other, caller;
        struct office office;

        stocked = _i / N_DEATHS / N_MOMENTS >= (int)ELEMENTSOF(works);
        furnish_for(&office, &owner, work);
        caller_init(&other, &office, 1000);
        caller_init(&caller, &office, 1000);
        if (run_to(&office, &caller, &other, work, moment))
                die(&office, &caller, &owner, death);
        gate_open(&office.gate);
        office_settle(&office);
        if (death == EXITS && caller.client) /* its connection was kept by someone, who gets the answer */
                ck_assert_int_eq(caller.n_replies, has_moment(work, moment) ? 1 : 0);
        ck_assert_msg(owner.client || death == OTHERS_LEAVE_TOO, "%s", works[work].name);
        caller_deinit(&caller);
        caller_deinit(&other);
        if (owner.client) { /* and who stays is served */
                caller_call(&owner, CALL("GetStatus", ""));
                ck_assert_int_eq(json_int(owner.reply, "parameters.leases"), n_there);
                ck_assert_int_eq(json_int(owner.reply, "parameters.sessions"), 1);
        }
        caller_deinit(&owner);
        office_settle(&office);
        /* What was to be kept is. */
        while (office.house.registry.keeps.n > 0)
                (void)registry_expire(&office.house.registry, 0, UINT64_MAX);
        office_deinit(&office);
} END_TEST

/* ---- work that fails, replies that cannot be sent ---------------------------------------------------------- */

START_TEST(work_that_fails) {
        static const int errors[] = { ENOMEM, EMFILE, EIO };
        int work = _i / (int)ELEMENTSOF(errors) % (int)ELEMENTSOF(works), error = errors[_i % (int)ELEMENTSOF(errors)];
        struct caller owner, caller;
        struct office office;

        stocked = _i / (int)ELEMENTSOF(errors) >= (int)ELEMENTSOF(works);
        if (!is_work(work))
                return;
        furnish_for(&office, &owner, work);
        caller_init(&caller, &office, 1000);
        office.gate.fail = error;
        caller_call(&caller, works[work].call);
        gate_open(&office.gate);
        office_settle(&office);
        ck_assert_int_eq(caller.n_replies, 1);
        ck_assert(json_is(caller.reply, "error", error == ENOMEM && makes(work) ?
                                                         "io.gpuipc.Broker.OutOfMemory" : "io.gpuipc.Broker.Internal"));
        ck_assert_ptr_null(caller.request);
        ck_assert_int_eq(office.house.registry.n_leases, n_there);
        ck_assert_int_eq(office.house.registry.n_buffers, n_there);
        /* Once more, and now it works. */
        office.gate.fail = 0;
        caller_call(&caller, works[work].call);
        office_settle(&office);
        ck_assert_int_eq(caller.n_replies, 2);
        ck_assert(!strstr(caller.reply, "\"error\""));
        caller_deinit(&caller);
        caller_deinit(&owner);
        while (office.house.registry.keeps.n > 0)
                (void)registry_expire(&office.house.registry, 0, UINT64_MAX);
        office_deinit(&office);
} END_TEST

START_TEST(reply_that_cannot_be_queued) {
        struct caller owner, caller;
        struct office office;

        stocked = _i >= (int)ELEMENTSOF(works);
        furnish_for(&office, &owner, _i % (int)ELEMENTSOF(works));
        caller_init(&caller, &office, 1000);
        gate_open(&office.gate);
        caller.n_refused = 1;
        caller_call(&caller, works[_i % (int)ELEMENTSOF(works)].call);
        office_settle(&office);
        ck_assert_int_eq(caller.n_replies, 0);
        ck_assert_ptr_nonnull(caller.dropped);
        ck_assert_ptr_null(caller.request);
        /* The session is dropped for it, so what the caller was never told of does not last. */
        caller_deinit(&caller);
        office_settle(&office);
        while (office.house.registry.keeps.n > 0)
                (void)registry_expire(&office.house.registry, 0, UINT64_MAX);
        office_settle(&office);
        ck_assert_int_eq(office.house.registry.n_leases, n_there);
        ck_assert_int_eq(office.house.registry.n_buffers, n_there);
        caller_deinit(&owner);
        office_deinit(&office);
} END_TEST

/* ---- waits and streams ------------------------------------------------------------------------------------- */

static const struct {
        const char *call;
        enum request_state state;
} pauses[] = {
        { CALL("Open", "\"name\":\"to-come\",\"wait_ms\":3600000"), REQUEST_WAITING },
        { CALL("Allocate", "\"size\":260000000,\"name\":\"big\",\"wait_ms\":3600000"), REQUEST_WAITING },
        { MORE("Watch", ""), REQUEST_PARKED },
        { MORE("Watch", "\"since\":0"), REQUEST_STREAMING },
};

START_TEST(death_while_it_waits_or_streams) {
        int pause = _i / N_DEATHS;
        enum death death = _i % N_DEATHS;
        struct caller owner, rival, caller;
        struct office office;

        furnish(&office, &owner);
        gate_open(&office.gate);
        caller_init(&rival, &office, 1001);
        caller_init(&caller, &office, 1000);
        caller_call(&rival, CALL("Allocate", "\"size\":50000000"));
        office_settle(&office);
        caller_call(&caller, pauses[pause].call);
        ck_assert_ptr_nonnull(caller.request);
        ck_assert_int_eq(caller.request->state, pauses[pause].state);
        ck_assert_int_eq(caller.client->n_waits, pauses[pause].state == REQUEST_WAITING);
        die(&office, &caller, &owner, death);
        if (death == EXITS && pauses[pause].state == REQUEST_WAITING) {
                ck_assert_ptr_null(caller.request);
                ck_assert(json_is(caller.reply, "error", "io.gpuipc.Broker.AccessDenied"));
                ck_assert_int_eq(caller.client->n_waits, 0);
        }
        /* What it waited for comes, and finds nobody. */
        caller_written(&rival);
        caller_exit(&rival);
        office_settle(&office);
        ck_assert(list_empty(&office.house.waiting));
        ck_assert_int_eq(office.house.registry.n_buffers, death != OTHERS_LEAVE_TOO);
        caller_deinit(&rival);
        caller_deinit(&caller);
        caller_deinit(&owner);
        office_deinit(&office);
} END_TEST

/* The one who waits is served although the one before it in the queue died. */
START_TEST(those_behind_a_dead_one_are_served) {
        struct caller owner, first, second;
        struct office office;

        furnish(&office, &owner);
        gate_open(&office.gate);
        caller_init(&first, &office, 1000);
        caller_init(&second, &office, 1000);
        caller_call(&owner, CALL("Allocate", "\"size\":200000000,\"label\":\"in the way\""));
        office_settle(&office);
        caller_call(&first, CALL("Allocate", "\"size\":260000000,\"wait_ms\":3600000"));
        caller_call(&second, CALL("Allocate", "\"size\":250000000,\"wait_ms\":3600000"));
        ck_assert_int_eq(second.request->state, REQUEST_WAITING);
        caller_exit(&first);
        caller_leave(&first);
        _cleanup_free_ char *lease = caller_reply_text(&owner, "lease");
        char call[128];
        snprintf(call, sizeof(call), CALL("Release", "\"lease\":\"%s\""), lease);
        caller_written(&owner);
        caller_call(&owner, call);
        office_settle(&office);
        ck_assert_int_eq(second.n_replies, 1);
        ck_assert(!strstr(second.reply, "\"error\""));
        caller_deinit(&first);
        caller_deinit(&second);
        caller_deinit(&owner);
        office_deinit(&office);
} END_TEST

/* A reply that lies unwritten keeps the memory, even after the lease it speaks of is over. */
START_TEST(unwritten_reply_keeps_its_descriptor) {
        struct caller owner;
        struct office office;

        furnish(&office, &owner);
        gate_open(&office.gate);
        caller_call(&owner, CALL("Open", "\"name\":\"there\""));
        office_settle(&office);
        ck_assert_uint_eq(owner.n_lent, 1);
        caller_exit(&owner);
        office_settle(&office);
        ck_assert_int_eq(office.house.registry.n_leases, 0);
        ck_assert_int_eq(office.house.registry.n_buffers, 1);
        ck_assert_int_ge(backing_fd(owner.lent[0]->backing, ACCESS_RW), 0);
        caller_written(&owner);
        office_settle(&office);
        ck_assert_int_eq(office.house.registry.n_buffers, 0);
        caller_deinit(&owner);
        office_deinit(&office);
} END_TEST

int main(void) {
        Suite *suite = suite_create("beats");
        TCase *tcase = tcase_create("beats");
        int n = (int)ELEMENTSOF(works);

        tcase_set_timeout(tcase, 30);
        tcase_add_loop_test(tcase, death_at_each_moment_of_work, 0, 2 * n * N_MOMENTS * N_DEATHS);
        tcase_add_loop_test(tcase, work_that_fails, 0, 2 * n * 3);
        tcase_add_loop_test(tcase, reply_that_cannot_be_queued, 0, 2 * n);
        tcase_add_loop_test(tcase, death_while_it_waits_or_streams, 0, (int)ELEMENTSOF(pauses) * N_DEATHS);
        tcase_add_test(tcase, those_behind_a_dead_one_are_served);
        tcase_add_test(tcase, unwritten_reply_keeps_its_descriptor);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
