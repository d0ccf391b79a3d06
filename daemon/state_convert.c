/* SPDX-License-Identifier: Apache-2.0 */
/* An earlier daemon's state in this one's layout: the same records in the same slots, in a file of its own. Main thread, at start. */
#include <string.h>

#include "proto/cleanup.h"
#include "state_file.h"

union fixed {
        struct state_buffer buffer;
        struct state_lease lease;
        struct state_session session;
        struct state_process process;
};

static void convert_record(const struct state *old, struct state *new, enum state_kind kind, uint32_t slot) {
        enum state_word word = state_word(old, kind, slot);
        const char *texts[STATE_TEXTS_MAX];
        union fixed fixed;

        if (word == STATE_FREE || !state_read(old, kind, slot, &fixed, texts))
                return;
        state_write(new, kind, slot, &fixed, texts);
        for (unsigned i = 0; i < N_STATE_LIVE; i++)
                state_set_live(new, kind, slot, i, state_live(old, kind, slot, i));
        state_set_word(new, kind, slot, word);
}

static void state_freep(struct state **state) {
        state_free(*state);
}

int state_convert(const struct state *old, struct state **ret) {
        _cleanup_(state_freep) struct state *new = NULL;
        char why[STATE_WHY_MAX];
        int r, fd;

        r = state_new(&state_layout, state_generation(old) + 1, &new);
        if (r < 0)
                return r;
        for (unsigned number = 0; number < N_STATE_NUMBERS; number++)
                state_set_number(new, number, state_number(old, number));
        for (unsigned kind = 0; kind < N_STATE_KINDS; kind++) {
                while (state_n_slots(new, kind) < state_n_slots(old, kind)) {
                        r = state_grow(new, kind);
                        if (r < 0)
                                return r;
                }
                for (uint32_t slot = 0; slot < state_n_slots(old, kind); slot++)
                        convert_record(old, new, kind, slot);
        }
        fd = dup(state_fd(new));
        if (fd < 0)
                return -errno;
        return state_open(fd, ret, why); /* anew, to find its free slots */
}
