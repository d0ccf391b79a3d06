/* SPDX-License-Identifier: Apache-2.0 */
/* Leases and the lists they stand in. Any thread enters, with the client's lock. Never talks to the daemon. */
#include "claim.h"

#include <stdlib.h>
#include <string.h>

#include "conn.h"
#include "error.h"

struct claim *claim_new(const char *id) {
        size_t n = strlen(id) + 1;
        struct claim *claim = calloc(1, sizeof(*claim) + n);
        if (claim)
                (void)memcpy(claim->id, id, n);
        return claim;
}

void claim_join(struct claim *claim, struct conn *conn) {
        claim->conn = conn;
        claim->next = conn->claims;
        claim->link = &conn->claims;
        if (claim->next)
                claim->next->link = &claim->next;
        conn->claims = claim;
        conn->n_claims++;
        conn->n_left += !claim->owned;
}

void claim_leave(struct claim *claim) {
        if (!claim || !claim->conn)
                return;
        claim->conn->n_claims--;
        claim->conn->n_left -= !claim->owned;
        *claim->link = claim->next;
        if (claim->next)
                claim->next->link = claim->link;
        claim->next = NULL;
        claim->link = NULL;
        claim->conn = NULL;
}

void claim_end(struct claim *claim, enum claim_stand stand, enum claim_loss why) {
        claim_leave(claim);
        if (!claim->owned) {
                free(claim);
                return;
        }
        claim->stand = stand;
        claim->why = why;
}

void claim_end_all(struct conn *conn, enum claim_loss why) {
        while (conn->claims)
                claim_end(conn->claims, CLAIM_LOST, why);
}

void claim_leave_behind(struct claim *claim) {
        struct conn *conn = claim->conn;

        claim_leave(claim);
        claim->owned = false;
        claim->stand = CLAIM_LEAVING;
        claim_join(claim, conn);
}

struct claim *claim_left_behind(const struct conn *conn) {
        struct claim *claim = conn->n_left > 0 ? conn->claims : NULL;

        while (claim && claim->owned)
                claim = claim->next;
        return claim;
}

#define KEPT "What is mapped stays mapped until it is released, but the daemon no longer answers for those bytes. "

static const char *const losses[] = {
        [LOSS_NO_STORE] = "The connection to the daemon ended, and this lease with it: the daemon ended or closed the session (kick, or a "
                          "limit), and has no store that would keep buffers over its restart (it has one when systemd starts it). "
                          KEPT "Allocate or open anew.",
        [LOSS_OFF] = "The connection to the daemon ended, and this lease with it, since the option restart_ms is -1. " KEPT
                     "Allocate or open anew.",
        [LOSS_SESSION] = "The connection to the daemon ended, and this lease with it: the daemon closed the session (kick, or a limit), "
                         "or came back without it or too late. " KEPT "Allocate or open anew.",
        [LOSS_BUFFER] = "The daemon was restarted and this lease ended with it: memory behind a cuda-ipc handle ends with the "
                        "daemon, and other memory when the daemon's store lost it. " KEPT "Allocate or open anew.",
        [LOSS_OLD_DAEMON] = "The daemon was replaced by one that cannot take up sessions, and this lease ended with it. " KEPT
                            "Install a newer gpuipcd, then allocate or open anew.",
        [LOSS_REFUSED] = "The daemon was restarted and does not let this process in any more, so this lease ended. " KEPT
                         "The administrator's AllowUsers=, AllowGroups= and the socket's mode say who may.",
        [LOSS_TIME] = "The daemon stopped and did not come back within restart_ms, so this lease is given up. " KEPT
                      "Start gpuipcd, then allocate or open anew.",
        [LOSS_CLIENT_FREED] = "The client was freed, and its leases ended with it. Release buffers before gpuipc_client_free().",
};

int claim_lost(enum claim_loss why, gpuipc_error *ret_error) {
        return error_set(ret_error, GPUIPC_ERROR_LEASE_LOST, 0, NULL, "%s", losses[why]);
}
