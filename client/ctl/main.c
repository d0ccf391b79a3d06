/* SPDX-License-Identifier: Apache-2.0 */
/* gpuipcctl: parses the command line, runs one verb, answers its exit code. One thread. */
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "arguments.h"
#include "client/doctor/child.h"
#include "report.h"
#include "usage.h"

/* A descriptor opened later must not become one of the standard three; using one that was closed stays an error. */
static void standard_open(void) {
        int fd;

        do
                fd = open("/dev/null", O_CLOEXEC | (fcntl(STDIN_FILENO, F_GETFD) < 0 ? O_WRONLY : O_RDONLY));
        while (fd >= 0 && fd <= STDERR_FILENO);
        if (fd >= 0)
                (void)close(fd);
}

int main(int argc, char **argv) {
        struct arguments arguments;
        int r;

        if (argc > 0 && strcmp(argv[0], CHILD_NAME) == 0)
                return child_main(argc, argv);
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
        if (arguments_has(&arguments, OPTION_VERSION))
                arguments.verb = verb_find("version");
        if (!arguments.verb) {
                usage_overview(stderr);
                return EXIT_BAD_USAGE;
        }
        return arguments.verb->run(&arguments);
}
