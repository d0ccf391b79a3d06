/* SPDX-License-Identifier: Apache-2.0 */
/* What every beat may need of its request. Loop thread. */
#include "request.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "log.h"

int request_internal(struct request *request, const char *what, int error) {
        char reference[32];

        snprintf(reference, sizeof(reference), "e%" PRIu64, ++request->house->last_reference);
        log_line(LOG_ERR, NULL, &(struct log_field){"REFERENCE", reference}, 1, "%s failed: %s%s%s", what,
                 strerror(error < 0 ? -error : error), request->detail.text[0] ? ": " : "", request->detail.text);
        return fail_subject(&request->failure, VERDICT_INTERNAL, reference);
}
