/* SPDX-License-Identifier: Apache-2.0 */
/* Errands to the service manager's store: in order, off the loop, and told when the manager has done them. The sender is a
 * stand-in, run on the pool. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/store.h"
#include "tests/support/suite.h"

static uv_loop_t loop;
static struct store *store;
static char said[1024]; /* by the pool thread alone, read when nothing is under way */
static int held[16], fail;
static _Atomic int n_held;
static char ends[256];

/* Barriers are held until the test lets them go. */
static int sender(const char *text, const int *fds, unsigned n) {
        const char *name = strstr(text, "FDNAME=");

        if (fail)
                return -fail;
        if (strcmp(text, "BARRIER=1") == 0) {
                ck_assert_uint_eq(n, 1);
                held[n_held++] = dup(fds[0]);
        }
        snprintf(said + strlen(said), sizeof(said) - strlen(said), "%.6s%s%s ", text, name ? ":" : "", name ? name + 7 : "");
        return 1;
}

struct named {
        struct errand errand;
        char name;
};

static void on_done(struct errand *errand) {
        struct named *named = container_of(errand, struct named, errand);

        snprintf(ends + strlen(ends), sizeof(ends) - strlen(ends), "%c%s ", named->name, errand->result < 0 ? "!" : "");
}

static void on_passed(struct errand *errand) {
        struct named *named = container_of(errand, struct named, errand);

        snprintf(ends + strlen(ends), sizeof(ends) - strlen(ends), "%c. ", named->name);
}

static struct named put(char name, uint32_t parcel) {
        return (struct named){.name = name, .errand = {.what = ERRAND_PUT, .n = 1, .parcels = {parcel}, .fds = {0}, .done = on_done}};
}

static struct named removal(char name, uint32_t parcel) {
        return (struct named){.name = name,
                              .errand = {.what = ERRAND_REMOVE, .n = 1, .parcels = {parcel}, .done = on_done, .passed = on_passed}};
}

static void setup(void) {
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        ck_assert_int_eq(store_new(&loop, sender, NULL, NULL, &store), 0);
        said[0] = ends[0] = '\0';
        n_held = fail = 0;
}

/* Runs until nothing is to be sent; barriers may be out. */
static void run(void) {
        while (!store_idle(store))
                uv_run(&loop, UV_RUN_ONCE);
}

static void let_go(int i) {
        close(held[i]);
        held[i] = -1;
}

static void teardown(void) {
        store_stop(store);
        run();
        store_free(store);
        uv_run(&loop, UV_RUN_DEFAULT);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
        for (int i = 0; i < n_held; i++)
                if (held[i] >= 0)
                        close(held[i]);
}

START_TEST(names_are_four_digits) {
        static const struct {
                uint32_t number;
                const char *name;
        } rows[] = {{0, "0000"}, {1, "0001"}, {9, "0009"}, {10, "000A"}, {61, "000z"}, {62, "0010"}, {14776335, "zzzz"}};
        char name[STORE_NAME_SIZE];

        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
                store_name(rows[i].number, name);
                ck_assert_str_eq(name, rows[i].name);
                ck_assert_uint_eq(store_number(name), rows[i].number);
        }
        ck_assert_uint_eq(store_number("admin"), UINT32_MAX);
        ck_assert_uint_eq(store_number("a-b_"), UINT32_MAX);
        ck_assert_uint_eq(store_number(""), UINT32_MAX);
        ck_assert_uint_eq(store_number("000"), UINT32_MAX);
} END_TEST

START_TEST(in_order_and_never_at_once) {
        struct named a = put('a', 16), b = removal('b', 17), c = put('c', 18), nothing = {.name = 'n', .errand = {.done = on_done}};

        store_send(store, &a.errand);
        store_send(store, &b.errand);
        store_send(store, &nothing.errand);
        store_send(store, &c.errand);
        ck_assert_str_eq(ends, "");
        run();
        ck_assert_str_eq(ends, "a b n c ");
        ck_assert_ptr_nonnull(strstr(said, ":000G FDSTOR:000H"));
        while (n_held == 0)
                uv_run(&loop, UV_RUN_ONCE);
        ck_assert_ptr_null(strstr(ends, "b."));
        let_go(0);
        while (!store_settled(store))
                uv_run(&loop, UV_RUN_ONCE);
        ck_assert_str_eq(ends, "a b n c b. ");
} END_TEST

/* What is removed while a barrier is out waits for the next one, together. */
START_TEST(one_barrier_for_many) {
        struct named first = removal('a', 16), others[5];

        store_send(store, &first.errand);
        run();
        ck_assert_int_eq(n_held, 1);
        for (int i = 0; i < 5; i++) {
                others[i] = removal((char)('b' + i), 20 + (uint32_t)i);
                store_send(store, &others[i].errand);
                run();
        }
        ck_assert_int_eq(n_held, 1);
        ck_assert_str_eq(ends, "a b c d e f ");
        let_go(0);
        while (n_held < 2)
                uv_run(&loop, UV_RUN_ONCE);
        run();
        ck_assert_str_eq(ends, "a b c d e f a. ");
        let_go(1);
        while (!store_settled(store))
                uv_run(&loop, UV_RUN_ONCE);
        ck_assert_str_eq(ends, "a b c d e f a. b. c. d. e. f. ");
        ck_assert_int_eq(n_held, 2);
} END_TEST

START_TEST(puts_need_no_barrier) {
        struct named a = put('a', 16);

        store_send(store, &a.errand);
        run();
        ck_assert_str_eq(ends, "a ");
        ck_assert_int_eq(n_held, 0);
        ck_assert(store_settled(store));
} END_TEST

/* A manager that is gone has no copies: nobody waits for it. */
START_TEST(a_manager_that_is_gone) {
        struct named a = put('a', 16), b = removal('b', 17);

        fail = ECONNREFUSED;
        store_send(store, &a.errand);
        store_send(store, &b.errand);
        run();
        ck_assert_int_eq(a.errand.result, -ECONNREFUSED);
        while (!store_settled(store))
                uv_run(&loop, UV_RUN_ONCE);
        ck_assert_str_eq(ends, "a! b! b. ");
} END_TEST

START_TEST(stopped_while_a_barrier_is_out) {
        struct named a = removal('a', 16), b = removal('b', 17);

        store_send(store, &a.errand);
        run();
        store_send(store, &b.errand);
        run();
        store_stop(store);
        ck_assert_str_eq(ends, "a b b. a. ");
} END_TEST

START_TEST(whether_there_is_one) {
        char pid[16];
        int64_t max;

        unsetenv("NOTIFY_SOCKET");
        unsetenv("SYSTEMD_EXEC_PID");
        setenv("FDSTORE", "100", 1);
        ck_assert(!store_offered(&max));
        setenv("NOTIFY_SOCKET", "/run/n", 1);
        ck_assert(store_offered(&max));
        ck_assert_int_eq(max, 100);
        setenv("FDSTORE", "0", 1);
        ck_assert(!store_offered(&max));
        unsetenv("FDSTORE");
        ck_assert(!store_offered(&max));
        snprintf(pid, sizeof(pid), "%d", (int)getpid());
        setenv("SYSTEMD_EXEC_PID", pid, 1);
        ck_assert(store_offered(&max));
        ck_assert_int_eq(max, 0);
        setenv("SYSTEMD_EXEC_PID", "1", 1);
        ck_assert(!store_offered(&max));
} END_TEST

int main(void) {
        Suite *suite = suite_create("store");
        TCase *tcase = tcase_create("store");

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, names_are_four_digits);
        tcase_add_test(tcase, in_order_and_never_at_once);
        tcase_add_test(tcase, one_barrier_for_many);
        tcase_add_test(tcase, puts_need_no_barrier);
        tcase_add_test(tcase, a_manager_that_is_gone);
        tcase_add_test(tcase, stopped_while_a_barrier_is_out);
        tcase_add_test(tcase, whether_there_is_one);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
