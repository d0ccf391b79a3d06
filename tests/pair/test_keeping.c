/* SPDX-License-Identifier: Apache-2.0 */
/* The beat between work and finish: what goes into the store before anybody is told, what leaves it and when, and every death and
 * failure on the way. After each turn the state says what the ledger says. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/restore.h"
#include "office.h"
#include "proto/cleanup.h"
#include "tests/support/json.h"
#include "tests/support/suite.h"

#define CALL(method, parameters) "{\"method\":\"io.gpuipc.Broker." method "\",\"parameters\":{" parameters "}}"
#define ALLOCATE CALL("Allocate", "\"size\":5000,\"name\":\"new\"")
#define OPEN CALL("Open", "\"name\":\"there\"")

static struct office office;
static struct caller owner;

/* A buffer "there" in an office with a store; the store's gate is closed from now on. */
static void furnish(void) {
        office_init(&office, INT64_C(256) << 20);
        office_stock(&office);
        gate_open(&office.gate);
        caller_init(&owner, &office, 1000);
        caller_call(&owner, CALL("Allocate", "\"size\":100,\"name\":\"there\",\"mode\":\"0666\""));
        office_settle(&office);
        ck_assert_int_eq(owner.n_replies, 1);
        caller_written(&owner);
        ck_assert_uint_eq(office.shelf.n, 2); /* buffer and process */
}

static void shut(void) {
        pthread_mutex_lock(&office.shelf.gate.lock);
        office.shelf.gate.open = false;
        pthread_mutex_unlock(&office.shelf.gate.lock);
}

static void leave(void) {
        caller_deinit(&owner);
        office_deinit(&office);
}

static void release(struct caller *caller) {
        _cleanup_free_ char *lease = caller_reply_text(caller, "lease");
        char call[128];

        snprintf(call, sizeof(call), CALL("Release", "\"lease\":\"%s\""), lease);
        caller_call(caller, call);
}

START_TEST(nobody_is_told_before_it_is_stored) {
        static const char *const calls[] = {ALLOCATE, OPEN};
        struct caller caller;
        int n_sent;

        furnish();
        caller_init(&caller, &office, 1001);
        n_sent = office.shelf.gate.entered;
        shut();
        caller_call(&caller, calls[_i]);
        turn_until(&office, caller.request->state == REQUEST_STORING);
        gate_wait_entered(&office.shelf.gate, n_sent + 1);
        for (int i = 0; i < 20; i++)
                (void)office_turn(&office);
        ck_assert_int_eq(caller.n_replies, 0);
        ck_assert_int_eq(office.house.registry.n_leases, 1);
        gate_open(&office.shelf.gate);
        office_settle(&office);
        ck_assert_int_eq(caller.n_replies, 1);
        ck_assert(!strstr(caller.reply, "\"error\""));
        ck_assert_uint_eq(office.shelf.n, _i == 0 ? 4 : 3);
        caller_deinit(&caller);
        leave();
} END_TEST

START_TEST(who_is_stored_needs_no_store_to_open) {
        furnish();
        shut();
        caller_call(&owner, OPEN);
        ck_assert_int_eq(owner.n_replies, 2);
        caller_written(&owner);
        release(&owner);
        ck_assert_int_eq(owner.n_replies, 3);
        gate_open(&office.shelf.gate);
        leave();
} END_TEST

/* Two calls of one process at once, over two connections: the second is told after the first's descriptor went. */
START_TEST(one_process_is_stored_once) {
        struct caller first, second;
        int n_sent;

        furnish();
        caller_init(&first, &office, 1001);
        caller_init(&second, &office, 1001);
        first.holder->identity = second.holder->identity = 4711;
        n_sent = office.shelf.gate.entered;
        shut();
        caller_call(&first, OPEN);
        turn_until(&office, first.request->state == REQUEST_STORING);
        caller_call(&second, OPEN);
        turn_until(&office, second.request->state == REQUEST_STORING);
        gate_wait_entered(&office.shelf.gate, n_sent + 1);
        ck_assert_int_eq(first.n_replies + second.n_replies, 0);
        gate_open(&office.shelf.gate);
        office_settle(&office);
        ck_assert_int_eq(first.n_replies + second.n_replies, 2);
        ck_assert_uint_eq(office.shelf.n, 3);
        caller_deinit(&first);
        office_settle(&office);
        ck_assert_uint_eq(office.shelf.n, 3); /* the other still holds */
        caller_deinit(&second);
        office_settle(&office);
        ck_assert_uint_eq(office.shelf.n, 2);
        leave();
} END_TEST

enum death { LEAVES, EXITS, EXITS_THEN_LEAVES, LEAVES_THEN_EXITS, N_DEATHS };

START_TEST(death_while_it_is_stored) {
        enum death death = _i % N_DEATHS;
        struct caller caller;
        int n_sent;

        furnish();
        caller_init(&caller, &office, 1001);
        n_sent = office.shelf.gate.entered;
        shut();
        caller_call(&caller, _i / N_DEATHS == 0 ? ALLOCATE : OPEN);
        turn_until(&office, caller.request->state == REQUEST_STORING);
        gate_wait_entered(&office.shelf.gate, n_sent + 1);
        if (death == EXITS || death == EXITS_THEN_LEAVES)
                caller_exit(&caller);
        (void)office_turn(&office);
        if (death != EXITS)
                caller_leave(&caller);
        (void)office_turn(&office);
        if (death == LEAVES_THEN_EXITS)
                caller_exit(&caller);
        gate_open(&office.shelf.gate);
        office_settle(&office);
        ck_assert_int_eq(caller.n_replies, death == EXITS);
        ck_assert_uint_eq(office.shelf.n, 2);
        caller_deinit(&caller);
        leave();
} END_TEST

START_TEST(a_store_that_fails) {
        struct caller caller;

        furnish();
        caller_init(&caller, &office, 1001);
        office.shelf.gate.fail = ECONNREFUSED;
        caller_call(&caller, _i == 0 ? ALLOCATE : OPEN);
        office_settle(&office);
        ck_assert(json_is(caller.reply, "error", "io.gpuipc.Broker.Internal"));
        ck_assert_int_eq(office.house.registry.n_leases, 1);
        ck_assert_int_eq(office.house.registry.n_buffers, 1);
        office.shelf.gate.fail = 0;
        caller_call(&caller, _i == 0 ? ALLOCATE : OPEN);
        office_settle(&office);
        ck_assert(!strstr(caller.reply, "\"error\""));
        caller_deinit(&caller);
        leave();
} END_TEST

/* The bytes are the device's again only when the manager has let go. */
START_TEST(freed_when_the_manager_has_let_go) {
        furnish();
        caller_written(&owner);
        shut();
        release(&owner);
        for (int i = 0; i < 20; i++)
                (void)office_turn(&office);
        ck_assert_int_eq(office.house.registry.n_leases, 0);
        ck_assert_int_eq(office.place.device.used_bytes, 4096);
        ck_assert_int_eq(office.place.device.draining_bytes, 4096);
        ck_assert_int_eq(office.shelf.n_barriers, 0);
        gate_open(&office.shelf.gate);
        office_settle(&office);
        ck_assert_int_eq(office.place.device.used_bytes, 0);
        ck_assert_int_eq(office.shelf.n_barriers, 1);
        ck_assert_uint_eq(office.shelf.n, 0);
        leave();
} END_TEST

/* Many at once need not as many questions. */
START_TEST(one_barrier_for_many) {
        struct caller caller;
        int n_sent, n_barriers;

        furnish();
        caller_init(&caller, &office, 1001);
        for (int i = 0; i < 12; i++) {
                caller_call(&caller, CALL("Allocate", "\"size\":1"));
                office_settle(&office);
                caller_written(&caller);
        }
        n_sent = office.shelf.gate.entered;
        n_barriers = office.shelf.n_barriers;
        shut();
        caller_exit(&caller);
        (void)office_turn(&office);
        gate_wait_entered(&office.shelf.gate, n_sent + 1);
        gate_open(&office.shelf.gate);
        office_settle(&office);
        ck_assert_uint_eq(office.shelf.n, 2);
        ck_assert_int_le(office.shelf.n_barriers - n_barriers, 2);
        caller_deinit(&caller);
        leave();
} END_TEST

START_TEST(full) {
        struct failure failure;
        struct caller caller;

        furnish();
        office.house.registry.limits.stored_descriptors = 5;
        caller_init(&caller, &office, 1001);
        caller_call(&caller, CALL("Allocate", "\"size\":1"));
        office_settle(&office);
        caller_written(&caller);
        ck_assert_int_eq(office.house.registry.n_stored, 5);
        caller_call(&caller, CALL("Allocate", "\"size\":1"));
        office_settle(&office);
        ck_assert(json_is(caller.reply, "error", "io.gpuipc.Broker.QuotaExceeded"));
        ck_assert(json_is(caller.reply, "parameters.scope", "stored_descriptors"));
        ck_assert_int_eq(json_int(caller.reply, "parameters.limit"), 5);
        ck_assert_int_eq(stored_check(&office.house.registry, caller.holder, caller.client->account, 0, &failure), 0);
        caller_call(&caller, OPEN);
        office_settle(&office);
        ck_assert(!strstr(caller.reply, "\"error\""));
        caller_deinit(&caller);
        leave();
} END_TEST

int main(void) {
        Suite *suite = suite_create("keeping");
        TCase *tcase = tcase_create("keeping");

        tcase_set_timeout(tcase, 30);
        tcase_add_loop_test(tcase, nobody_is_told_before_it_is_stored, 0, 2);
        tcase_add_test(tcase, who_is_stored_needs_no_store_to_open);
        tcase_add_test(tcase, one_process_is_stored_once);
        tcase_add_loop_test(tcase, death_while_it_is_stored, 0, 2 * N_DEATHS);
        tcase_add_loop_test(tcase, a_store_that_fails, 0, 2);
        tcase_add_test(tcase, freed_when_the_manager_has_let_go);
        tcase_add_test(tcase, one_barrier_for_many);
        tcase_add_test(tcase, full);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
