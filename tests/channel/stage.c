/* SPDX-License-Identifier: Apache-2.0 */
/* A channel without a broker, for the tests of this room. */
#include "stage.h"

#include <check.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void stage_init(struct stage *stage, enum ring_mode mode, enum ring_policy policy, uint32_t n_slots, uint64_t slot_bytes) {
        const char *fault;

        memset(stage, 0, sizeof(*stage));
        stage->geometry = (struct ring_geometry){
                .mode = mode, .policy = policy, .n_slots = n_slots, .meta_bytes = 64, .slot_bytes = slot_bytes
        };
        fault = ring_geometry_fault(&stage->geometry);
        ck_assert_msg(!fault, "%s", fault);
        stage->bytes = ring_page_bytes(&stage->geometry);
        stage->fd = memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        ck_assert_int_ge(stage->fd, 0);
        ck_assert_int_eq(ftruncate(stage->fd, (off_t)stage->bytes), 0);
        ck_assert_int_eq(fcntl(stage->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
        stage->page = mmap(NULL, stage->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, stage->fd, 0);
        ck_assert_ptr_ne(stage->page, MAP_FAILED);
        stage->data = mmap(NULL, n_slots * slot_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ck_assert_ptr_ne(stage->data, MAP_FAILED);
        ring_page_init(stage->page, &stage->geometry);
}

void stage_deinit(struct stage *stage) {
        (void)munmap(stage->data, stage->geometry.n_slots * stage->geometry.slot_bytes);
        (void)munmap(stage->page, stage->bytes);
        (void)close(stage->fd);
}

unsigned stage_admit(struct stage *stage, enum ring_role role) {
        ring_page_admit(stage->page, stage->n_members, 1, role);
        return stage->n_members++;
}

struct ring *stage_attach(struct stage *stage, unsigned member) {
        struct ring *ring = NULL;
        const char *fault = "none";
        int r = ring_attach(stage->fd, member, 1, &ring, &fault);

        ck_assert_msg(r == RING_OK, "%s (%d), fault: %s", ring_verdict_sentence(r), r, fault);
        return ring;
}

struct ring *stage_join(struct stage *stage, enum ring_role role) {
        return stage_attach(stage, stage_admit(stage, role));
}

void *stage_bytes(const struct stage *stage, const struct ring_item *item) {
        return stage->data + item->slot * stage->geometry.slot_bytes;
}

void put(struct ring *ring, uint64_t number) {
        struct ring_item item;

        ck_assert_int_eq(ring_begin_produce(ring, 0, &item), RING_OK);
        ck_assert_int_eq(ring_publish(ring, &item, number, &number, sizeof(number), 0), RING_OK);
}

uint64_t take(struct ring *ring, struct ring_item *ret_item) {
        uint64_t number;

        ck_assert_int_eq(ring_take(ring, 0, ret_item), RING_OK);
        ck_assert_uint_eq(ret_item->n_meta, sizeof(number));
        memcpy(&number, ret_item->meta, sizeof(number));
        ck_assert_uint_eq(ret_item->size, number);
        return number;
}

uint64_t get(struct ring *ring) {
        struct ring_item item;
        uint64_t number = take(ring, &item);

        ck_assert_int_eq(ring_release(ring, &item, 0), RING_OK);
        return number;
}
