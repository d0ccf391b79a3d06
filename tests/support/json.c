/* SPDX-License-Identifier: Apache-2.0 */
/* Looks into replies with cJSON itself, apart from the code under test. */
#include "json.h"

#include <cJSON.h>
#include <check.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const cJSON *find(const cJSON *node, const char *path) {
        while (node && *path) {
                size_t n = strcspn(path, ".");
                char key[128];
                ck_assert_uint_lt(n, sizeof(key));
                memcpy(key, path, n);
                key[n] = '\0';
                node = isdigit((unsigned char)key[0]) ? cJSON_GetArrayItem(node, atoi(key))
                                                      : cJSON_GetObjectItemCaseSensitive(node, key);
                path += n + (path[n] == '.');
        }
        return node;
}

char *json_get(const char *text, const char *path) {
        cJSON *root = cJSON_Parse(text);
        const cJSON *node = find(root, path);
        char *value = NULL;
        if (node)
                value = cJSON_IsString(node) ? strdup(node->valuestring) : cJSON_PrintUnformatted(node);
        cJSON_Delete(root);
        return value;
}

int64_t json_int(const char *text, const char *path) {
        cJSON *root = cJSON_Parse(text);
        const cJSON *node = find(root, path);
        ck_assert_msg(cJSON_IsNumber(node), "no number at %s in %s", path, text);
        int64_t value = (int64_t)node->valuedouble;
        cJSON_Delete(root);
        return value;
}

int json_length(const char *text, const char *path) {
        cJSON *root = cJSON_Parse(text);
        const cJSON *node = find(root, path);
        ck_assert_msg(cJSON_IsArray(node), "no array at %s in %s", path, text);
        int n = cJSON_GetArraySize(node);
        cJSON_Delete(root);
        return n;
}

bool json_is(const char *text, const char *path, const char *expected) {
        char *value = json_get(text, path);
        bool same = value && strcmp(value, expected) == 0;
        free(value);
        return same;
}
