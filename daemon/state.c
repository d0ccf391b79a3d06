/* SPDX-License-Identifier: Apache-2.0 */
/* The state's file: header, extents, free slots. Loop thread; asks the kernel for pages only when it grows. Never trusts what it
 * finds: offsets come from this process's own tables, not from the file. */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "fault.h"
#include "proto/cleanup.h"
#include "state_file.h"

const struct state_layout state_layout = {
        .version = STATE_VERSION,
        .record_bytes = {[STATE_BUFFER] = 4992, [STATE_LEASE] = 320, [STATE_SESSION] = 512, [STATE_PROCESS] = 512},
        .fixed_bytes = {[STATE_BUFFER] = sizeof(struct state_buffer), [STATE_LEASE] = sizeof(struct state_lease),
                        [STATE_SESSION] = sizeof(struct state_session), [STATE_PROCESS] = sizeof(struct state_process)},
};

const uint32_t state_n_texts[N_STATE_KINDS] = {
        [STATE_BUFFER] = N_BUFFER_TEXTS,
        [STATE_LEASE] = N_LEASE_TEXTS,
        [STATE_SESSION] = N_SESSION_TEXTS,
        [STATE_PROCESS] = N_PROCESS_TEXTS,
};

uint64_t state_sum(const void *data, size_t n) {
        const unsigned char *bytes = data;
        uint64_t sum = UINT64_C(0xcbf29ce484222325), word;

        for (; n >= sizeof(word); n -= sizeof(word), bytes += sizeof(word)) {
                memcpy(&word, bytes, sizeof(word));
                sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
                sum ^= sum >> 32;
        }
        for (; n > 0; n--, bytes++)
                sum = (sum ^ *bytes) * UINT64_C(0x100000001b3);
        return sum ^ sum >> 29;
}

static uint64_t header_sum(const struct state_header *header) {
        return state_sum(header, offsetof(struct state_header, sum));
}

static uint32_t layout_per_extent(const struct state_layout *layout, enum state_kind kind) {
        return (uint32_t)((STATE_EXTENT_BYTES - sizeof(struct state_extent)) / layout->record_bytes[kind]);
}

static struct state_extent *state_extent(const struct state *state, uint32_t index) {
        return (struct state_extent *)((char *)state->header + STATE_HEADER_BYTES + (size_t)index * STATE_EXTENT_BYTES);
}

struct state_head *state_record(const struct state *state, enum state_kind kind, uint32_t slot) {
        const struct state_table *table = &state->tables[kind];
        uint32_t extent = table->extents[slot / table->per_extent];
        char *at = (char *)state_extent(state, extent) + sizeof(struct state_extent);

        return (struct state_head *)(at + (size_t)(slot % table->per_extent) * state->header->layout.record_bytes[kind]);
}

static void state_step(const char *step) {
        fault_point("State", step);
}

/* ---- growing ----------------------------------------------------------------------------------------------- */

/* Memory of our own for one extent more of a kind. */
static int table_prepare(struct state_table *table) {
        size_t n_slots = ((size_t)table->n_extents + 1) * table->per_extent;
        uint32_t *extents, *free_slots;

        extents = reallocarray(table->extents, table->n_extents + 1, sizeof(*extents));
        if (!extents)
                return -ENOMEM;
        table->extents = extents;
        free_slots = reallocarray(table->free_slots, n_slots, sizeof(*free_slots));
        if (!free_slots)
                return -ENOMEM;
        table->free_slots = free_slots;
        return 0;
}

/* Its slots are free unless a record is in them; the lowest are given out first. */
static void table_add(struct state *state, enum state_kind kind, uint32_t extent) {
        struct state_table *table = &state->tables[kind];
        uint32_t first = table->n_extents * table->per_extent;

        table->extents[table->n_extents++] = extent;
        for (uint32_t i = table->per_extent; i-- > 0;)
                if (atomic_load_explicit(&state_record(state, kind, first + i)->word, memory_order_relaxed) == STATE_FREE)
                        table->free_slots[table->n_free++] = first + i;
}

int state_grow(struct state *state, enum state_kind kind) {
        uint32_t index = (uint32_t)atomic_load_explicit(&state->header->n_extents, memory_order_relaxed);
        off_t at = STATE_HEADER_BYTES + (off_t)index * STATE_EXTENT_BYTES;
        int r;

        if (index >= STATE_EXTENTS_MAX)
                return -ENOSPC;
        r = table_prepare(&state->tables[kind]);
        if (r < 0)
                return r;
        if (fallocate(state->fd, 0, at, STATE_EXTENT_BYTES) < 0)
                return errno == ENOSPC ? -ENOMEM : -errno;
        state_step("grown");
        *state_extent(state, index) = (struct state_extent){.magic = STATE_EXTENT_MAGIC, .kind = kind};
        state_step("extent-written");
        atomic_store_explicit(&state->header->n_extents, index + 1, memory_order_release);
        state_step("extent-published");
        table_add(state, kind, index);
        return 0;
}

int state_reserve(struct state *state, enum state_kind kind, uint32_t *ret_slot) {
        struct state_table *table = &state->tables[kind];
        int r = table->n_free > 0 ? 0 : state_grow(state, kind);

        if (r == 0)
                *ret_slot = table->free_slots[--table->n_free];
        return r;
}

void state_give(struct state *state, enum state_kind kind, uint32_t slot) {
        struct state_table *table = &state->tables[kind];

        state_set_word(state, kind, slot, STATE_FREE);
        table->free_slots[table->n_free++] = slot;
}

/* ---- words ------------------------------------------------------------------------------------------------- */

void state_set_word(struct state *state, enum state_kind kind, uint32_t slot, enum state_word word) {
        state_step("before-word");
        atomic_store_explicit(&state_record(state, kind, slot)->word, (uint32_t)word, memory_order_release);
        state_step("word");
}

enum state_word state_word(const struct state *state, enum state_kind kind, uint32_t slot) {
        return (enum state_word)atomic_load_explicit(&state_record(state, kind, slot)->word, memory_order_acquire);
}

void state_set_live(struct state *state, enum state_kind kind, uint32_t slot, unsigned index, uint64_t value) {
        atomic_store_explicit(&state_record(state, kind, slot)->live[index], value, memory_order_release);
        state_step("live");
}

uint64_t state_live(const struct state *state, enum state_kind kind, uint32_t slot, unsigned index) {
        return atomic_load_explicit(&state_record(state, kind, slot)->live[index], memory_order_acquire);
}

void state_set_flags(struct state *state, enum state_kind kind, uint32_t slot, uint32_t flags) {
        state_set_live(state, kind, slot, 0, (uint64_t)~flags << 32 | flags);
}

uint32_t state_flags(const struct state *state, enum state_kind kind, uint32_t slot) {
        uint64_t value = state_live(state, kind, slot, 0);
        uint32_t flags = (uint32_t)value;

        return (uint32_t)(value >> 32) == ~flags ? flags : UINT32_MAX;
}

void state_set_number(struct state *state, enum state_number number, uint64_t value) {
        atomic_store_explicit(&state->header->numbers[number], value, memory_order_release);
        state_step("number");
}

uint64_t state_number(const struct state *state, enum state_number number) {
        return atomic_load_explicit(&state->header->numbers[number], memory_order_acquire);
}

/* ---- the file ---------------------------------------------------------------------------------------------- */

void state_free(struct state *state) {
        if (!state)
                return;
        if (state->header)
                (void)munmap(state->header, STATE_MAP_BYTES);
        for (size_t kind = 0; kind < N_STATE_KINDS; kind++) {
                free(state->tables[kind].extents);
                free(state->tables[kind].free_slots);
        }
        fd_closep(&state->fd);
        free(state);
}

static void state_freep(struct state **state) {
        state_free(*state);
}

/* Takes fd, also on failure. The mapping is as long as the file can ever become. */
static int state_map(int fd_take, struct state **ret) {
        struct state *state = calloc(1, sizeof(*state));
        void *map;

        if (!state) {
                fd_closep(&fd_take);
                return -ENOMEM;
        }
        state->fd = fd_take;
        map = mmap(NULL, STATE_MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_take, 0);
        if (map == MAP_FAILED) {
                int r = -errno;

                state_free(state);
                return r;
        }
        state->header = map;
        *ret = state;
        return 0;
}

static void state_init_tables(struct state *state) {
        for (size_t kind = 0; kind < N_STATE_KINDS; kind++)
                state->tables[kind].per_extent = layout_per_extent(&state->header->layout, kind);
}

int state_new(const struct state_layout *layout, uint64_t generation, struct state **ret) {
        _cleanup_(state_freep) struct state *state = NULL;
        _cleanup_fd_ int fd = memfd_create("gpuipc-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        struct state_header *header;
        int r;

        if (fd < 0)
                return -errno;
        if (fchmod(fd, 0600) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
                return -errno;
        if (fallocate(fd, 0, 0, STATE_HEADER_BYTES) < 0)
                return -errno;
        r = state_map(take_fd(&fd), &state);
        if (r < 0)
                return r;
        header = state->header;
        memcpy(header->magic, STATE_MAGIC, sizeof(header->magic));
        header->header_bytes = STATE_HEADER_BYTES;
        header->extent_bytes = STATE_EXTENT_BYTES;
        header->layout = *layout;
        header->generation = generation;
        header->sum = header_sum(header);
        state_init_tables(state);
        *ret = take_ptr(state);
        return 0;
}

/* Why a file cannot be read; NULL: it can. */
static const char *state_check(const struct state *state, size_t file_bytes) {
        const struct state_header *header = state->header;
        const struct state_layout *layout = &header->layout;

        if (file_bytes < STATE_HEADER_BYTES || memcmp(header->magic, STATE_MAGIC, sizeof(header->magic)) != 0)
                return "it does not begin as a state of gpuipcd does";
        if (layout->version > STATE_VERSION)
                return "a newer gpuipcd wrote it";
        if (layout->version == 0 || header->sum != header_sum(header))
                return "its header is damaged";
        if (header->header_bytes != STATE_HEADER_BYTES || header->extent_bytes != STATE_EXTENT_BYTES)
                return "its header does not make sense";
        for (size_t kind = 0; kind < N_STATE_KINDS; kind++)
                if (layout->record_bytes[kind] < sizeof(struct state_head) + layout->fixed_bytes[kind] ||
                    layout->record_bytes[kind] > STATE_EXTENT_BYTES - sizeof(struct state_extent) ||
                    layout->record_bytes[kind] % sizeof(uint64_t) != 0 || layout->fixed_bytes[kind] > state_layout.fixed_bytes[kind] ||
                    layout->fixed_bytes[kind] % sizeof(uint64_t) != 0 || layout->fixed_bytes[kind] == 0)
                        return "its header does not make sense";
        return NULL;
}

static int state_read_extents(struct state *state, size_t file_bytes) {
        uint64_t n = atomic_load_explicit(&state->header->n_extents, memory_order_acquire);
        uint64_t n_there = (file_bytes - STATE_HEADER_BYTES) / STATE_EXTENT_BYTES;

        if (n > n_there || n > STATE_EXTENTS_MAX) {
                state->n_damaged++;
                n = n_there < STATE_EXTENTS_MAX ? n_there : STATE_EXTENTS_MAX;
                atomic_store_explicit(&state->header->n_extents, n, memory_order_release);
        }
        for (uint32_t i = 0; i < n; i++) {
                const struct state_extent *extent = state_extent(state, i);
                int r;

                if (extent->magic != STATE_EXTENT_MAGIC || extent->kind >= N_STATE_KINDS) {
                        state->n_damaged++;
                        continue;
                }
                r = table_prepare(&state->tables[extent->kind]);
                if (r < 0)
                        return r;
                table_add(state, extent->kind, i);
        }
        return 0;
}

int state_open(int fd_take, struct state **ret, char ret_why[STATE_WHY_MAX]) {
        _cleanup_(state_freep) struct state *state = NULL;
        _cleanup_fd_ int fd = fd_take;
        const char *why;
        struct stat st;
        int r;

        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < STATE_HEADER_BYTES) {
                snprintf(ret_why, STATE_WHY_MAX, "it is no file of a state's size");
                return -EBADMSG;
        }
        r = state_map(take_fd(&fd), &state);
        if (r < 0)
                return r;
        why = state_check(state, (size_t)st.st_size);
        if (why) {
                snprintf(ret_why, STATE_WHY_MAX, "%s", why);
                return -EBADMSG;
        }
        state_init_tables(state);
        r = state_read_extents(state, (size_t)st.st_size);
        if (r < 0)
                return r;
        *ret = take_ptr(state);
        return 0;
}

int state_fd(const struct state *state) {
        return state->fd;
}

uint64_t state_generation(const struct state *state) {
        return state->header->generation;
}

bool state_is_current(const struct state *state) {
        return memcmp(&state->header->layout, &state_layout, sizeof(state_layout)) == 0;
}

uint32_t state_n_damaged(const struct state *state) {
        return state->n_damaged;
}

uint32_t state_n_slots(const struct state *state, enum state_kind kind) {
        return state->tables[kind].n_extents * state->tables[kind].per_extent;
}
