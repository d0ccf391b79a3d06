/* SPDX-License-Identifier: Apache-2.0 */
/* The state's file: what is written comes back, before it is published nobody sees it, and nothing in it is believed blindly. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/state_file.h"
#include "tests/support/suite.h"

static struct state *state;

static void setup(void) {
        ck_assert_int_eq(state_new(&state_layout, 1, &state), 0);
}

static void teardown(void) {
        state_free(state);
        state = NULL;
}

/* As the next daemon reads it. */
static struct state *reopened(void) {
        struct state *other;
        char why[STATE_WHY_MAX];

        ck_assert_int_eq(state_open(dup(state_fd(state)), &other, why), 0);
        return other;
}

static uint32_t reserved(enum state_kind kind) {
        uint32_t slot;

        ck_assert_int_eq(state_reserve(state, kind, &slot), 0);
        return slot;
}

static uint32_t lease_written(uint64_t serial, const char *label) {
        struct state_lease fixed = {.serial = serial, .buffer = 7, .session = 8, .process = 9, .uid = 10, .access = 1, .since_usec = 11};
        const char *texts[N_LEASE_TEXTS] = {label};
        uint32_t slot = reserved(STATE_LEASE);

        state_write(state, STATE_LEASE, slot, &fixed, texts);
        return slot;
}

START_TEST(what_is_written_comes_back) {
        static char meta[4097];
        struct state_buffer fixed = {.serial = 3, .size = 5000, .allocated = 8192, .parcel = 77, .mode = 0640, .fd_inode = 12345}, found;
        const char *texts[N_BUFFER_TEXTS] = {"memfd", "host", NULL, meta, ""}, *read[N_BUFFER_TEXTS];
        uint32_t slot = reserved(STATE_BUFFER);
        struct state *other;

        memset(meta, 'm', sizeof(meta) - 1);
        state_write(state, STATE_BUFFER, slot, &fixed, texts);
        state_set_flags(state, STATE_BUFFER, slot, STATE_SEALED);
        state_set_live(state, STATE_BUFFER, slot, STATE_KEEP_UNTIL, 99);
        state_set_word(state, STATE_BUFFER, slot, STATE_LIVE);
        state_set_number(state, STATE_LAST_LEASE, 42);
        other = reopened();
        ck_assert_int_eq(state_word(other, STATE_BUFFER, slot), STATE_LIVE);
        ck_assert(state_read(other, STATE_BUFFER, slot, &found, read));
        ck_assert_mem_eq(&found, &fixed, sizeof(fixed));
        ck_assert_str_eq(read[BUFFER_HANDLE], "memfd");
        ck_assert_str_eq(read[BUFFER_DEVICE], "host");
        ck_assert_ptr_null(read[BUFFER_NAME]);
        ck_assert_str_eq(read[BUFFER_META], meta);
        ck_assert_str_eq(read[BUFFER_CONTAINER], "");
        ck_assert_uint_eq(state_flags(other, STATE_BUFFER, slot), STATE_SEALED);
        ck_assert_uint_eq(state_live(other, STATE_BUFFER, slot, STATE_KEEP_UNTIL), 99);
        ck_assert_uint_eq(state_number(other, STATE_LAST_LEASE), 42);
        state_free(other);
} END_TEST

START_TEST(nobody_sees_it_before_it_is_published) {
        uint32_t slot = lease_written(1, "x");
        struct state *other = reopened();

        ck_assert_int_eq(state_word(other, STATE_LEASE, slot), STATE_FREE);
        state_set_word(state, STATE_LEASE, slot, STATE_LIVE);
        ck_assert_int_eq(state_word(other, STATE_LEASE, slot), STATE_LIVE); /* one mapping of the same pages */
        state_give(state, STATE_LEASE, slot);
        ck_assert_int_eq(state_word(other, STATE_LEASE, slot), STATE_FREE);
        state_free(other);
} END_TEST

START_TEST(slots_are_given_once) {
        enum { N = 3000 };
        static bool taken[N * 2];
        struct state *other;

        memset(taken, 0, sizeof(taken));
        for (int i = 0; i < N; i++) {
                uint32_t slot = lease_written((uint64_t)i + 1, NULL);

                ck_assert_uint_lt(slot, N * 2);
                ck_assert(!taken[slot]);
                taken[slot] = true;
                state_set_word(state, STATE_LEASE, slot, STATE_LIVE);
        }
        /* The next daemon gives out others, and those given back. */
        other = reopened();
        state_give(other, STATE_LEASE, 5);
        taken[5] = false;
        for (int i = 0; i < 500; i++) {
                uint32_t slot;

                ck_assert_int_eq(state_reserve(other, STATE_LEASE, &slot), 0);
                ck_assert(slot >= N * 2 || !taken[slot]);
                if (slot < N * 2)
                        taken[slot] = true;
        }
        ck_assert(taken[5]);
        state_free(other);
} END_TEST

START_TEST(kinds_grow_apart) {
        struct stat st;

        ck_assert_int_eq(fstat(state_fd(state), &st), 0);
        ck_assert_int_eq(st.st_size, STATE_HEADER_BYTES);
        for (unsigned kind = 0; kind < N_STATE_KINDS; kind++)
                (void)reserved(kind);
        ck_assert_int_eq(fstat(state_fd(state), &st), 0);
        ck_assert_int_eq(st.st_size, STATE_HEADER_BYTES + N_STATE_KINDS * STATE_EXTENT_BYTES);
        ck_assert_int_eq(ftruncate(state_fd(state), 0), -1);
        ck_assert_int_eq(errno, EPERM);
} END_TEST

START_TEST(texts_too_long_are_cut) {
        static char label[2000];
        const char *read[N_LEASE_TEXTS];
        struct state_lease found;
        uint32_t slot;

        memset(label, 'x', sizeof(label) - 1);
        slot = lease_written(1, label);
        ck_assert(state_read(state, STATE_LEASE, slot, &found, read));
        ck_assert_uint_lt(strlen(read[LEASE_LABEL]), state_layout.record_bytes[STATE_LEASE]);
        ck_assert_uint_ge(strlen(read[LEASE_LABEL]), 128);
} END_TEST

/* Each bit of a record's body, its length and its sum. */
START_TEST(a_flipped_bit_is_noticed) {
        uint32_t slot = lease_written(1, "a label");
        struct state_head *head = state_record(state, STATE_LEASE, slot);
        unsigned char *bytes = (unsigned char *)head;
        size_t n = sizeof(*head) + head->n_body;
        const char *read[N_LEASE_TEXTS];
        struct state_lease found;

        for (size_t i = 4; i < n; i++) {
                if (i >= offsetof(struct state_head, live) && i < sizeof(*head))
                        continue; /* words of their own */
                for (int bit = 0; bit < 8; bit++) {
                        bytes[i] ^= (unsigned char)(1 << bit);
                        ck_assert_msg(!state_read(state, STATE_LEASE, slot, &found, read), "byte %zu, bit %d", i, bit);
                        bytes[i] ^= (unsigned char)(1 << bit);
                }
        }
        ck_assert(state_read(state, STATE_LEASE, slot, &found, read));
        state_set_flags(state, STATE_LEASE, slot, STATE_FREED);
        for (int bit = 0; bit < 64; bit++) {
                head->live[0] ^= UINT64_C(1) << bit;
                ck_assert_uint_eq(state_flags(state, STATE_LEASE, slot), UINT32_MAX);
                head->live[0] ^= UINT64_C(1) << bit;
        }
} END_TEST

START_TEST(parcels_are_not_given_again_soon) {
        struct state_process fixed = {0};
        const char *texts[N_PROCESS_TEXTS] = {0};
        uint32_t slot = reserved(STATE_PROCESS), other = reserved(STATE_BUFFER), seen[7];

        for (size_t i = 0; i < 7; i++) {
                seen[i] = state_next_parcel(state, STATE_PROCESS, slot);
                ck_assert_uint_ge(seen[i], 16);
                ck_assert_uint_lt(seen[i], 62 * 62 * 62 * 62);
                ck_assert_uint_ne(seen[i], state_next_parcel(state, STATE_BUFFER, other));
                for (size_t j = 0; j < i; j++)
                        ck_assert_uint_ne(seen[i], seen[j]);
                fixed.parcel = seen[i];
                state_write(state, STATE_PROCESS, slot, &fixed, texts);
        }
        ck_assert_uint_eq(state_next_parcel(state, STATE_PROCESS, slot), seen[0]);
} END_TEST

static int opens(int fd, char why[STATE_WHY_MAX]) {
        struct state *other = NULL;
        int r = state_open(fd, &other, why);

        state_free(other);
        return r;
}

START_TEST(what_is_none_is_not_opened) {
        static const struct {
                size_t at;
                uint8_t flip;
                const char *why;
        } damages[] = {
                {0, 1, "does not begin"}, {16, 8, "a newer gpuipcd"}, {16, 1, "damaged"}, {20, 1, "damaged"}, {64, 1, "damaged"},
        };
        char why[STATE_WHY_MAX];
        int pair[2];

        for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
                ((uint8_t *)state->header)[damages[i].at] ^= damages[i].flip;
                ck_assert_int_eq(opens(dup(state_fd(state)), why), -EBADMSG);
                ck_assert_msg(strstr(why, damages[i].why), "%s", why);
                ((uint8_t *)state->header)[damages[i].at] ^= damages[i].flip;
        }
        ck_assert_int_eq(opens(memfd_create("empty", MFD_CLOEXEC), why), -EBADMSG);
        ck_assert_int_eq(pipe(pair), 0);
        ck_assert_int_eq(opens(pair[0], why), -EBADMSG);
        close(pair[1]);
        ck_assert_int_eq(opens(dup(state_fd(state)), why), 0);
} END_TEST

/* A number of extents that is not there, and an extent of no known kind. */
START_TEST(extents_are_counted_anew) {
        uint32_t slot = lease_written(1, NULL);
        struct state *other;

        state_set_word(state, STATE_LEASE, slot, STATE_LIVE);
        state->header->n_extents = UINT64_C(1) << 40;
        other = reopened();
        ck_assert_uint_eq(state_n_damaged(other), 1);
        ck_assert_int_eq(state_word(other, STATE_LEASE, slot), STATE_LIVE);
        state_free(other);
        ((struct state_extent *)((char *)state->header + STATE_HEADER_BYTES))->kind = 17;
        other = reopened();
        ck_assert_uint_eq(state_n_damaged(other), 1);
        ck_assert_uint_eq(state_n_slots(other, STATE_LEASE), 0);
        state_free(other);
} END_TEST

START_TEST(an_earlier_layout_is_converted) {
        struct state_layout layout = state_layout;
        const char *read[N_LEASE_TEXTS];
        struct state_lease found;
        struct state *old, *new;
        uint32_t slot;

        layout.fixed_bytes[STATE_LEASE] -= 16;
        layout.record_bytes[STATE_LEASE] -= 64;
        state_free(state);
        ck_assert_int_eq(state_new(&layout, 5, &state), 0);
        for (uint64_t i = 1; i <= 400; i++) {
                slot = lease_written(i, "label");
                state_set_word(state, STATE_LEASE, slot, i % 2 ? STATE_LIVE : STATE_DRAINING);
                if (i % 3 == 0)
                        state_give(state, STATE_LEASE, slot);
        }
        state_set_number(state, STATE_LAST_BUFFER, 12);
        old = reopened();
        ck_assert(!state_is_current(old));
        ck_assert_int_eq(state_convert(old, &new), 0);
        ck_assert(state_is_current(new));
        ck_assert_uint_eq(state_generation(new), 6);
        ck_assert_uint_eq(state_number(new, STATE_LAST_BUFFER), 12);
        for (uint32_t i = 0; i < state_n_slots(old, STATE_LEASE); i++) {
                ck_assert_int_eq(state_word(new, STATE_LEASE, i), state_word(old, STATE_LEASE, i));
                if (state_word(new, STATE_LEASE, i) == STATE_FREE)
                        continue;
                ck_assert(state_read(new, STATE_LEASE, i, &found, read));
                ck_assert_uint_eq(found.session, 8);
                ck_assert_int_eq(found.since_usec, 0); /* which it did not know */
                ck_assert_str_eq(read[LEASE_LABEL], "label");
        }
        ck_assert_int_eq(state_reserve(new, STATE_LEASE, &slot), 0);
        ck_assert_int_eq(state_word(new, STATE_LEASE, slot), STATE_FREE);
        state_free(old);
        state_free(new);
} END_TEST

int main(void) {
        Suite *suite = suite_create("state");
        TCase *tcase = tcase_create("state");

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, what_is_written_comes_back);
        tcase_add_test(tcase, nobody_sees_it_before_it_is_published);
        tcase_add_test(tcase, slots_are_given_once);
        tcase_add_test(tcase, kinds_grow_apart);
        tcase_add_test(tcase, texts_too_long_are_cut);
        tcase_add_test(tcase, a_flipped_bit_is_noticed);
        tcase_add_test(tcase, parcels_are_not_given_again_soon);
        tcase_add_test(tcase, what_is_none_is_not_opened);
        tcase_add_test(tcase, extents_are_counted_anew);
        tcase_add_test(tcase, an_earlier_layout_is_converted);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
