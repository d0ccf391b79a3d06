/* SPDX-License-Identifier: Apache-2.0 */
/* A channel as JSON: every member is there, known or not, whatever the name holds. */
#include <check.h>
#include <string.h>

#include "client/ctl/channel_json.h"
#include "tests/support/suite.h"

static char *text_of(const struct channel_seen *seen, const struct channel_seen *before) {
        static char text[4096];
        struct bytes out = { 0 };

        channel_json_put(&out, seen, before);
        ck_assert(!out.failed);
        ck_assert_uint_lt(out.n, sizeof(text));
        (void)memcpy(text, out.data, out.n);
        text[out.n] = 0;
        bytes_deinit(&out);
        return text;
}

static struct channel_seen seen_of(char *name) {
        struct channel_seen seen = { .id = (char *)(uintptr_t)"b1", .name = name, .device = (char *)(uintptr_t)"host",
                                     .facts = { .kind = GPUIPC_CHANNEL_BROADCAST, .policy = GPUIPC_CHANNEL_DROP_OLDEST, .slots = 4,
                                                .slot_bytes = 9 } };
        return seen;
}

START_TEST(without_figures) {
        struct channel_seen seen = seen_of(NULL);

        ck_assert_str_eq(text_of(&seen, NULL), "{\"id\":\"b1\",\"name\":null,\"device\":\"host\",\"kind\":\"broadcast\","
                                               "\"policy\":\"drop_oldest\",\"slots\":4,\"slot_bytes\":9,\"figures\":null}");
} END_TEST

START_TEST(with_figures) {
        char name[] = "a\"\n";
        struct channel_seen before = seen_of(name), now;

        before.looked = true;
        before.at_usec = 1000000;
        before.stats = (gpuipc_channel_stats)GPUIPC_CHANNEL_STATS_INIT;
        before.stats.n_members = 2;
        before.stats.members[0] = (gpuipc_channel_member){ .number = 3, .alive = 1, .bytes = 100, .pid = -1 };
        before.stats.members[1] = (gpuipc_channel_member){ .number = 7, .role = GPUIPC_CHANNEL_CONSUMER, .drops = 2, .broken = 1,
                                                           .lag = UINT64_MAX, .pid = 42 };
        ck_assert_ptr_nonnull(strstr(text_of(&before, NULL), "\"items_per_second\":null,\"bytes_per_second\":null,"));
        now = before;
        now.at_usec = 1500000;
        now.stats.begun = 10;
        now.stats.depth = 4;
        now.stats.closed = 1;
        now.stats.members[0].bytes = 150;
        ck_assert_str_eq(text_of(&now, &before),
                         "{\"id\":\"b1\",\"name\":\"a\\\"\\n\",\"device\":\"host\",\"kind\":\"broadcast\",\"policy\":\"drop_oldest\","
                         "\"slots\":4,\"slot_bytes\":9,\"figures\":{\"items\":10,\"depth\":4,\"closed\":true,\"items_per_second\":20.0,"
                         "\"bytes_per_second\":100.0,\"producers\":1,\"consumers\":1,\"drops\":2,\"broken\":1,\"members\":["
                         "{\"number\":3,\"role\":\"producer\",\"alive\":true,\"pid\":null,\"items\":0,\"bytes\":150,\"drops\":0,"
                         "\"broken\":0,\"lag\":0},{\"number\":7,\"role\":\"consumer\",\"alive\":false,\"pid\":42,\"items\":0,\"bytes\":0,"
                         "\"drops\":2,\"broken\":1,\"lag\":18446744073709551615}]}}");
} END_TEST

int main(void) {
        Suite *suite = suite_create("ctl_channel_json");
        TCase *tests = tcase_create("json");

        tcase_add_test(tests, without_figures);
        tcase_add_test(tests, with_figures);
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
