/* SPDX-License-Identifier: Apache-2.0 */
/* Channels in the ledger: who pays for both parts, which number a lease gets, and what the control page is told. */
#include "ledger.h"
#include "tests/support/suite.h"

#define CONTROL (4 * PAGE)

static struct world world;
static struct ring_page *page;

static struct channel_spec channel_spec(void) {
        return (struct channel_spec){
                .geometry = {.mode = RING_QUEUE, .policy = RING_BLOCK, .n_slots = 4, .slot_bytes = 100},
                .control_bytes = CONTROL,
                .host = &world.device,
        };
}

static void set_up(void) {
        struct limits limits = world_limits();
        struct channel_spec spec = channel_spec();

        world_init(&world, &limits);
        page = calloc(1, ring_page_bytes(&spec.geometry));
        ck_assert_ptr_nonnull(page);
        ring_page_init(page, &spec.geometry);
}

static void tear_down(void) {
        (void)world_close_memory(&world);
        world_deinit(&world);
        free(page);
}

static struct buffer_spec spec_of(const struct channel_spec *channel, const char *name) {
        struct buffer_spec spec = world_spec(&world, PAGE, name);

        spec.mode = 0666;
        spec.channel = channel;
        return spec;
}

static struct buffer *channel_made(struct client *client, struct holder *holder, const char *name) {
        struct channel_spec channel = channel_spec();
        struct buffer_spec spec = spec_of(&channel, name);
        struct buffer *buffer;
        struct lease *lease;

        ck_assert_int_eq(registry_allocate_reserve(&world.registry, client, holder, &spec, &buffer, &lease, &world.never, &world.queue,
                                                   &world.failure), 0);
        world_check(&world);
        buffer->channel->page = page;
        registry_allocate_commit(&world.registry, buffer, backing_new(&world), world.now_usec);
        world_check(&world);
        return buffer;
}

static enum ring_life life(unsigned number) {
        return ring_member_life(atomic_load(&page->members[number].word));
}

START_TEST(who_cannot_be_seen_to_end_takes_no_part) {
        struct client *client = world_client(&world, ALICE);
        struct holder *seen = world_holder(&world, ALICE), *blind = world_holder(&world, ALICE);
        struct channel_spec channel = channel_spec();
        struct buffer_spec spec = spec_of(&channel, NULL);
        struct buffer *buffer;
        struct lease *lease;

        blind->pidfd = -1;
        ck_assert_int_eq(world_try(&world, client, blind, &spec), VERDICT_ACCESS_DENIED);
        ck_assert_ptr_nonnull(strstr(world.failure.reason, "pidfd"));
        buffer = channel_made(client, seen, NULL);
        ck_assert_int_eq(registry_open_reserve(&world.registry, client, blind, buffer, ACCESS_RO, NULL, &lease, &world.failure),
                         VERDICT_ACCESS_DENIED);
        world_check(&world);
        world_exit(&world, blind);
        world_exit(&world, seen);
        world_end(&world, client);
} END_TEST

START_TEST(both_parts_have_one_payer) {
        struct client *alice = world_client(&world, ALICE), *bob = world_client(&world, BOB);
        struct holder *a = world_holder(&world, ALICE), *b = world_holder(&world, BOB);
        struct buffer *buffer = channel_made(alice, a, NULL);

        ck_assert_int_eq(alice->account->used_bytes, PAGE + CONTROL);
        ck_assert_int_eq(alice->bytes, PAGE + CONTROL);
        ck_assert_int_eq(world.device.used_bytes, PAGE + CONTROL);
        (void)world_open(&world, bob, b, buffer);
        atomic_store(&page->joined, 3);
        world_exit(&world, a);
        ck_assert_int_eq(life(0), RING_DEAD);
        ck_assert_int_eq(alice->account->used_bytes, 0);
        ck_assert_int_eq(bob->account->used_bytes, PAGE + CONTROL);
        world_end(&world, bob);
        ck_assert_int_eq(life(1), RING_LEFT);
        ck_assert_int_eq(world.device.draining_bytes, PAGE + CONTROL);
        ck_assert_uint_eq(atomic_load(&page->closed), 1);
        (void)world_close_memory(&world);
        ck_assert_int_eq(world.device.used_bytes, PAGE + CONTROL);
        world_exit(&world, b);
        ck_assert_int_eq(world.device.used_bytes, 0);
        world_end(&world, alice);
} END_TEST

/* It is known when its connection ends, and is none of the daemon's business any more but for its end. */
START_TEST(one_that_is_ending_is_left_and_told_so) {
        struct client *alice = world_client(&world, ALICE), *bob = world_client(&world, BOB);
        struct holder *a = world_holder(&world, ALICE), *b = world_holder(&world, BOB);
        struct buffer *buffer = channel_made(alice, a, NULL);
        struct lease *lease = world_open(&world, bob, b, buffer);

        atomic_store(&page->joined, 3);
        ck_assert_ptr_nonnull(lease);
        b->ending = true;
        world_end(&world, bob);
        ck_assert_int_eq(life(1), RING_ENDING);
        ck_assert_int_eq(life(0), RING_ALIVE);
        ck_assert(member_counts(&buffer->channel->members[1]));
        world_exit(&world, b);
        ck_assert_int_eq(life(1), RING_DEAD);
        ck_assert(!member_counts(&buffer->channel->members[1]));
        world_exit(&world, a);
        world_end(&world, alice);
} END_TEST

/* What was reserved and given up leaves the number and its generation as they were. */
START_TEST(a_number_given_up_is_the_next_one_s) {
        struct client *client = world_client(&world, ALICE);
        struct holder *holder = world_holder(&world, ALICE);
        struct buffer *buffer = channel_made(client, holder, NULL);
        struct lease *lease;

        for (int i = 0; i < 3; i++) {
                ck_assert_int_eq(registry_open_reserve(&world.registry, client, holder, buffer, ACCESS_RO, NULL, &lease, &world.failure),
                                 0);
                world_check(&world);
                ck_assert_uint_eq(lease->member->number, 1);
                ck_assert_uint_eq(lease->member->generation, 1);
                ck_assert_int_eq(life(1), RING_VACANT);
                registry_open_cancel(&world.registry, lease, world.now_usec, world.monotonic_usec);
                world_check(&world);
        }
        lease = world_open(&world, client, holder, buffer);
        ck_assert_uint_eq(lease->member->number, 1);
        ck_assert_int_eq(life(1), RING_ALIVE);
        world_exit(&world, holder);
        world_end(&world, client);
} END_TEST

/* It could not map the memory, say, and its process lives on. */
START_TEST(who_never_came_leaves_its_number) {
        struct client *client = world_client(&world, ALICE);
        struct holder *holder = world_holder(&world, ALICE);
        struct buffer *buffer = channel_made(client, holder, NULL);

        for (unsigned i = 0; i < 2 * RING_MEMBERS; i++) {
                struct client *other = world_client(&world, ALICE);
                unsigned number = world_open(&world, other, holder, buffer)->member->number;

                if (i == RING_MEMBERS)
                        atomic_store(&page->joined, UINT64_C(1) << number);
                world_end(&world, other);
                ck_assert_int_eq(life(number), i == RING_MEMBERS ? RING_LEFT : RING_REAPED);
        }
        world_exit(&world, holder);
        world_end(&world, client);
} END_TEST

/* Its lease is held until its process ends; by then the number is somebody else's. */
START_TEST(who_gave_its_number_back_takes_nobody_s_along) {
        struct client *client = world_client(&world, ALICE), *gone = world_client(&world, ALICE);
        struct holder *holder = world_holder(&world, ALICE), *old = world_holder(&world, ALICE);
        struct buffer *buffer = channel_made(client, holder, NULL);
        struct lease *lease = world_open(&world, gone, old, buffer);

        ck_assert_uint_eq(lease->member->number, 1);
        atomic_store(&page->joined, 3);
        world_end(&world, gone);
        ring_page_give_back(page, 1, 1);
        while (atomic_load(&page->members[1].word) != ring_member_word(2, RING_CONSUMER, RING_ALIVE))
                lease = world_open(&world, client, holder, buffer);
        ck_assert_uint_eq(lease->member->number, 1);
        world_exit(&world, old);
        ck_assert_int_eq(life(1), RING_ALIVE);
        world_exit(&world, holder);
        world_end(&world, client);
} END_TEST

START_TEST(what_both_exceed_is_told_at_once) {
        struct client *client = world_client(&world, ALICE);
        struct holder *holder = world_holder(&world, ALICE);
        struct channel_spec channel = channel_spec();
        struct buffer_spec spec = spec_of(&channel, NULL);

        world.registry.limits.bytes_per_session = PAGE + CONTROL - 1;
        ck_assert_int_eq(world_try(&world, client, holder, &spec), VERDICT_QUOTA_EXCEEDED);
        ck_assert_int_eq(world.failure.asked, PAGE + CONTROL);
        world.registry.limits.bytes_per_session = PAGE + CONTROL;
        world.registry.limits.bytes_per_uid = PAGE + CONTROL - 1;
        ck_assert_int_eq(world_try(&world, client, holder, &spec), VERDICT_QUOTA_EXCEEDED);
        ck_assert(world.never);
        world.registry.limits.bytes_per_uid = PAGE + CONTROL;
        ck_assert_int_eq(world_try(&world, client, holder, &spec), 0);
        world_exit(&world, holder);
        world_end(&world, client);
} END_TEST

int main(void) {
        Suite *suite = suite_create("channel_books");
        TCase *tcase = tcase_create("channel_books");

        tcase_add_checked_fixture(tcase, set_up, tear_down);
        tcase_add_test(tcase, who_cannot_be_seen_to_end_takes_no_part);
        tcase_add_test(tcase, both_parts_have_one_payer);
        tcase_add_test(tcase, one_that_is_ending_is_left_and_told_so);
        tcase_add_test(tcase, a_number_given_up_is_the_next_one_s);
        tcase_add_test(tcase, who_gave_its_number_back_takes_nobody_s_along);
        tcase_add_test(tcase, who_never_came_leaves_its_number);
        tcase_add_test(tcase, what_both_exceed_is_told_at_once);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
