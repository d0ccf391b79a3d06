/* SPDX-License-Identifier: Apache-2.0 */
/* One thing that was found: how bad, which code, in whose field, why, and what to do. */
#ifndef DOCTOR_FINDING_H
#define DOCTOR_FINDING_H

#include "client/doctor_codes.h"

enum finding_level {
        FINDING_OK,
        FINDING_NOTE, /* to know */
        FINDING_WARN, /* something will not work, or not well */
        FINDING_FAIL, /* sharing does not work */
        N_FINDING_LEVELS,
};

struct finding {
        enum finding_level level;
        enum doctor_code code;
        const char *check;   /* static: whose field, "socket" */
        const char *cause;   /* one or more sentences */
        const char *fix;     /* as advice() words it; NULL: nothing is to be done */
        const char *figures; /* a JSON object of what was measured; NULL: nothing was */
};

/* "ok", "note", "warn", "fail". */
const char *finding_level_name(enum finding_level level);

#endif
