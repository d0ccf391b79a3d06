/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, durations, numbers and command lines as people write them. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/ctl/arguments.h"
#include "client/ctl/parse.h"
#include "proto/schema.h"
#include "tests/support/suite.h"

static void assert_size(const char *text, int64_t expected) {
        int64_t bytes = -7;

        ck_assert_msg(parse_size(text, &bytes) == 0, "%s", text);
        ck_assert_msg(bytes == expected, "%s: %lld", text, (long long)bytes);
}

static void refuse_size(const char *text, int error) {
        int64_t bytes = -7;
        int r = parse_size(text, &bytes);

        ck_assert_msg(r == error, "%s: %d", text, r);
        ck_assert_int_eq(bytes, -7);
}

START_TEST(sizes) {
        assert_size("1", 1);
        assert_size("4096", 4096);
        assert_size("64K", 65536);
        assert_size("64k", 65536);
        assert_size("64KiB", 65536);
        assert_size("2M", 2097152);
        assert_size("1G", 1073741824);
        assert_size("1.5G", 1610612736);
        assert_size(".5M", 524288);
        assert_size("1.K", 1024);
        assert_size("1T", INT64_C(1) << 40);
        assert_size("7.999P", INT64_C(9006073354834150));
        assert_size("0.0001K", 1); /* up to a whole byte */
        assert_size("1.3K", 1332);
        assert_size("1.0", 1);
        assert_size("9007199254740991", SCHEMA_INT_MAX);
}
END_TEST

START_TEST(no_sizes) {
        static const char *const texts[] = { "",    " 1",       "1 ",    "-1",  "+1",   "1KB", "1Kib",
                                             "K",   ".",        "1..5K", "1.5", "0x10", "1e3", "1KK",
                                             "1K1", "\xc3\xbc", "1E",    "inf", "nan" };

        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
                refuse_size(texts[i], -EINVAL);
        refuse_size("0", -ERANGE);
        refuse_size("0K", -ERANGE);
        refuse_size("0.0G", -ERANGE);
        refuse_size("8P", -ERANGE);
        refuse_size("9007199254740992", -ERANGE);
        refuse_size("99999999999999999999999999", -ERANGE);
        refuse_size("1.0000000000001K", -ERANGE);
}
END_TEST

static void assert_duration(const char *text, int64_t expected) {
        int64_t ms = -7;

        ck_assert_msg(parse_duration(text, &ms) == 0, "%s", text);
        ck_assert_msg(ms == expected, "%s: %lld", text, (long long)ms);
}

START_TEST(durations) {
        static const char *const wrong[] = { "",     "s",    "1x",    "-1s", "1 s",     "1s1h",
                                             "1h1h", "1h30", "1ms1s", "1sm", "infinity" };
        int64_t ms = -7;

        assert_duration("0", 0);
        assert_duration("30", 30000);
        assert_duration("0.5", 500);
        assert_duration("500ms", 500);
        assert_duration("30s", 30000);
        assert_duration("5m", 300000);
        assert_duration("1.5h", 5400000);
        assert_duration("1h30m", 5400000);
        assert_duration("1d2h3m4s5ms", 93784005);
        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
                ck_assert_msg(parse_duration(wrong[i], &ms) == -EINVAL, "%s", wrong[i]);
        ck_assert_int_eq(parse_duration("9007199254740991", &ms), -ERANGE);
        ck_assert_int_eq(parse_duration("104249991d24h", &ms), -ERANGE);
        ck_assert_int_eq(ms, -7);
}
END_TEST

START_TEST(numbers_and_users) {
        int64_t number = -7;

        ck_assert_int_eq(parse_number("0", &number), 0);
        ck_assert_int_eq(number, 0);
        ck_assert_int_eq(parse_number("9007199254740991", &number), 0);
        ck_assert_int_eq(number, SCHEMA_INT_MAX);
        ck_assert_int_eq(parse_number("9007199254740992", &number), -ERANGE);
        ck_assert_int_eq(parse_number("", &number), -EINVAL);
        ck_assert_int_eq(parse_number("1a", &number), -EINVAL);
        ck_assert_int_eq(parse_number("-1", &number), -EINVAL);
        ck_assert_int_eq(parse_uid("root", &number), 0);
        ck_assert_int_eq(number, 0);
        ck_assert_int_eq(parse_uid("1234", &number), 0);
        ck_assert_int_eq(number, 1234);
        ck_assert_int_eq(parse_uid("4294967295", &number), -ERANGE);
        ck_assert_int_eq(parse_uid("no such user", &number), -EINVAL);
}
END_TEST

/* ---- command lines ------------------------------------------------------------------------------------------ */

/* Nothing writes to them. */
#define LINE(...) ((char **)(const char *[]){ "gpuipcctl", __VA_ARGS__, NULL })

static int split(struct arguments *ret, char **argv) {
        int argc = 0;

        while (argv[argc])
                argc++;
        return arguments_parse(ret, argc, argv);
}

/* What the parser says on stderr about a wrong line. */
static void refuse(char **argv, const char *part) {
        struct arguments arguments;
        char text[1024] = "";
        int saved = dup(STDERR_FILENO), fd = memfd_create("stderr", MFD_CLOEXEC), r;
        ssize_t n;

        ck_assert(saved >= 0 && fd >= 0 && dup2(fd, STDERR_FILENO) >= 0);
        r = split(&arguments, argv);
        ck_assert(dup2(saved, STDERR_FILENO) >= 0);
        n = pread(fd, text, sizeof(text) - 1, 0);
        ck_assert_int_ge(n, 0);
        ck_assert_int_eq(r, EXIT_BAD_USAGE);
        ck_assert_msg(strstr(text, part), "\"%s\" is not in: %s", part, text);
        ck_assert_ptr_eq(strstr(text, "gpuipcctl: "), text);
        (void)close(saved);
        (void)close(fd);
}

START_TEST(options_stand_anywhere) {
        struct arguments a;

        ck_assert_int_eq(split(&a, LINE("--socket", "/s", "put", "--mode=0640", "name", "--seal", "-", "-k5m",
                                        "-l", "--text")),
                         EXIT_DONE);
        ck_assert_str_eq(a.verb->name, "put");
        ck_assert_str_eq(a.values[OPTION_SOCKET], "/s");
        ck_assert_str_eq(a.values[OPTION_MODE], "0640");
        ck_assert_str_eq(a.values[OPTION_KEEP], "5m");
        ck_assert_str_eq(a.values[OPTION_LABEL], "--text");
        ck_assert(arguments_has(&a, OPTION_SEAL));
        ck_assert(!arguments_has(&a, OPTION_DETACH));
        ck_assert_int_eq(a.n_operands, 2);
        ck_assert_str_eq(a.operands[0], "name");
        ck_assert_str_eq(a.operands[1], "-");
}
END_TEST

START_TEST(letters_join) {
        struct arguments a;

        ck_assert_int_eq(split(&a, LINE("list", "-bjn", "x")), EXIT_DONE);
        ck_assert(arguments_has(&a, OPTION_BYTES) && arguments_has(&a, OPTION_JSON));
        ck_assert_str_eq(a.values[OPTION_NAME], "x");
}
END_TEST

START_TEST(a_command_is_left_alone) {
        struct arguments a;
        char **line = LINE("hold", "name", "--rw", "--", "sh", "--help");

        ck_assert_int_eq(split(&a, line), EXIT_DONE);
        ck_assert(!a.help);
        ck_assert_ptr_eq(a.command, line + 5);
        ck_assert_int_eq(split(&a, LINE("get", "--", "--name")), EXIT_DONE);
        ck_assert_ptr_null(a.command);
        ck_assert_str_eq(a.operands[0], "--name");
}
END_TEST

START_TEST(wrong_lines_are_told) {
        refuse(LINE("nope"), "no verb \"nope\"");
        refuse(LINE("--json"), "a verb's own options follow the verb");
        refuse(LINE("list", "--nope"), "unknown option --nope");
        refuse(LINE("list", "--nope=3"), "unknown option --nope\n");
        refuse(LINE("list", "-z"), "unknown option -z");
        refuse(LINE("list", "--buffers=1"), "--buffers takes no value");
        refuse(LINE("list", "--uid"), "--uid needs a value: --uid UID");
        refuse(LINE("list", "x"), "\"x\" is one too many");
        refuse(LINE("put"), "put needs NAME FILE");
        refuse(LINE("put", "x"), "needs more than \"x\"");
        refuse(LINE("hold", "x", "sh"), "put -- before a command");
        refuse(LINE("hold", "x", "--"), "no command follows --");
        refuse(LINE("hold", "x", "a\033b"), "\"a\\x1bb\"");
}
END_TEST

START_TEST(values_are_checked) {
        struct arguments a;
        int64_t n = -7;

        ck_assert_int_eq(split(&a, LINE("put", "x", "y", "--size", "2M", "--keep", "1m")), EXIT_DONE);
        ck_assert_int_eq(arguments_size(&a, OPTION_SIZE, &n), EXIT_DONE);
        ck_assert_int_eq(n, 2097152);
        ck_assert_int_eq(arguments_duration(&a, OPTION_KEEP, &n), EXIT_DONE);
        ck_assert_int_eq(n, 60000);
        ck_assert_int_eq(arguments_duration(&a, OPTION_WAIT, &n), EXIT_DONE);
        ck_assert_int_eq(n, 60000);
        a.values[OPTION_SIZE] = a.values[OPTION_KEEP] = "x";
        ck_assert_int_eq(arguments_size(&a, OPTION_SIZE, &n), EXIT_BAD_USAGE);
        ck_assert_int_eq(arguments_duration(&a, OPTION_KEEP, &n), EXIT_BAD_USAGE);
        ck_assert_int_eq(n, 60000);
}
END_TEST

START_TEST(the_table_is_sound) {
        for (const struct verb *verb = verbs; verb->name; verb++) {
                bool seen[N_OPTIONS] = { false }, letters[256] = { false };
                const struct option_row *tables[] = { verb->options, common_options };

                ck_assert_ptr_eq(verb_find(verb->name), verb);
                ck_assert_int_le(verb->max_operands, ARGUMENTS_OPERANDS_MAX);
                ck_assert_int_le(verb->min_operands, verb->max_operands);
                for (size_t i = 0; i < 2; i++)
                        for (const struct option_row *row = tables[i]; row->id != OPTION_END; row++) {
                                ck_assert_msg(!seen[row->id], "%s --%s twice", verb->name, row->name);
                                ck_assert_msg(!row->letter || !letters[(unsigned char)row->letter], "%s -%c twice",
                                              verb->name, row->letter);
                                seen[row->id] = letters[(unsigned char)row->letter] = true;
                        }
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("ctl_parse");
        TCase *tcase = tcase_create("ctl_parse");

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, sizes);
        tcase_add_test(tcase, no_sizes);
        tcase_add_test(tcase, durations);
        tcase_add_test(tcase, numbers_and_users);
        tcase_add_test(tcase, options_stand_anywhere);
        tcase_add_test(tcase, letters_join);
        tcase_add_test(tcase, a_command_is_left_alone);
        tcase_add_test(tcase, wrong_lines_are_told);
        tcase_add_test(tcase, values_are_checked);
        tcase_add_test(tcase, the_table_is_sound);
        return suite_run(suite);
}
