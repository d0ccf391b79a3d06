/* SPDX-License-Identifier: Apache-2.0 */
/* The table of operations, and nothing else: what to call when, who may, and how it answers. */
#include "ops.h"

#include "log.h"
#include "opening.h"

const struct op ops[N_METHODS] = {
        [METHOD_GET_INFO] = {.method = METHOD_GET_INFO, .always = true, .log_level = LOG_DEBUG, .finish = op_info_finish},
        [METHOD_GET_INTERFACE_DESCRIPTION] = {.method = METHOD_GET_INTERFACE_DESCRIPTION, .always = true, .log_level = LOG_DEBUG,
                                              .finish = op_description_finish},
        [METHOD_GET_STATUS] = {.method = METHOD_GET_STATUS, .always = true, .log_level = LOG_DEBUG, .finish = op_status_finish},
        [METHOD_ALLOCATE] = {.method = METHOD_ALLOCATE, .permission = OP_OWNERS, .lane = OP_DEVICE, .keeps = true, .log_level = LOG_INFO,
                             .about = op_allocate_about, .begin = op_allocate_begin, .ready = op_allocate_ready, .work = op_allocate_work,
                             .again = op_allocate_again, .finish = op_allocate_finish, .abandon = op_allocate_abandon},
        [METHOD_OPEN] = {.method = METHOD_OPEN, .permission = OP_OWNERS, .lane = OP_DEVICE, .keeps = true, .log_level = LOG_INFO,
                         .about = op_open_about, .begin = op_open_begin, .work = opening_work, .finish = op_open_finish,
                         .abandon = opening_undo},
        [METHOD_CHANNEL_CREATE] = {.method = METHOD_CHANNEL_CREATE, .permission = OP_OWNERS, .lane = OP_DEVICE, .keeps = true,
                                   .log_level = LOG_INFO, .about = op_channel_create_about, .begin = op_channel_create_begin,
                                   .work = op_channel_create_work, .again = op_channel_create_again, .finish = op_channel_create_finish,
                                   .abandon = op_allocate_abandon},
        [METHOD_CHANNEL_ATTACH] = {.method = METHOD_CHANNEL_ATTACH, .permission = OP_OWNERS, .lane = OP_DEVICE, .keeps = true,
                                   .log_level = LOG_INFO, .about = op_channel_attach_about, .begin = op_channel_attach_begin,
                                   .work = opening_work, .finish = op_channel_attach_finish, .abandon = opening_undo},
        [METHOD_CHANNEL_PARTICIPANTS] = {.method = METHOD_CHANNEL_PARTICIPANTS, .log_level = LOG_DEBUG,
                                         .finish = op_channel_participants_finish},
        [METHOD_RELEASE] = {.method = METHOD_RELEASE, .permission = OP_OWNERS, .oneway = true, .log_level = LOG_INFO,
                            .about = op_release_about, .finish = op_release_finish},
        [METHOD_SEAL] = {.method = METHOD_SEAL, .permission = OP_OWNERS, .lane = OP_DEVICE, .log_level = LOG_INFO, .about = op_seal_about,
                         .begin = op_seal_begin, .work = op_seal_work, .finish = op_seal_finish, .abandon = op_seal_abandon},
        [METHOD_FREE] = {.method = METHOD_FREE, .permission = OP_OWNERS, .log_level = LOG_INFO, .about = op_free_about,
                         .finish = op_free_finish},
        [METHOD_KICK] = {.method = METHOD_KICK, .permission = OP_OWNERS, .log_level = LOG_NOTICE, .about = op_kick_about,
                         .finish = op_kick_finish},
        [METHOD_LIST] = {.method = METHOD_LIST, .answer = OP_PAGES, .log_level = LOG_DEBUG, .begin = op_list_begin,
                         .finish = op_list_finish},
        [METHOD_LIST_BUFFERS] = {.method = METHOD_LIST_BUFFERS, .answer = OP_PAGES, .log_level = LOG_DEBUG,
                                 .begin = op_list_buffers_begin, .finish = op_list_buffers_finish},
        [METHOD_WATCH] = {.method = METHOD_WATCH, .answer = OP_STREAM, .log_level = LOG_DEBUG, .begin = op_watch_begin,
                          .finish = op_watch_finish},
        [METHOD_RESUME] = {.method = METHOD_RESUME, .permission = OP_OWNERS, .log_level = LOG_INFO, .finish = op_resume_finish},
};
