/* SPDX-License-Identifier: Apache-2.0 */
/* Channels and who takes part in them. Loop thread. Stores into the control page and wakes those who wait there; never waits itself,
 * never loops on what it finds there. */
#include "channel.h"

#include <stdlib.h>

#include "registry.h"

struct channel *channel_new(const struct channel_spec *spec) {
        struct channel *channel = calloc(1, sizeof(*channel));

        if (!channel)
                return NULL;
        channel->geometry = spec->geometry;
        channel->fences_bytes = spec->fences_bytes;
        channel->control_bytes = spec->control_bytes;
        channel->fences_slot = channel->control_slot = SLOT_NONE;
        for (unsigned i = 0; i < RING_MEMBERS; i++) {
                channel->members[i].channel = channel;
                channel->members[i].number = i;
                list_init(&channel->members[i].by_holder);
        }
        return channel;
}

int64_t channel_n_parcels(int64_t fences_bytes) {
        return fences_bytes > 0 ? 2 : 1;
}

int64_t channel_n_descriptors(int64_t fences_bytes) {
        return channel_n_parcels(fences_bytes) + 1;
}

/* ---- one member -------------------------------------------------------------------------------------------- */

static void member_let_go(struct member *member) {
        struct holder *holder = member->holder;

        list_remove(&member->by_holder);
        member->holder = NULL;
        holder_unref(holder);
}

static void member_die(struct member *member) {
        if (member->channel->page)
                ring_page_mark_dead(member->channel->page, member->number, member->generation);
        member->phase = MEMBER_DEAD;
        member_let_go(member);
}

static void member_mark_gone(struct member *member) {
        struct ring_page *page = member->channel->page;

        if (member->holder && member->holder->ending)
                ring_page_mark_ending(page, member->number, member->generation);
        else
                ring_page_mark_left(page, member->number, member->generation);
}

void member_admit(struct member *member, struct holder *holder) {
        member->phase = MEMBER_ATTACHED;
        member->holder = holder_ref(holder);
        list_append(&holder->members, &member->by_holder);
        ring_page_admit(member->channel->page, member->number, member->generation, member->role);
}

void member_cancel(struct member *member) {
        member->phase = MEMBER_VACANT;
        member->generation--;
}

/* That a process has ended is known where its end can be seen, and nowhere else. */
void member_leave(struct member *member) {
        const struct holder *holder = member->holder;

        if (member->phase != MEMBER_ATTACHED && member->phase != MEMBER_LEFT)
                return;
        if (holder && holder->exited && holder->pidfd >= 0) {
                member_die(member);
                return;
        }
        if (member->phase == MEMBER_ATTACHED && member->channel->page)
                member_mark_gone(member);
        member->phase = MEMBER_LEFT;
        if (holder && (holder->pidfd < 0 || !member->channel->page))
                member_let_go(member);
}

void channel_holder_exited(struct holder *holder) {
        struct member *member;

        if (holder->pidfd < 0)
                return;
        list_for_each(member, &holder->members, by_holder)
                member_die(member);
}

static bool member_is_free(const struct member *member) {
        struct ring_page *page = member->channel->page;

        if (member->phase == MEMBER_VACANT)
                return true;
        return (member->phase == MEMBER_LEFT || member->phase == MEMBER_DEAD) && page &&
               ring_page_is_reaped(page, member->number, member->generation);
}

/* ---- all of them ------------------------------------------------------------------------------------------- */

/* Numbers that nobody had yet come first: whoever looks at an old one may still find its last holder there. */
static struct member *channel_find_free(struct channel *channel) {
        struct member *found = NULL;

        for (unsigned i = 0; i < RING_MEMBERS; i++) {
                struct member *member = &channel->members[i];

                if (member_is_free(member) && (!found || member->generation < found->generation))
                        found = member;
        }
        return found;
}

int channel_check(struct channel *channel, const struct holder *holder, struct failure *failure) {
        if (holder->pidfd < 0)
                return fail_reason(failure, VERDICT_ACCESS_DENIED, "",
                                   "the daemon cannot see your process end, so the others in a channel would not hear of it: the kernel "
                                   "gives it no pidfd of you; run gpuipcd in a pid namespace that sees you, or update the kernel");
        if (!channel || channel_find_free(channel))
                return 0;
        return fail_quota(failure, "channel_participants", RING_MEMBERS, RING_MEMBERS, 1);
}

struct member *channel_reserve(struct channel *channel, enum access access) {
        struct member *member = channel_find_free(channel);

        if (member->holder)
                member_let_go(member);
        member->phase = MEMBER_RESERVED;
        member->generation++;
        member->role = access == ACCESS_RW ? RING_PRODUCER : RING_CONSUMER;
        return member;
}

void channel_close(struct channel *channel) {
        if (channel->page)
                ring_page_close(channel->page);
}

void channel_retire(struct channel *channel) {
        channel_close(channel);
        channel->page = NULL;
        for (unsigned i = 0; i < RING_MEMBERS; i++)
                if (channel->members[i].holder)
                        member_let_go(&channel->members[i]);
}

void channel_free(struct channel *channel) {
        if (!channel)
                return;
        channel->page = NULL;
        for (unsigned i = 0; i < RING_MEMBERS; i++)
                if (channel->members[i].holder)
                        member_let_go(&channel->members[i]);
        free(channel);
}

/* ---- restart ----------------------------------------------------------------------------------------------- */

/* Of a number without a lease the page alone knows whose it was last. Who left with its process alive is not known any more: the others
 * have to see to its end. */
void channel_restore_page(struct channel *channel, struct ring_page *page) {
        channel->page = page;
        for (unsigned i = 0; i < RING_MEMBERS; i++) {
                struct member *member = &channel->members[i];
                uint64_t word = atomic_load(&page->members[i].word);
                enum ring_life life = ring_member_life(word);

                member->generation = ring_member_generation(word);
                if (life == RING_VACANT || life == RING_REAPED)
                        member->phase = MEMBER_VACANT;
                else
                        member->phase = ring_has_process(life) ? MEMBER_LEFT : MEMBER_DEAD;
        }
}

/* A lease that was recorded, but of which the page was not told any more, was never told to its holder either. */
struct member *channel_restore_member(struct channel *channel, uint32_t number, uint32_t generation, enum access access,
                                      struct holder *holder) {
        struct member *member = number < RING_MEMBERS ? &channel->members[number] : NULL;
        uint64_t word;

        if (!member || generation == 0 || member->phase == MEMBER_ATTACHED)
                return NULL;
        member->role = access == ACCESS_RW ? RING_PRODUCER : RING_CONSUMER;
        word = channel->page ? atomic_load(&channel->page->members[number].word) : 0;
        if (channel->page && (ring_member_generation(word) != generation || ring_member_life(word) == RING_VACANT))
                ring_page_admit(channel->page, number, generation, member->role);
        member->generation = generation;
        member->phase = MEMBER_ATTACHED;
        member->holder = holder_ref(holder);
        list_append(&holder->members, &member->by_holder);
        return member;
}

struct member *channel_restore_drained(struct channel *channel, uint32_t number, uint32_t generation) {
        struct member *member = number < RING_MEMBERS ? &channel->members[number] : NULL;

        if (!member || !channel->page || generation == 0)
                return NULL;
        return member->generation > generation || ring_page_is_reaped(channel->page, number, generation) ? member : NULL;
}

void channel_restored(struct channel *channel) {
        for (unsigned i = 0; i < RING_MEMBERS; i++)
                if (channel->page && channel->members[i].phase == MEMBER_LEFT && !channel->members[i].holder)
                        ring_page_mark_left(channel->page, i, channel->members[i].generation);
}

/* ---- looking ----------------------------------------------------------------------------------------------- */

bool member_counts(const struct member *member) {
        if (member->phase == MEMBER_ATTACHED)
                return true;
        return member->phase == MEMBER_LEFT && member->holder && !member_is_free(member);
}

void channel_describe(const struct buffer *buffer, struct channel_info *ret) {
        const struct channel *channel = buffer->channel;
        const struct ring_geometry *geometry = &channel->geometry;
        int64_t n = 0;

        for (unsigned i = 0; i < RING_MEMBERS; i++)
                n += member_counts(&channel->members[i]);
        *ret = (struct channel_info){
                .id = rcstr_text(buffer->id),
                .name = rcstr_text(buffer->name),
                .kind = geometry->mode == RING_QUEUE ? CHANNEL_QUEUE : CHANNEL_BROADCAST,
                .policy = geometry->policy == RING_BLOCK ? CHANNEL_BLOCK : CHANNEL_DROP_OLDEST,
                .slots = geometry->n_slots,
                .slot_bytes = (int64_t)geometry->slot_bytes,
                .meta_bytes = geometry->meta_bytes,
                .size = buffer->size,
                .allocated = buffer->allocated,
                .control_bytes = channel->control_bytes,
                .device = rcstr_text(buffer->charge.device->uuid),
                .handle = buffer->handle,
                .owner_uid = buffer->owner.uid,
                .owner_gid = buffer->owner.gid,
                .mode = buffer->mode_text,
                .participants = n,
                .created_usec = buffer->created_usec,
        };
}

void member_describe(const struct member *member, struct participant_info *ret) {
        const struct holder *holder = member->holder;

        *ret = (struct participant_info){
                .number = member->number,
                .generation = member->generation,
                .role = member->role == RING_PRODUCER ? PARTICIPANT_PRODUCER : PARTICIPANT_CONSUMER,
                .fd = SCHEMA_UNSET,
                .pid = holder->pid,
                .uid = holder->uid,
                .state = member->phase == MEMBER_ATTACHED ? PARTICIPANT_ATTACHED : PARTICIPANT_LEFT,
        };
}
