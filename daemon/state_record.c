/* SPDX-License-Identifier: Apache-2.0 */
/* One record's bytes: the fixed part, then each text with its length before it and a NUL behind. Loop thread; memory only. */
#include <string.h>

#include "fault.h"
#include "state_file.h"

#define TEXT_NONE UINT16_MAX

/* Texts too long for their slot are cut: container ids and commands are bounded where they are read, the others by the schema. */
static char *record_put_text(char *at, const char *end, const char *text) {
        size_t n = text ? strlen(text) : 0, room = (size_t)(end - at);
        uint16_t length;

        if (room < sizeof(length) + 1)
                return at;
        if (n > room - sizeof(length) - 1)
                n = room - sizeof(length) - 1;
        length = text ? (uint16_t)n : TEXT_NONE;
        memcpy(at, &length, sizeof(length));
        at += sizeof(length);
        if (!text)
                return at;
        memcpy(at, text, n);
        at[n] = '\0';
        return at + n + 1;
}

void state_write(struct state *state, enum state_kind kind, uint32_t slot, const void *fixed, const char *const *texts) {
        struct state_head *head = state_record(state, kind, slot);
        const struct state_layout *layout = &state->header->layout;
        char *body = (char *)(head + 1), *at = body + layout->fixed_bytes[kind];
        const char *end = (char *)head + layout->record_bytes[kind];

        for (size_t i = 0; i < N_STATE_LIVE; i++)
                atomic_store_explicit(&head->live[i], 0, memory_order_relaxed);
        atomic_store_explicit(&head->live[0], UINT64_C(0xffffffff00000000), memory_order_relaxed);
        fault_point("State", "cleared");
        memcpy(body, fixed, layout->fixed_bytes[kind]);
        fault_point("State", "half-written");
        for (size_t i = 0; i < state_n_texts[kind]; i++)
                at = record_put_text(at, end, texts[i]);
        head->n_body = (uint32_t)(at - body);
        head->sum = state_sum(body, head->n_body);
        fault_point("State", "written");
}

#define PARCEL_FIRST 16 /* below: the state itself */
#define PARCEL_SLOTS (UINT32_C(1) << 20)
#define PARCEL_TURNS 7

uint32_t state_next_parcel(const struct state *state, enum state_kind kind, uint32_t slot) {
        const char *body = (const char *)(state_record(state, kind, slot) + 1);
        size_t offset = kind == STATE_BUFFER ? offsetof(struct state_buffer, parcel) : offsetof(struct state_process, parcel);
        uint32_t last, turn = 0;

        if (slot >= PARCEL_SLOTS)
                return 0;
        memcpy(&last, body + offset, sizeof(last));
        if (last >= PARCEL_FIRST)
                turn = ((last - PARCEL_FIRST) / 2 / PARCEL_SLOTS + 1) % PARCEL_TURNS;
        return PARCEL_FIRST + (turn * PARCEL_SLOTS + slot) * 2 + (kind == STATE_PROCESS);
}

/* Where the next text begins; NULL when this one does not fit in what there is. */
static const char *record_read_text(const char *at, const char *end, const char **ret_text) {
        uint16_t length;

        if ((size_t)(end - at) < sizeof(length))
                return NULL;
        memcpy(&length, at, sizeof(length));
        at += sizeof(length);
        *ret_text = NULL;
        if (length == TEXT_NONE)
                return at;
        if ((size_t)(end - at) < (size_t)length + 1 || memchr(at, '\0', (size_t)length + 1) != at + length)
                return NULL;
        *ret_text = at;
        return at + length + 1;
}

bool state_read(const struct state *state, enum state_kind kind, uint32_t slot, void *ret_fixed, const char **ret_texts) {
        const struct state_head *head = state_record(state, kind, slot);
        const struct state_layout *layout = &state->header->layout;
        const char *body = (const char *)(head + 1), *at = body + layout->fixed_bytes[kind];
        size_t room = layout->record_bytes[kind] - sizeof(*head), n = head->n_body;

        if (n < layout->fixed_bytes[kind] || n > room || head->sum != state_sum(body, n))
                return false;
        memset(ret_fixed, 0, state_layout.fixed_bytes[kind]);
        memcpy(ret_fixed, body, layout->fixed_bytes[kind]);
        for (size_t i = 0; i < state_n_texts[kind]; i++) {
                at = record_read_text(at, body + n, &ret_texts[i]);
                if (!at)
                        return false;
        }
        return true;
}
