/* SPDX-License-Identifier: Apache-2.0 */
/* gpuipcd: reads its configuration, runs the broker, and says how it ended. */
#include <errno.h>
#include <gpuipc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "broker.h"
#include "devices.h"
#include "log.h"
#include "proto/cleanup.h"
#ifdef HAVE_CUDA
#include "wipe.h"
#endif

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* A driver that hangs would hang the ordinary end too. */
static int serve_end(int status) {
        bool quit = devices_quit();

        log_stop();
        if (!quit)
                _exit(status);
        return status;
}

static void tell_no_log(int error) {
        if (error == EAGAIN)
                fprintf(stderr, "gpuipcd: cannot start a thread: %s; raise the limit of processes (ulimit -u, TasksMax= of the unit)\n",
                        strerror(error));
        else
                fprintf(stderr, "gpuipcd: LogTarget=journal: " LOG_JOURNAL_SOCKET ": %s; start systemd-journald, or give auto or stderr\n",
                        strerror(error));
}

static int serve(int argc, char *argv[], struct config *config) {
        struct broker *broker;
        int r;

        signal(SIGPIPE, SIG_IGN);
        signal(SIGXFSZ, SIG_IGN); /* a buffer over the file size limit is an error, not our end */
        r = log_start(config->log_target, config->log_level);
        if (r < 0) {
                tell_no_log(-r);
                return EXIT_FAILED;
        }
        r = broker_new(argc, argv, config, &broker);
        if (r < 0) {
                log_error("cannot start: %s", strerror(-r));
                return serve_end(EXIT_FAILED);
        }
        if (!broker_run(broker)) {
                log_stop();
                _exit(EXIT_OK); /* a pool thread is stuck in a driver and would be joined for ever */
        }
        broker_free(broker);
        return serve_end(EXIT_OK);
}

int main(int argc, char *argv[]) {
        _cleanup_free_ char *message = NULL;
        struct config config = {0};
        enum config_action action;
        int r;

#ifdef HAVE_CUDA
        if (argc > 1 && strcmp(argv[1], WIPE_OPTION) == 0)
                return wipe_main(argc, argv);
#endif
        broker_hold_reloads();
        r = config_load(argc, argv, &config, &action, &message);
        if (r < 0) {
                fprintf(stderr, "gpuipcd: %s\n", message ? message : strerror(-r));
                return EXIT_USAGE;
        }
        switch (action) {
        case CONFIG_HELP:
                config_print_help(stdout);
                break;
        case CONFIG_VERSION:
                printf("gpuipcd %s\n", GPUIPC_VERSION);
                break;
        case CONFIG_TEST:
                printf("configuration is good\n");
                break;
        case CONFIG_RUN:
                r = serve(argc, argv, &config);
                break;
        }
        config_deinit(&config);
        return r;
}
