/* SPDX-License-Identifier: Apache-2.0 */
/* The table of operations, and nothing else: what to call when, who may, and how it answers. */
#include "ops.h"

#include "log.h"

const struct op ops[N_METHODS] = {
        [METHOD_GET_INFO] = {METHOD_GET_INFO, OP_ANYONE, OP_LEDGER, OP_ONE, false, LOG_DEBUG, NULL, NULL, op_info_finish, NULL},
        [METHOD_GET_INTERFACE_DESCRIPTION] = {METHOD_GET_INTERFACE_DESCRIPTION, OP_ANYONE, OP_LEDGER, OP_ONE, false, LOG_DEBUG,
                                              NULL, NULL, op_description_finish, NULL},
        [METHOD_GET_STATUS] = {METHOD_GET_STATUS, OP_ANYONE, OP_LEDGER, OP_ONE, false, LOG_DEBUG, NULL, NULL, op_status_finish,
                               NULL},
        [METHOD_ALLOCATE] = {METHOD_ALLOCATE, OP_OWNERS, OP_DEVICE, OP_ONE, false, LOG_INFO, op_allocate_begin, op_allocate_work,
                             op_allocate_finish, op_allocate_abandon},
        [METHOD_OPEN] = {METHOD_OPEN, OP_OWNERS, OP_DEVICE, OP_ONE, false, LOG_INFO, op_open_begin, op_open_work, op_open_finish,
                         op_open_abandon},
        [METHOD_RELEASE] = {METHOD_RELEASE, OP_OWNERS, OP_LEDGER, OP_ONE, true, LOG_INFO, NULL, NULL, op_release_finish, NULL},
        [METHOD_SEAL] = {METHOD_SEAL, OP_OWNERS, OP_DEVICE, OP_ONE, false, LOG_INFO, op_seal_begin, op_seal_work, op_seal_finish,
                         op_seal_abandon},
        [METHOD_FREE] = {METHOD_FREE, OP_OWNERS, OP_LEDGER, OP_ONE, false, LOG_INFO, NULL, NULL, op_free_finish, NULL},
        [METHOD_KICK] = {METHOD_KICK, OP_OWNERS, OP_LEDGER, OP_ONE, false, LOG_NOTICE, NULL, NULL, op_kick_finish, NULL},
        [METHOD_LIST] = {METHOD_LIST, OP_ANYONE, OP_LEDGER, OP_PAGES, false, LOG_DEBUG, op_list_begin, NULL, op_list_finish,
                         NULL},
        [METHOD_LIST_BUFFERS] = {METHOD_LIST_BUFFERS, OP_ANYONE, OP_LEDGER, OP_PAGES, false, LOG_DEBUG, op_list_buffers_begin, NULL,
                                 op_list_buffers_finish, NULL},
        [METHOD_WATCH] = {METHOD_WATCH, OP_ANYONE, OP_LEDGER, OP_STREAM, false, LOG_DEBUG, op_watch_begin, NULL, op_watch_finish,
                          NULL},
};
