/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of people: users, groups, ranges of uids, reserved names. Loop thread, at start and reload; asks the user database, so
 * it may block. */
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>

#include "config_keys.h"
#include "proto/cleanup.h"

#define UID_MAX UINT32_C(4294967294) /* the one above means "none" to the kernel */

/* A database answer may need more room than one thinks: grows until it fits. 0, -ENOENT, or -errno. */
static int config_look_up(const char *name, bool group, uint32_t *ret_id) {
        for (size_t room = 1024; room <= 16 << 20; room *= 4) {
                _cleanup_free_ char *buffer = malloc(room);
                struct passwd pw, *found_pw = NULL;
                struct group gr, *found_gr = NULL;
                int r;

                if (!buffer)
                        return -ENOMEM;
                r = group ? getgrnam_r(name, &gr, buffer, room, &found_gr) : getpwnam_r(name, &pw, buffer, room, &found_pw);
                if (r == ERANGE)
                        continue;
                if (found_pw || found_gr) {
                        *ret_id = group ? gr.gr_gid : pw.pw_uid;
                        return 0;
                }
                /* POSIX lets "not found" be 0 or any of these. */
                return r == 0 || r == ENOENT || r == ESRCH || r == EBADF || r == EPERM ? -ENOENT : -r;
        }
        return -ENOMEM;
}

static int config_parse_id(const char *text, bool group, uint32_t *ret_id, char *why) {
        const char *what = group ? "group" : "user", *p = text;
        int64_t number;
        int r;

        if (config_digits(&p, &number) && !*p) {
                if (number > UID_MAX)
                        return config_wrong(why, "\"%.60s\" is no %s; the largest number is %" PRIu32, text, what, UID_MAX);
                *ret_id = (uint32_t)number;
                return 0;
        }
        r = config_look_up(text, group, ret_id);
        if (r == -ENOENT)
                return config_wrong(why, "there is no %s \"%.60s\"; give %ss by name or number", what, text, what);
        if (r < 0 && r != -ENOMEM)
                return config_wrong(why, "cannot look up %s \"%.60s\" (%s); give its number", what, text, strerrordesc_np(-r));
        return r;
}

static int ranges_add(struct uid_range **ranges, size_t *n, struct uid_range range) {
        struct uid_range *more = reallocarray(*ranges, *n + 1, sizeof(**ranges));

        if (!more)
                return -ENOMEM;
        *ranges = more;
        more[(*n)++] = range;
        return 0;
}

static int config_add_user(const char *text, struct config_draft *draft, char *why) {
        uint32_t uid;
        int r = config_parse_id(text, false, &uid, why);

        return r < 0 ? r : ranges_add(&draft->users, &draft->n_users, (struct uid_range){uid, uid});
}

static int config_add_group(const char *text, struct config_draft *draft, char *why) {
        struct policy *policy = &draft->config.policy;
        uint32_t gid;
        gid_t *more;
        int r = config_parse_id(text, true, &gid, why);

        if (r < 0)
                return r;
        more = reallocarray(policy->allow_gids, policy->n_allow_gids + 1, sizeof(*more));
        if (!more)
                return -ENOMEM;
        policy->allow_gids = more;
        more[policy->n_allow_gids++] = gid;
        return 0;
}

static int config_add_range(const char *text, struct config_draft *draft, char *why) {
        int64_t first, last;
        const char *p = text;

        if (!config_digits(&p, &first))
                return config_wrong(why, "\"%.60s\" is no range of uids; give such as 1000-1999 or 1000", text);
        last = first;
        if (*p == '-') {
                p++;
                if (!config_digits(&p, &last))
                        p = "-";
        }
        if (*p || first > last || last > UID_MAX)
                return config_wrong(why, "\"%.60s\" is no range of uids; give such as 1000-1999, up to %" PRIu32, text, UID_MAX);
        return ranges_add(&draft->ranges, &draft->n_ranges, (struct uid_range){(uid_t)first, (uid_t)last});
}

/* "prefix:user"; several users may share a prefix. */
static int config_add_reserved(const char *text, struct config_draft *draft, char *why) {
        struct policy *policy = &draft->config.policy;
        const char *colon = strrchr(text, ':');
        _cleanup_free_ char *prefix = colon ? strndup(text, (size_t)(colon - text)) : NULL;
        struct reserved_name *more;
        uint32_t uid;
        int r;

        if (colon && !prefix)
                return -ENOMEM;
        if (!colon || !schema_valid_name(prefix))
                return config_wrong(why, "\"%.60s\" is not PREFIX:USER; a prefix is 1 to 128 of A-Z a-z 0-9 . _ / -", text);
        r = config_parse_id(colon + 1, false, &uid, why);
        if (r < 0)
                return r;
        more = reallocarray(policy->reserved, policy->n_reserved + 1, sizeof(*more));
        if (!more)
                return -ENOMEM;
        policy->reserved = more;
        more[policy->n_reserved++] = (struct reserved_name){.prefix = take_ptr(prefix), .uid = uid};
        return 0;
}

static void config_list_clear(enum key_type type, struct config_draft *draft) {
        struct policy *policy = &draft->config.policy;

        if (type == KEY_USERS)
                draft->n_users = 0;
        else if (type == KEY_GROUPS)
                policy->n_allow_gids = 0;
        else if (type == KEY_RANGES)
                draft->n_ranges = 0;
        else
                while (policy->n_reserved > 0)
                        free(policy->reserved[--policy->n_reserved].prefix);
}

int config_list_set(const struct config_key *key, const char *text, struct config_draft *draft, char ret_why[CONFIG_WHY_MAX]) {
        static int (*const add[])(const char *text, struct config_draft *draft, char *why) = {
                [KEY_USERS] = config_add_user,
                [KEY_GROUPS] = config_add_group,
                [KEY_RANGES] = config_add_range,
                [KEY_RESERVED] = config_add_reserved,
        };
        _cleanup_free_ char *copy = strdup(text);
        char *rest = copy, *word;

        if (!copy)
                return -ENOMEM;
        if (!*text)
                config_list_clear(key->type, draft);
        while ((word = strsep(&rest, " \t,"))) {
                int r = *word ? add[key->type](word, draft, ret_why) : 0;

                if (r < 0)
                        return r;
        }
        return 0;
}
