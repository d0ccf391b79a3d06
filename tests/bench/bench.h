/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmarks share: a quiet frame for the fixtures of Check, medians, and lines with a target. */
#ifndef BENCH_H
#define BENCH_H

#include <check.h>
#include <stddef.h>

/* Runs one Check test in this process; prints its failure. The exit status. */
int bench_main(const TTest *test);

double bench_median(double *values, size_t n); /* sorts */

/* Keeps this process and what it starts on one processor. */
void bench_pin(void);

/* Prints "name  value unit (target …): met" and counts a miss by more than ten times as a failure of the run. */
void bench_at_least(const char *name, double value, const char *unit, double target);
void bench_at_most(const char *name, double value, const char *unit, double target);

#endif
