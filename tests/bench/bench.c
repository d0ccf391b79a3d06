/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of the benchmarks. Targets are shown; only a miss by an order of magnitude fails, since machines differ. */
#include "bench.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define FAR 10.0

static int far_misses;

int bench_main(const TTest *test) {
        Suite *suite = suite_create("bench");
        TCase *tcase = tcase_create("bench");
        tcase_set_timeout(tcase, 300);
        tcase_add_test(tcase, test);
        suite_add_tcase(suite, tcase);
        SRunner *runner = srunner_create(suite);
        /* Here, so that affinity and results stay in one process. */
        srunner_set_fork_status(runner, CK_NOFORK);
        srunner_run_all(runner, CK_SILENT);
        int n_failed = srunner_ntests_failed(runner);
        if (n_failed > 0)
                srunner_print(runner, CK_VERBOSE);
        srunner_free(runner);
        return n_failed || far_misses ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int ascending(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

double bench_median(double *values, size_t n) {
        qsort(values, n, sizeof(*values), ascending);
        return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void bench_pin(void) {
        cpu_set_t allowed, one;
        int cpu = 0;
        ck_assert_int_eq(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
        while (!CPU_ISSET(cpu, &allowed))
                cpu++;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
}

static void report(const char *name, double value, const char *unit, const char *relation, double target, int met,
                   int near) {
        printf("  %-58s %9.2f %-6s target %s %.4g: %s\n", name, value, unit, relation, target,
               met    ? "met"
               : near ? "MISSED"
                      : "MISSED by more than ten times");
        fflush(stdout);
        far_misses += !met && !near;
}

void bench_at_least(const char *name, double value, const char *unit, double target) {
        report(name, value, unit, ">=", target, value >= target, value >= target / FAR);
}

void bench_at_most(const char *name, double value, const char *unit, double target) {
        report(name, value, unit, "<=", target, value <= target, value <= target * FAR);
}
