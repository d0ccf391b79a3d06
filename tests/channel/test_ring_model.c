/* SPDX-License-Identifier: Apache-2.0 */
/* The ring's own sources, every interleaving of a few members: nothing lost, nothing twice, in order, nobody stuck, whoever
 * dies and wherever. Then each rule of the protocol is taken away, and some interleaving must break. not under valgrind: the
 * stacks of its coroutines are copied about. deadline: 300 s */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/deadline.h"
#include "model.h"

static bool rule_holds(const char *name);
static void *give_ring(size_t n);

/* The layer's other side: each access is a step, the clock stands still, rings lie in the world. */
#define RING_AT(what, address) model_at(what, address)
#define RING_RULE(name) rule_holds(#name)
#define RING_FUTEX(address, operation, value, until) ((void)(value), (void)(until), model_futex(address, operation))
#define RING_EVENT_LOOK(count) model_event_look(count)
#define RING_EVENT_CHANGE(count) model_event_change(count)
#define RING_TALLY(object) ((void)(object))
#define clock_usec() INT64_C(0)
#define calloc(n, size) give_ring((n) * (size))
#define free(pointer) ((void)(pointer))
#define sched_getaffinity(pid, n, set) ((void)(set), -1)

#include "proto/ring_page.c"

#include "client/ring.c"
#include "client/ring_broadcast.c"
#include "client/ring_queue.c"
#include "client/ring_reap.c"
#include "client/ring_stats.c"
#include "client/ring_wait.c"
#include "tests/support/suite.h"

#define SLOTS_MAX 3
#define TICKETS_MAX 8
#define STATES_MAX 6000000

/* Who takes part, one letter each, which is the actor's and the member's number:
 * P produces; K too, but cancels its first item; C consumes what comes, there from the start; D likewise, but one item only,
 * then leaves; J is let in and joins sometime; S sometime takes over the number of a consumer that left or was reaped; W sees a death,
 * marks it, reaps twice; U too, but finds the dead one's fence unfinished; E sees that it is ending, if nobody saw its death before, and
 * decides with its fence unfinished; M only marks it; L declares the first consumer left once
 * it is let in, also before it has come; X closes the channel. */
struct scenario {
        const char *name;
        enum ring_mode mode;
        enum ring_policy policy;
        unsigned n_slots;
        const char *cast;
        unsigned items; /* of each producer */
        bool deaths;    /* one at most */
        unsigned preemptions;
};

struct told {
        uint64_t ticket;
        int64_t id; /* 0: broken */
};

static _Alignas(64) unsigned char page_bytes[sizeof(struct ring_page) + SLOTS_MAX * 128];
static struct ring_page *const page = (struct ring_page *)page_bytes;

static struct {
        struct ring rings[MODEL_ACTORS];
        int64_t data[SLOTS_MAX][2]; /* the items' bytes: equal halves */
        int64_t claimed[TICKETS_MAX];
        int64_t published[TICKETS_MAX];
        struct told told[MODEL_ACTORS][TICKETS_MAX];
        int64_t n_told[MODEL_ACTORS];
        int64_t has_ended[MODEL_ACTORS];
        int64_t start[MODEL_ACTORS]; /* the first ticket that it will see; -1: not joined */
        int64_t owed[TICKETS_MAX];   /* bit i: actor i had joined, as the figures told the producer before it began the item */
        int64_t producers_left, consumers_left, victim, is_noted, has_left, is_given;
        int64_t in_vain; /* bit i: actor i joined in vain */
} world;

static const struct scenario *scenario;
static const char *broken_rule;

static bool rule_holds(const char *name) {
        return !broken_rule || strcmp(name, broken_rule) != 0;
}

static void *give_ring(size_t n) {
        (void)n;
        return &world.rings[model_me()];
}

static bool is_one_of(unsigned actor, const char *letters) {
        return strchr(letters, scenario->cast[actor]) != NULL;
}

/* ---- actors ----------------------------------------------------------------------------------------------- */

/* The last one closes. Whoever dies on the way to that is done for by the watcher. */
static void one_less(unsigned actor, int64_t *left) {
        *left -= !world.has_ended[actor];
        world.has_ended[actor] = 1;
        if (*left == 0)
                ring_page_close(page);
}

/* Those that join and are told as being there. */
static int64_t who_has_joined(const struct ring *ring) {
        int64_t who = 0;

        for (unsigned i = 0; scenario->mode == RING_BROADCAST && scenario->cast[i]; i++)
                if (is_one_of(i, "J") && life_of(ring, &page->members[i], ring_note(&page->members[i].word)) == RING_ALIVE)
                        who |= INT64_C(1) << i;
        return who;
}

static void produce(unsigned me) {
        struct ring *ring = &world.rings[me];
        struct ring_item item;

        for (unsigned k = 0; k < scenario->items; k++) {
                int64_t id = me * 100 + k + 1, joined = who_has_joined(ring);
                int r = ring_begin_produce(ring, DEADLINE_NONE, &item);
                if (r == RING_CLOSED)
                        break;
                if (r != RING_OK)
                        model_fail("begin: %s", ring_verdict_sentence(r));
                if (item.ticket >= TICKETS_MAX || world.claimed[item.ticket] != 0)
                        model_fail("ticket %lu is given twice", (unsigned long)item.ticket);
                world.claimed[item.ticket] = id;
                world.owed[item.ticket] = joined;
                if (scenario->cast[me] == 'K' && k == 0) {
                        world.claimed[item.ticket] = -1;
                        r = ring_cancel(ring, &item);
                } else {
                        if (!rule_holds("written_before_published"))
                                r = ring_publish(ring, &item, 8, &id, sizeof(id), 1);
                        world.data[item.slot][0] = id;
                        model_at("write half", NULL);
                        world.data[item.slot][1] = id;
                        if (rule_holds("written_before_published"))
                                r = ring_publish(ring, &item, 8, &id, sizeof(id), 1);
                        world.published[item.ticket] = id;
                }
                if (r != RING_OK)
                        model_fail("publish: %s", ring_verdict_sentence(r));
        }
        one_less(me, &world.producers_left);
}

static void tell(unsigned me, uint64_t ticket, int64_t id) {
        int64_t n = world.n_told[me];

        if (n > 0 && world.told[me][n - 1].ticket >= ticket)
                model_fail("ticket %lu after a later one", (unsigned long)ticket);
        world.told[me][n] = (struct told){ .ticket = ticket, .id = id };
        world.n_told[me]++;
}

static void consume_from(unsigned me, struct ring *ring, unsigned most) {
        bool ends = strchr(scenario->cast, 'E'), broken;
        struct ring_item item;

        for (unsigned k = 0; k < most; k++) {
                int r = ring_take(ring, DEADLINE_NONE, &item);
                int64_t id, first, second;
                if (r == RING_BROKEN) {
                        tell(me, item.ticket, 0);
                        continue;
                }
                if (r == RING_CLOSED || (r == RING_GONE && world.has_left))
                        return;
                if (r != RING_OK)
                        model_fail("take: %s", ring_verdict_sentence(r));
                memcpy(&id, item.meta, sizeof(id));
                first = world.data[item.slot][0];
                model_at("read half", NULL);
                second = world.data[item.slot][1];
                if (first != second || first != id || item.size != 8 || item.producer != (unsigned)id / 100)
                        model_fail("ticket %lu: %ld, %ld are not twice %ld", (unsigned long)item.ticket, (long)first,
                                   (long)second, (long)id);
                tell(me, item.ticket, id);
                broken = ends && ring_is_broken(ring, &item);
                r = ring_release(ring, &item, 0);
                if (r != RING_OK)
                        model_fail("release: %s", ring_verdict_sentence(r));
                if (broken && !ring_is_broken(ring, &item))
                        model_fail("ticket %lu was broken and is not", (unsigned long)item.ticket);
        }
}

static void consume(unsigned me) {
        bool leaves = scenario->cast[me] == 'D';

        consume_from(me, &world.rings[me], leaves ? 1 : TICKETS_MAX);
        if (leaves && ring_leave(&world.rings[me]) != RING_OK)
                model_fail("leave");
        one_less(me, &world.consumers_left);
}

static bool attach(unsigned member, uint32_t generation) {
        const char *fault;
        struct ring *ring;
        /* Its length is told as if it were whole pages. */
        int r = ring_attach_page(page, 65536, member, generation, &ring, &fault);

        if (r == RING_GONE && world.has_left && generation == 1)
                world.in_vain |= INT64_C(1) << member;
        else if (r != RING_OK)
                model_fail("attach: %s", ring_verdict_sentence(r));
        return r == RING_OK;
}

static void join(unsigned me) {
        ring_page_admit(page, me, 1, RING_CONSUMER);
        if (attach(me, 1)) {
                world.start[me] = (int64_t)world.rings[me].start;
                consume_from(me, &world.rings[me], TICKETS_MAX);
        }
        one_less(me, &world.consumers_left);
}

/* A consumer's number that may be given again. */
static int reusable(void) {
        for (unsigned i = 0; scenario->cast[i]; i++)
                if (is_one_of(i, "CDJ") && page->members[i].word == ring_member_word(1, RING_CONSUMER, RING_REAPED))
                        return (int)i;
        return -1;
}

static void succeed(unsigned me) {
        unsigned member = (unsigned)reusable();

        ring_page_admit(page, member, 2, RING_CONSUMER);
        (void)attach(member, 2);
        world.start[me] = (int64_t)world.rings[me].start;
        consume_from(me, &world.rings[me], TICKETS_MAX);
        one_less(me, &world.consumers_left);
}

static void watch(unsigned me) {
        struct ring *ring = &world.rings[me];
        unsigned victim = (unsigned)world.victim;
        bool first = !world.is_noted;

        world.is_noted = 1;
        ring_mark_dead(ring, victim, 1);
        if (first && is_one_of(victim, "PK"))
                one_less(victim, &world.producers_left);
        if (first && is_one_of(victim, "CDJ"))
                one_less(victim, &world.consumers_left);
        if (scenario->cast[me] == 'M')
                return;
        for (int i = 0; i < 2; i++) {
                int r = ring_reap(ring, victim, 1, scenario->cast[me] == 'U' ? 0 : RING_FENCE_MAX);
                if (r != RING_OK && r != RING_GONE)
                        model_fail("reap: %s", ring_verdict_sentence(r));
        }
        (void)ring_reaped(ring, victim, 1);
}

static void see_it_ending(unsigned me) {
        unsigned victim = (unsigned)world.victim;
        int r;

        ring_page_mark_ending(page, victim, 1);
        r = ring_decide(&world.rings[me], victim, 1, 0);
        if (r != RING_OK && r != RING_GONE)
                model_fail("decide: %s", ring_verdict_sentence(r));
}

static unsigned first_consumer(void) {
        unsigned i = 0;

        while (!is_one_of(i, "CJ"))
                i++;
        return i;
}

static bool is_vacant(unsigned member) {
        return ring_member_life(page->members[member].word) == RING_VACANT;
}

static void declare_left(unsigned me) {
        (void)me;
        world.has_left = 1;
        ring_page_mark_left(page, first_consumer(), 1);
}

static void close_all(unsigned me) {
        (void)me;
        ring_page_close(page);
}

/* A member's own life changes by its own hand, unless it is declared left; others' lives only in scenes of life and death. */
static bool is_quiet(const volatile void *address) {
        size_t at = (size_t)((const volatile char *)address - (char *)page->members);

        if (at >= sizeof(page->members) || at % sizeof(struct ring_member) != 0 || strchr(scenario->cast, 'L'))
                return false;
        return address == &page->members[model_me()].word || (!scenario->deaths && !strpbrk(scenario->cast, "DJS"));
}

/* It is the broker that lets one in and declares one left, the one after the other. */
static bool is_asleep(unsigned actor) {
        switch (scenario->cast[actor]) {
        case 'W':
        case 'U':
        case 'E':
        case 'M': return world.victim < 0;
        case 'S': return reusable() < 0;
        case 'L': return is_vacant(first_consumer());
        default: return false;
        }
}

static bool may_die(unsigned actor) {
        return scenario->deaths && world.victim < 0 && is_one_of(actor, "PKCDJ") && !is_vacant(actor);
}

static void died(unsigned actor) {
        world.victim = actor;
}

/* ---- the end ---------------------------------------------------------------------------------------------- */

static bool was_told(unsigned actor, uint64_t ticket) {
        for (int64_t i = 0; i < world.n_told[actor]; i++)
                if (world.told[actor][i].ticket == ticket)
                        return true;
        return false;
}

static void check_known(unsigned actor) {
        for (int64_t i = 0; i < world.n_told[actor]; i++) {
                struct told told = world.told[actor][i];
                int64_t claimed = world.claimed[told.ticket];
                if (claimed != 0 && told.id != 0 && told.id != claimed)
                        model_fail("ticket %lu: told %ld, was %ld", (unsigned long)told.ticket, (long)told.id, (long)claimed);
                if (told.id == 0 && world.published[told.ticket] != 0 && !strpbrk(scenario->cast, "UE"))
                        model_fail("ticket %lu was whole and is told broken", (unsigned long)told.ticket);
        }
}

static struct ring_slot *slot_at(unsigned index) {
        return (struct ring_slot *)(page_bytes + sizeof(struct ring_page) + index * 128);
}

static bool was_declared_left(unsigned actor) {
        return page->members[actor].word == ring_member_word(1, RING_CONSUMER, RING_LEFT);
}

static void end_queue(const bool *is_dead) {
        unsigned n_missing = 0, n_drops = 0, may_miss = 0, n_published = 0;
        bool consumers = false;

        for (unsigned i = 0; scenario->cast[i]; i++) {
                n_drops += (unsigned)page->members[i].figures.drops;
                may_miss += is_dead[i] && is_one_of(i, "CDJ");
                consumers |= !is_dead[i] && (is_one_of(i, "C") || (is_one_of(i, "JS") && world.start[i] >= 0 && !was_declared_left(i)));
        }
        if (!consumers)
                return;
        for (uint64_t t = 0; t < TICKETS_MAX; t++) {
                unsigned n = 0;
                for (unsigned i = 0; scenario->cast[i]; i++)
                        n += was_told(i, t);
                if (n > 1)
                        model_fail("ticket %lu: told %u times", (unsigned long)t, n);
                n_missing += n == 0 && world.published[t] != 0;
                n_published += world.published[t] != 0;
                if (n == 0 && world.claimed[t] > 0 && world.published[t] == 0 && scenario->policy == RING_BLOCK && !may_miss)
                        model_fail("ticket %lu was left unfinished and nobody was told", (unsigned long)t);
        }
        if (world.victim < 0 && n_missing != n_drops)
                model_fail("of %u items %u were not told, %u dropped", n_published, n_missing, n_drops);
        if (n_missing > n_drops + may_miss)
                model_fail("of %u items %u were not told, %u dropped, %u in dead hands", n_published, n_missing, n_drops, may_miss);
        for (unsigned i = 0; i < scenario->n_slots; i++) {
                enum ring_state state = ring_word_state(slot_at(i)->word);
                bool buried = strpbrk(scenario->cast, "WU") || world.victim < 0;
                if (state == RING_READY || state == RING_CLAIMED || (buried && state == RING_TAKEN))
                        model_fail("slot %u is left in state %d", i, state);
        }
}

static void end_broadcast(unsigned actor) {
        uint64_t end = 0, start = (uint64_t)world.start[actor], drops;

        for (unsigned i = 0; i < scenario->n_slots; i++) {
                uint64_t word = slot_at(i)->word;
                if (ring_word_state(word) != RING_FREE && ring_word_ticket(word) >= end)
                        end = ring_word_ticket(word) + 1;
        }
        for (uint64_t t = 0; t < start && t < TICKETS_MAX; t++)
                if (world.published[t] != 0 && world.owed[t] >> actor & 1)
                        model_fail("ticket %lu was begun when %u was there, who begins at %lu", (unsigned long)t, actor,
                                   (unsigned long)start);
        drops = actor < MODEL_ACTORS ? page->members[world.rings[actor].me].figures.drops : 0;
        for (uint64_t t = start; t < end; t++) {
                if (was_told(actor, t) || world.published[t] == 0)
                        continue;
                if (scenario->policy == RING_BLOCK)
                        model_fail("ticket %lu was not told to %u", (unsigned long)t, actor);
                /* A producer may have dropped the oldest so as to claim, and died before it did. */
                if (t + scenario->n_slots >= end + (world.victim >= 0))
                        model_fail("ticket %lu is not the oldest and was dropped for %u", (unsigned long)t, actor);
        }
        if (scenario->policy == RING_BLOCK && drops > 0)
                model_fail("%lu dropped in a ring that blocks", (unsigned long)drops);
        if (world.victim < 0 && world.n_told[actor] + (int64_t)drops != (int64_t)(end > start ? end - start : 0) &&
            !strpbrk(scenario->cast, "KX"))
                model_fail("%lu to %lu: %ld told, %lu dropped", (unsigned long)start, (unsigned long)end,
                           (long)world.n_told[actor], (unsigned long)drops);
}

/* Whose number is free at the end: that of one who joined in vain, also in death, and nobody's who came and is merely left. */
static void end_of_who_joins(unsigned actor, bool is_dead) {
        uint64_t word = page->members[actor].word;
        enum ring_life life = ring_member_life(word);
        bool came = world.start[actor] >= 0;

        if (ring_member_generation(word) != 1) {
                if (came && !is_dead)
                        model_fail("the number of %u, who came, is given to another", actor);
        } else if (world.in_vain >> actor & 1 ? life != RING_REAPED : !is_dead && life != RING_ALIVE && life != RING_LEFT)
                model_fail("%u %s, and its number is in state %d", actor, came ? "came" : "joined in vain", life);
        else if (is_dead && strpbrk(scenario->cast, "W") && life != RING_REAPED)
                model_fail("%u died, and its number is in state %d", actor, life);
}

static void end(const bool *is_dead) {
        for (unsigned i = 0; scenario->cast[i]; i++)
                check_known(i);
        for (unsigned i = 0; scenario->cast[i]; i++)
                if (is_one_of(i, "J"))
                        end_of_who_joins(i, is_dead[i]);
        if (scenario->mode == RING_QUEUE)
                end_queue(is_dead);
        for (unsigned i = 0; scenario->mode == RING_BROADCAST && scenario->cast[i]; i++)
                if (!is_dead[i] && is_one_of(i, "CJS") && world.start[i] >= 0 && !(world.has_left && is_one_of(i, "CJ")))
                        end_broadcast(i);
}

/* ---- scenes ----------------------------------------------------------------------------------------------- */

static void reset(void) {
        struct ring_geometry geometry = { .mode = scenario->mode,
                                          .policy = scenario->policy,
                                          .n_slots = scenario->n_slots,
                                          .meta_bytes = 8,
                                          .slot_bytes = 16 };
        memset(page_bytes, 0, sizeof(page_bytes));
        memset(&world, 0, sizeof(world));
        ring_page_init(page, &geometry);
        world.victim = -1;
        for (unsigned i = 0; scenario->cast[i]; i++) {
                struct ring *ring = &world.rings[i];
                bool produces = !is_one_of(i, "CDJS");
                world.producers_left += is_one_of(i, "PK");
                world.consumers_left += is_one_of(i, "CDJS");
                world.start[i] = is_one_of(i, "JS") ? -1 : 0;
                if (is_one_of(i, "JS"))
                        continue;
                page->members[i].word = ring_member_word(1, produces ? RING_PRODUCER : RING_CONSUMER, RING_ALIVE);
                page->joined |= UINT64_C(1) << i;
                ring->page = page;
                ring->geometry = geometry;
                ring->stride = 128;
                ring->me = i;
                ring->generation = 1;
                ring->role = produces ? RING_PRODUCER : RING_CONSUMER;
                if (produces || scenario->mode != RING_BROADCAST)
                        continue;
                page->members[i].cursor = ring_cursor(0, RING_IDLE);
                page->readers |= UINT64_C(1) << i;
        }
}

/* A sanitizer has its own idea of stacks. */
static bool is_watched(const char *test) {
        if (getenv("GPUIPC_SANITIZER"))
                printf("SKIP %s: stacks are copied about, which a sanitizer does not bear\n", test);
        return getenv("GPUIPC_SANITIZER") != NULL;
}

static struct model_result run(const struct scenario *which, const char *rule) {
        static void (*const parts[128])(unsigned) = { ['P'] = produce, ['K'] = produce, ['C'] = consume,      ['D'] = consume,
                                                      ['J'] = join,    ['S'] = succeed, ['W'] = watch,        ['M'] = watch,
                                                      ['U'] = watch, ['E'] = see_it_ending,
                                                      ['L'] = declare_left, ['X'] = close_all };
        struct model_plan plan = { .n_actors = (unsigned)strlen(which->cast),
                                   .world = { { page_bytes, sizeof(struct ring_page) - (RING_MEMBERS - 5) * sizeof(struct ring_member) },
                                              { page_bytes + sizeof(struct ring_page), which->n_slots * 128 },
                                              { &world, sizeof(world) } },
                                   .reset = reset,
                                   .is_quiet = is_quiet,
                                   .is_asleep = is_asleep,
                                   .may_die = may_die,
                                   .died = died,
                                   .end = end,
                                   .states_max = STATES_MAX,
                                   .preemptions_max = which->preemptions };
        struct model_result result;

        scenario = which;
        broken_rule = rule;
        for (unsigned i = 0; i < plan.n_actors; i++)
                plan.actor[i] = parts[(unsigned char)which->cast[i]];
        model_run(&plan, &result);
        return result;
}

static const struct scenario scenes[] = {
        { "queue 1:1", RING_QUEUE, RING_BLOCK, 1, "PC", 3, false, 0 },
        { "queue 1:1, two slots", RING_QUEUE, RING_BLOCK, 2, "PC", 3, false, 0 },
        { "queue 2:1", RING_QUEUE, RING_BLOCK, 2, "PPC", 1, false, 0 },
        { "queue 1:2", RING_QUEUE, RING_BLOCK, 1, "PCC", 2, false, 3 },
        { "queue, the first is cancelled", RING_QUEUE, RING_BLOCK, 1, "KC", 2, false, 0 },
        { "queue, closed sometime", RING_QUEUE, RING_BLOCK, 2, "PCX", 2, false, 0 },
        { "queue, one dies", RING_QUEUE, RING_BLOCK, 1, "PCW", 2, true, 0 },
        { "queue, one of two producers dies", RING_QUEUE, RING_BLOCK, 1, "PPCM", 1, true, 2 },
        { "queue, one of two consumers dies", RING_QUEUE, RING_BLOCK, 1, "PCCM", 2, true, 1 },
        { "queue, two reap", RING_QUEUE, RING_BLOCK, 1, "PCWW", 1, true, 1 },
        { "queue, one dies with its fence unfinished", RING_QUEUE, RING_BLOCK, 2, "PCU", 2, true, 2 },
        { "broadcast, one dies with its fence unfinished", RING_BROADCAST, RING_BLOCK, 2, "PCU", 2, true, 2 },
        { "queue, one is ending, then dies", RING_QUEUE, RING_BLOCK, 2, "PCEW", 2, true, 1 },
        { "broadcast, one is ending, then dies", RING_BROADCAST, RING_BLOCK, 2, "PCEW", 2, true, 1 },
        { "queue, the number of one who was ending is given again", RING_QUEUE, RING_BLOCK, 1, "PCEWS", 1, true, 1 },
        { "queue, a number is given again", RING_QUEUE, RING_BLOCK, 1, "PCWS", 2, true, 2 },
        { "queue, one leaves", RING_QUEUE, RING_BLOCK, 1, "PDS", 2, false, 0 },
        { "queue, one is declared left as it joins", RING_QUEUE, RING_BLOCK, 1, "PJLS", 1, false, 3 },
        { "queue, one dies as it joins", RING_QUEUE, RING_BLOCK, 1, "PJWS", 1, true, 3 },
        { "queue, drop-oldest 1:1", RING_QUEUE, RING_DROP_OLDEST, 1, "PC", 3, false, 0 },
        { "queue, drop-oldest 2:1", RING_QUEUE, RING_DROP_OLDEST, 1, "PPC", 1, false, 0 },
        { "queue, drop-oldest, laps late", RING_QUEUE, RING_DROP_OLDEST, 2, "PC", 7, false, 0 },
        { "queue, drop-oldest 2:1, laps late", RING_QUEUE, RING_DROP_OLDEST, 1, "PPC", 3, false, 2 },
        { "queue, drop-oldest 1:2, laps late", RING_QUEUE, RING_DROP_OLDEST, 1, "PCC", 5, false, 2 },
        { "queue, drop-oldest, one dies laps late", RING_QUEUE, RING_DROP_OLDEST, 1, "PCW", 4, true, 2 },
        { "queue, drop-oldest, one dies", RING_QUEUE, RING_DROP_OLDEST, 1, "PCW", 2, true, 0 },
        { "broadcast 1:1", RING_BROADCAST, RING_BLOCK, 1, "PC", 3, false, 0 },
        { "broadcast 1:2", RING_BROADCAST, RING_BLOCK, 1, "PCC", 2, false, 0 },
        { "broadcast 2:1", RING_BROADCAST, RING_BLOCK, 1, "PPC", 1, false, 0 },
        { "broadcast, one joins", RING_BROADCAST, RING_BLOCK, 1, "PJ", 3, false, 0 },
        { "broadcast, one joins late", RING_BROADCAST, RING_BLOCK, 2, "PJ", 4, false, 0 },
        { "broadcast, one joins one", RING_BROADCAST, RING_BLOCK, 1, "PCJ", 2, false, 3 },
        { "broadcast, the first is cancelled", RING_BROADCAST, RING_BLOCK, 1, "KC", 2, false, 0 },
        { "broadcast, closed sometime", RING_BROADCAST, RING_BLOCK, 1, "PCX", 2, false, 0 },
        { "broadcast, one dies", RING_BROADCAST, RING_BLOCK, 1, "PCW", 2, true, 0 },
        { "broadcast, one of two consumers dies", RING_BROADCAST, RING_BLOCK, 1, "PCCM", 2, true, 1 },
        { "broadcast, one of two producers dies", RING_BROADCAST, RING_BLOCK, 1, "PPCM", 1, true, 2 },
        { "broadcast, a number is given again", RING_BROADCAST, RING_BLOCK, 1, "PCWS", 2, true, 2 },
        { "broadcast, one is declared left as it joins", RING_BROADCAST, RING_BLOCK, 1, "PJLS", 1, false, 3 },
        { "broadcast, one dies as it joins", RING_BROADCAST, RING_BLOCK, 1, "PJWS", 1, true, 3 },
        { "broadcast, one is declared left", RING_BROADCAST, RING_BLOCK, 1, "PCL", 2, false, 0 },
        { "broadcast, drop-oldest 1:1", RING_BROADCAST, RING_DROP_OLDEST, 1, "PC", 3, false, 0 },
        { "broadcast, drop-oldest 1:1, two slots", RING_BROADCAST, RING_DROP_OLDEST, 2, "PC", 4, false, 0 },
        { "broadcast, drop-oldest 2:1", RING_BROADCAST, RING_DROP_OLDEST, 1, "PPC", 1, false, 0 },
        { "broadcast, drop-oldest 1:2", RING_BROADCAST, RING_DROP_OLDEST, 1, "PCC", 2, false, 3 },
        { "broadcast, drop-oldest, one joins", RING_BROADCAST, RING_DROP_OLDEST, 1, "PJ", 3, false, 0 },
        { "broadcast, drop-oldest, one dies", RING_BROADCAST, RING_DROP_OLDEST, 1, "PCW", 2, true, 0 },
        { "broadcast, drop-oldest, declared left", RING_BROADCAST, RING_DROP_OLDEST, 1, "PCL", 2, false, 0 },
};
#define N_SCENES ((int)(sizeof(scenes) / sizeof(*scenes)))

START_TEST(every_interleaving_keeps_the_rules) {
        struct model_result result;

        if (is_watched("every_interleaving_keeps_the_rules"))
                return;
        result = run(&scenes[_i], NULL);

        printf("%-40s %8lu states %9lu steps %6lu ends\n", scenes[_i].name, (unsigned long)result.n_states,
               (unsigned long)result.n_steps, (unsigned long)result.n_ends);
        ck_assert_msg(!result.failed, "%s: %s\n%s", scenes[_i].name, result.why, result.trace);
        ck_assert_uint_gt(result.n_ends, 0);
}
END_TEST

/* Each rule, and a scene that needs it. */
static const struct {
        const char *rule, *scene;
} needs[] = {
        { "everyone_helps", "queue, one of two producers dies" },
        { "written_before_published", "queue 1:1" },
        { "joiner_looks_again", "broadcast, one joins" },
        { "who_joins_is_not_there", "broadcast, one joins" },
        { "sleeper_looks_again", "queue 1:1" },
        { "changer_wakes", "queue 1:1" },
        { "claimer_looks_whether_closed", "queue, closed sometime" },
        { "only_the_dead_are_buried", "queue 2:1" },
        { "the_cursor_is_looked_at_again", "broadcast, a number is given again" },
        { "reader_looks_whether_it_left", "broadcast, one is declared left" },
        { "who_joins_looks_whether_it_left", "queue, one is declared left as it joins" },
        { "the_first_word_counts", "queue, one is ending, then dies" },
};

START_TEST(without_a_rule_something_breaks) {
        if (is_watched("without_a_rule_something_breaks"))
                return;
        for (int i = 0; i < N_SCENES; i++) {
                if (strcmp(scenes[i].name, needs[_i].scene) != 0)
                        continue;
                struct model_result result = run(&scenes[i], needs[_i].rule);
                printf("without %-30s %s\n", needs[_i].rule, result.why);
                ck_assert_msg(result.failed, "nothing breaks without %s", needs[_i].rule);
                ck_assert_msg(!strstr(result.why, "more than"), "%s", result.why);
                return;
        }
        ck_abort_msg("no scene %s", needs[_i].scene);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("ring_model");
        TCase *tests = tcase_create("model");

        tcase_set_timeout(tests, 120);
        tcase_add_loop_test(tests, every_interleaving_keeps_the_rules, 0, N_SCENES);
        tcase_add_loop_test(tests, without_a_rule_something_breaks, 0, (int)(sizeof(needs) / sizeof(*needs)));
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
