/* SPDX-License-Identifier: Apache-2.0 */
/* A slow, plain account of who holds what, kept beside the ledger and compared with it. It knows the rules and none of the
 * ledger's sums: everything is counted anew each time. */
#ifndef UNIT_LEDGER_MODEL_H
#define UNIT_LEDGER_MODEL_H

#include "ledger.h"

#define MODEL_MAX 256

enum model_phase { MODEL_RESERVED, MODEL_ACTIVE, MODEL_DRAINING };

struct model_lease {
        struct lease *lease;
        uint64_t serial, buffer;
        enum model_phase phase;
        uint64_t client; /* 0: its session is over, or it drains */
        const struct holder *holder;
        uid_t uid;
        bool first;
};

struct model_buffer {
        struct buffer *buffer;
        uint64_t serial;
        uid_t owner, payer;
        int64_t bytes;
        char name[8];    /* "": none */
        int64_t keep_ms;
        uint64_t keep_until;
        bool reserved, freed, sealed, retired, handed_out;
        bool open;       /* its memory is not closed yet */
        int n_pins;      /* besides reserved leases */
};

struct model {
        struct model_lease leases[MODEL_MAX]; /* by age */
        struct model_buffer buffers[MODEL_MAX];
        size_t n_leases, n_buffers;
        uint64_t now;
        bool trust_release;
};

/* What becomes of each verb. The model settles every buffer afterwards. */
void model_add_buffer(struct model *model, struct buffer *buffer, struct lease *lease);
void model_add_lease(struct model *model, struct buffer *buffer, struct lease *lease);
void model_commit_buffer(struct model *model, struct model_buffer *buffer);
void model_cancel_buffer(struct model *model, struct model_buffer *buffer, bool with_memory);
void model_activate(struct model_lease *lease);
void model_remove_lease(struct model *model, struct model_lease *lease);
void model_end_client(struct model *model, uint64_t client);
void model_exit(struct model *model, const struct holder *holder);
void model_release(struct model *model, struct model_lease *lease);
void model_free(struct model *model, struct model_buffer *buffer);
void model_settle(struct model *model);

struct model_buffer *model_find_buffer(struct model *model, uint64_t serial);

/* What a reservation must answer: 0 or the verdict with its scope ("" for none). */
int model_judge(const struct model *model, const struct world *world, const struct client *client,
                const struct buffer_spec *spec, const char **ret_scope);
int64_t model_count_leases(const struct model *model, const struct client *client);

/* Fails the test where the ledger differs. */
void model_compare(struct model *model, const struct world *world);

#endif
