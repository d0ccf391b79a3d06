/* SPDX-License-Identifier: Apache-2.0 */
/* Fault points for tests; empty in ordinary builds. Called from the loop and from pool threads. */
#include "fault.h"

#ifdef GPUIPC_FAULT
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether the comma-separated list in an environment variable holds the word. */
static bool fault_listed(const char *variable, const char *word) {
        const char *list = getenv(variable);
        size_t n = strlen(word);

        while (list && *list) {
                size_t item = strcspn(list, ",");

                if (item == n && memcmp(list, word, n) == 0)
                        return true;
                list += item + (list[item] == ',');
        }
        return false;
}

/* Steps are counted by whichever thread takes them. */
static void fault_step(void) {
        static _Atomic long n_steps;
        const char *last = getenv("GPUIPC_FAULT_KILL");

        if (last && atomic_fetch_add(&n_steps, 1) + 1 == atol(last))
                raise(SIGKILL);
}

void fault_check(bool holds, const char *what) {
        if (holds)
                return;
        fprintf(stderr, "gpuipcd: the books are wrong %s\n", what);
        abort();
}

void fault_point(const char *what, const char *beat) {
        const char *method = strrchr(what, '.'), *fd = getenv("GPUIPC_FAULT_FD");
        char point[64], line[66], go;
        int n;

        if (strcmp(what, "State") == 0 || strcmp(what, "Store") == 0)
                fault_step();
        snprintf(point, sizeof(point), "%s.%s", method ? method + 1 : what, beat);
        if (!fd || !fault_listed("GPUIPC_FAULT_POINT", point))
                return;
        n = snprintf(line, sizeof(line), "%s\n", point);
        if (write(atoi(fd), line, (size_t)n) != n)
                abort();
        while (read(atoi(fd), &go, 1) < 0 && errno == EINTR)
                ;
}

bool fault_absent(const char *option) {
        return fault_listed("GPUIPC_FAULT_ABSENT", option);
}
#endif
