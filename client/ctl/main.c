/* SPDX-License-Identifier: Apache-2.0 */
/* gpuipcctl: parses the command line, runs one verb, answers its exit code. One thread. */
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <unistd.h>

#include "arguments.h"
#include "report.h"
#include "usage.h"

/* A descriptor opened later must not become standard output. */
static void standard_open(void) {
        int fd;

        do
                fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        while (fd >= 0 && fd <= STDERR_FILENO);
        if (fd >= 0)
                (void)close(fd);
}

int main(int argc, char **argv) {
        struct arguments arguments;
        int r;

        standard_open();
        (void)setlocale(LC_CTYPE, "");
        r = arguments_parse(&arguments, argc, argv);
        if (r != EXIT_DONE)
                return r;
        if (arguments.help) {
                if (arguments.verb)
                        usage_verb(stdout, arguments.verb);
                else
                        usage_overview(stdout);
                return report_flush();
        }
        if (arguments.version)
                arguments.verb = verb_find("version");
        if (!arguments.verb) {
                usage_overview(stderr);
                return EXIT_BAD_USAGE;
        }
        return arguments.verb->run(&arguments);
}
