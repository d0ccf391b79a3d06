/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration files of a test's own. */
#include "config_files.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

char config_root[64];
char config_path[96];

void config_setup(void) {
        strcpy(config_root, "/tmp/gpuipc-test-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(config_root));
        snprintf(config_path, sizeof(config_path), "%s/gpuipcd.conf", config_root);
        config_write("gpuipcd.conf", "");
}

void config_teardown(void) {
        char command[96];

        snprintf(command, sizeof(command), "rm -r %s", config_root);
        ck_assert_int_eq(system(command), 0);
}

void config_write(const char *name, const char *text) {
        char path[256], *slash;
        FILE *file;

        snprintf(path, sizeof(path), "%s/%s", config_root, name);
        slash = strrchr(path, '/');
        *slash = '\0';
        ck_assert(mkdir(path, 0700) == 0 || errno == EEXIST);
        *slash = '/';
        file = fopen(path, "we");
        ck_assert_ptr_nonnull(file);
        fputs(text, file);
        fclose(file);
}

static int load(const char *a, const char *b, const char *c, struct config *ret, char **ret_message) {
        char *argv[] = {(char *)"gpuipcd", (char *)"--config", config_path, (char *)a, (char *)b, (char *)c, NULL};
        enum config_action action;
        int argc = 3;

        while (argv[argc])
                argc++;
        return config_load(argc, argv, ret, &action, ret_message);
}

struct config config_good(const char *a, const char *b, const char *c) {
        char *message = NULL;
        struct config config;
        int r = load(a, b, c, &config, &message);

        ck_assert_msg(r == 0, "%s", message);
        return config;
}

const char *config_bad(const char *a, const char *b, const char *c) {
        static char shown[1024];
        struct config config;
        char *message = NULL, *root;

        ck_assert_int_eq(load(a, b, c, &config, &message), -EINVAL);
        ck_assert_ptr_nonnull(message);
        ck_assert_ptr_null(strchr(message, '\n'));
        snprintf(shown, sizeof(shown), "%s", message);
        free(message);
        if ((root = strstr(shown, config_root))) {
                memmove(root + 4, root + strlen(config_root), strlen(root + strlen(config_root)) + 1);
                memcpy(root, "ROOT", 4);
        }
        return shown;
}
