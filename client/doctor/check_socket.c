/* SPDX-License-Identifier: Apache-2.0 */
/* The way to the daemon: the path, the mount, who may, whether somebody answers. Loads nothing. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "advice.h"
#include "doctor.h"
#include "path.h"

#define CHECK "socket"

/* The socket's directory. */
static void parent_of(const char *path, char ret_parent[PATH_MAX]) {
        char *slash;

        (void)snprintf(ret_parent, PATH_MAX, "%s", path);
        slash = strrchr(ret_parent, '/');
        if (slash && slash != ret_parent)
                *slash = '\0';
}

/* Of a container that has no part in the host's directory; `what` is there or not in its place. */
static void say_unmounted(struct doctor *doctor, enum doctor_code code, const char *what) {
        char parent[PATH_MAX], fix[PATH_MAX + 512];

        parent_of(doctor->socket, parent);
        (void)snprintf(fix, sizeof(fix),
                       "Start the container anew, with the directory mounted in which the daemon on the host has its socket:\n"
                       "  docker run -v /run/gpuipcd:%s:ro ...\n"
                       "Where that is missing on the host, the daemon does not run there. As a service or by hand:\n"
                       "  systemctl start gpuipcd\n"
                       "  gpuipcd",
                       parent);
        doctor_say_fix(doctor, FINDING_FAIL, code, CHECK, fix, NULL,
                       "There is %s %s, and nothing of the host's is mounted at %s in this container.", what, doctor->socket, parent);
}

static void say_missing(struct doctor *doctor) {
        char deepest[PATH_MAX], parent[PATH_MAX];
        bool there;

        path_deepest(doctor->socket, deepest, sizeof(deepest));
        parent_of(doctor->socket, parent);
        there = strcmp(parent, deepest) == 0;
        if (there && path_is_removed(deepest))
                doctor_say_fix(doctor, FINDING_FAIL, DOCTOR_SOCKET_STALE, CHECK,
                               "Start the container anew, which mounts what is there now:\n"
                               "  docker restart CONTAINER", NULL,
                               "%s is empty: what was mounted there has been removed on the host since, and made anew.", deepest);
        else if (doctor->container && !path_below_mount(deepest))
                say_unmounted(doctor, DOCTOR_NO_SOCKET, "no");
        else if (there)
                doctor_say_fix(doctor, FINDING_FAIL, DOCTOR_NO_SOCKET, CHECK, advice(DOCTOR_NOBODY_LISTENS), NULL,
                               "%s is there, but no %s in it: the daemon does not run, or has its socket elsewhere.", deepest,
                               strrchr(doctor->socket, '/') + 1);
        else
                doctor_say(doctor, FINDING_FAIL, DOCTOR_NO_SOCKET, CHECK, "There is no %s: %s is not there.", doctor->socket, parent);
}

/* What is closed: the socket itself, or a directory on the way to it, which then is copied to `closed`. */
static const char *what_is_closed(const struct doctor *doctor, char closed[PATH_MAX]) {
        return path_closed(doctor->socket, closed, PATH_MAX) ? closed : doctor->socket;
}

static void say_denied(struct doctor *doctor) {
        char own[PATH_WORDS_SIZE], owner[PATH_WORDS_SIZE] = "not to be told", closed[PATH_MAX], fix[512];
        const char *what = what_is_closed(doctor, closed);
        mode_t bit = what == closed ? S_IXGRP : S_IWGRP;
        struct stat st;

        (void)path_owner_words(what, owner);
        path_own_words(own);
        /* Nobody is to be put into root's group. */
        if (strcmp(doctor->socket, GPUIPC_DEFAULT_ADMIN_SOCKET) == 0 || stat(what, &st) < 0 || !(st.st_mode & bit) ||
            st.st_gid == 0) {
                doctor_say(doctor, FINDING_FAIL, DOCTOR_SOCKET_DENIED, CHECK, "%s is closed to you (%s): it is %s.", what, own,
                           owner);
                return;
        }
        (void)snprintf(fix, sizeof(fix),
                       "Run as a user of group %u, or give the container that group:\n"
                       "  docker run --group-add %u ...\n"
                       "The shared socket is normally open to all: the administrator may have meant this.",
                       (unsigned)st.st_gid, (unsigned)st.st_gid);
        doctor_say_fix(doctor, FINDING_FAIL, DOCTOR_SOCKET_DENIED, CHECK, fix, NULL,
                       "%s is closed to you (%s): it is %s, and you are not in that group.", what, own, owner);
}

static void say_refused(struct doctor *doctor) {
        if (path_is_mount(doctor->socket) || path_is_removed(doctor->socket))
                doctor_say(doctor, FINDING_FAIL, DOCTOR_SOCKET_STALE, CHECK,
                           "%s is a socket mounted as a file, and nobody listens at it: the daemon has made a new one since, or "
                           "does not run.", doctor->socket);
        else if (doctor->container && !path_below_mount(doctor->socket)) /* of an image, or of a root that is a copy of the host's */
                say_unmounted(doctor, DOCTOR_NOBODY_LISTENS, "only a dead socket");
        else
                doctor_say(doctor, FINDING_FAIL, DOCTOR_NOBODY_LISTENS, CHECK,
                           "There is a socket at %s, but nobody listens: the daemon does not run.", doctor->socket);
}

static void say_unreachable(struct doctor *doctor, const gpuipc_error *error) {
        switch (error->system_errno) {
        case ENOENT:
        case ENOTDIR:
                say_missing(doctor);
                return;
        case EACCES:
        case EPERM:
                say_denied(doctor);
                return;
        case ECONNREFUSED:
                say_refused(doctor);
                return;
        case EAGAIN:
        case ETIMEDOUT:
                doctor_say(doctor, FINDING_FAIL, DOCTOR_DAEMON_SILENT, CHECK,
                           "The daemon at %s accepts no connection in time.", doctor->socket);
                return;
        case EPROTOTYPE:
                doctor_say(doctor, FINDING_FAIL, DOCTOR_NOT_A_SOCKET, CHECK, "%s is a socket of another type than gpuipcd's.",
                           doctor->socket);
                return;
        default:
                doctor_say(doctor, FINDING_FAIL, DOCTOR_SOCKET_UNREACHABLE, CHECK, "%s", error->message);
        }
}

/* What stands in a socket's place also refuses connections. */
static bool is_other_thing(struct doctor *doctor) {
        struct stat st;

        if (stat(doctor->socket, &st) < 0 || S_ISSOCK(st.st_mode))
                return false;
        doctor_say(doctor, FINDING_FAIL, DOCTOR_NOT_A_SOCKET, CHECK, "%s is %s, not a socket.", doctor->socket,
                   S_ISDIR(st.st_mode)   ? "a directory"
                   : S_ISREG(st.st_mode) ? "a file"
                                         : "something else");
        return true;
}

void check_socket(struct doctor *doctor) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        const char *variable = getenv("GPUIPC_SOCKET");
        gpuipc_error error;

        doctor->socket = doctor->options->socket ? doctor->options->socket
                         : variable && variable[0] ? variable
                                                   : GPUIPC_DEFAULT_SOCKET;
        options.socket_path = doctor->socket;
        options.timeout_ms = doctor->options->patience_ms;
        options.restart_ms = -1; /* what is the matter now, not in a while */
        if (is_other_thing(doctor))
                return;
        if (gpuipc_connect(&options, &doctor->client, &error) != GPUIPC_OK) {
                doctor->client = NULL;
                say_unreachable(doctor, &error);
        }
}
