/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a test program's main(). */
#ifndef SUPPORT_SUITE_H
#define SUPPORT_SUITE_H

#include <check.h>

/* Runs the suite, prints what failed and how many there were, and frees it: the program's exit status. */
int suite_run(Suite *suite);

#endif
