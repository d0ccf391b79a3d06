/* SPDX-License-Identifier: Apache-2.0 */
/* help: the table of verbs, read aloud. */
#include "arguments.h"
#include "report.h"
#include "usage.h"

int verb_help(const struct arguments *arguments) {
        const struct verb *verb;

        if (arguments->n_operands == 0) {
                usage_overview(stdout);
                return report_flush();
        }
        verb = verb_find(arguments->operands[0]);
        if (!verb)
                return report_usage(NULL, "there is no verb \"%s\"", arguments->operands[0]);
        usage_verb(stdout, verb);
        return report_flush();
}
