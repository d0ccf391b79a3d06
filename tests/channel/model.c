/* SPDX-License-Identifier: Apache-2.0 */
/* The model: coroutines whose stacks are put aside and back as bytes, and a table of the states that were seen. */
#include "model.h"

#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK 16384
#define BELOW 2048
#define DEPTH_MAX 2000
#define TRACE_LINE 100

enum status { FRESH, READY, BLOCKED, DONE, DEAD };

struct actor {
        void *stack; /* where it stands; the registers lie on it */
        enum status status;
        const volatile void *looked_at;  /* an event that nobody has changed since */
        const volatile void *blocked_on; /* an event */
        const char *next;                /* what its next step does */
};

struct snapshot;

static struct {
        const struct model_plan *plan;
        struct model_result *result;
        void *scheduler;
        struct actor actors[MODEL_ACTORS];
        _Alignas(64) unsigned char stacks[MODEL_ACTORS][STACK];
        unsigned me, last, preemptions;
        bool failed;
        struct {
                unsigned actor;
                const char *what;
        } path[DEPTH_MAX];
        struct {
                struct snapshot *snapshot;
                size_t n;
        } kept[DEPTH_MAX]; /* by depth, for the next state there */
        uint64_t *seen; /* open addressing; 0 is empty */
        uint64_t seen_mask;
} model;

unsigned model_me(void) {
        return model.me;
}

#ifdef __x86_64__
__asm__(".text\n"
        "model_switch:\n" /* (void **from, void *to) */
        "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
        "ret\n");
#else
#error "the model knows the stacks of x86-64 alone"
#endif
void model_switch(void **from, void *to);

static void pause_here(void) {
        model_switch(&model.actors[model.me].stack, model.scheduler);
}

void model_at(const char *what, const volatile void *address) {
        if (model.plan->is_quiet && model.plan->is_quiet(address))
                return;
        model.actors[model.me].next = what;
        pause_here();
}

uint32_t model_event_look(const volatile void *event) {
        model.actors[model.me].looked_at = event;
        return 0;
}

void model_event_change(const volatile void *event) {
        for (unsigned i = 0; i < model.plan->n_actors; i++)
                if (model.actors[i].looked_at == event)
                        model.actors[i].looked_at = NULL;
}

long model_futex(const volatile void *event, int operation) {
        struct actor *actor = &model.actors[model.me];

        if (operation == FUTEX_WAKE_BITSET) {
                for (unsigned i = 0; i < model.plan->n_actors; i++)
                        if (model.actors[i].status == BLOCKED && model.actors[i].blocked_on == event)
                                model.actors[i].status = READY;
                return 0;
        }
        if (actor->looked_at != event)
                return -1;
        actor->looked_at = NULL;
        actor->blocked_on = event;
        actor->status = BLOCKED;
        actor->next = "awake";
        pause_here();
        actor->blocked_on = NULL;
        return 0;
}

void model_fail(const char *format, ...) {
        va_list arguments;

        if (!model.failed) {
                va_start(arguments, format);
                (void)vsnprintf(model.result->why, sizeof(model.result->why), format, arguments);
                va_end(arguments);
        }
        model.failed = true;
        if (model.me < MODEL_ACTORS)
                pause_here();
}

static void begin(void) {
        unsigned me = model.me;

        model.plan->actor[me](me);
        model.actors[me].status = DONE;
        model.actors[me].next = "done";
        for (;;)
                pause_here();
}

/* ---- states ----------------------------------------------------------------------------------------------- */

/* The living part of an actor's stack. */
static unsigned char *stack_of(const struct actor *actor, size_t *ret_n) {
        *ret_n = (size_t)(model.stacks[actor - model.actors] + STACK - (unsigned char *)actor->stack);
        return actor->stack;
}

static uint64_t mix(uint64_t hash, const void *bytes, size_t n) {
        const unsigned char *at = bytes;
        uint64_t lanes[4] = { hash, 2, 3, 4 };

        for (unsigned i = 0; n >= 8; n -= 8, at += 8, i = (i + 1) & 3) {
                uint64_t word;
                memcpy(&word, at, 8);
                lanes[i] = (lanes[i] ^ word) * UINT64_C(0x9e3779b97f4a7c15);
                lanes[i] ^= lanes[i] >> 29;
        }
        for (unsigned i = 1; i < 4; i++) {
                lanes[0] = (lanes[0] ^ lanes[i]) * UINT64_C(0x9e3779b97f4a7c15);
                lanes[0] ^= lanes[0] >> 32;
        }
        return lanes[0];
}

static bool has_stack(const struct actor *actor) {
        return actor->status == READY || actor->status == BLOCKED;
}

static uint64_t state_hash(void) {
        uint64_t hash = model.plan->preemptions_max ? 1 + model.preemptions * (MODEL_ACTORS + 1) + model.last : 1;

        for (unsigned i = 0; i < MODEL_REGIONS; i++)
                hash = mix(hash, model.plan->world[i].bytes, model.plan->world[i].n);
        for (unsigned i = 0; i < model.plan->n_actors; i++) {
                const struct actor *actor = &model.actors[i];
                uint64_t facts[3] = { actor->status, (uintptr_t)actor->blocked_on, (uintptr_t)actor->looked_at };
                hash = mix(hash, facts, sizeof(facts));
                if (has_stack(actor)) {
                        size_t n;
                        const unsigned char *stack = stack_of(actor, &n);
                        hash = mix(hash, stack, n);
                }
        }
        return hash | 1;
}

/* Whether the state is new; it is not from now on. */
static bool is_new(uint64_t hash) {
        for (uint64_t at = hash >> 8;; at++) {
                uint64_t *place = &model.seen[at & model.seen_mask];
                if (*place == hash)
                        return false;
                if (*place == 0) {
                        *place = hash;
                        return true;
                }
        }
}

struct snapshot {
        struct actor actors[MODEL_ACTORS];
        unsigned last, preemptions;
        size_t n;
        unsigned char bytes[];
};

static void copy_state(struct snapshot *snapshot, bool put_back) {
        unsigned char *at = snapshot->bytes;

        if (put_back) {
                memcpy(model.actors, snapshot->actors, sizeof(model.actors));
                model.last = snapshot->last;
                model.preemptions = snapshot->preemptions;
        } else {
                memcpy(snapshot->actors, model.actors, sizeof(model.actors));
                snapshot->last = model.last;
                snapshot->preemptions = model.preemptions;
        }
        for (unsigned i = 0; i < MODEL_REGIONS + model.plan->n_actors; i++) {
                void *bytes;
                size_t n;
                if (i < MODEL_REGIONS) {
                        bytes = model.plan->world[i].bytes;
                        n = model.plan->world[i].n;
                } else {
                        struct actor *actor = &model.actors[i - MODEL_REGIONS];
                        if (!has_stack(actor))
                                continue;
                        bytes = stack_of(actor, &n);
                }
                if (put_back)
                        memcpy(bytes, at, n);
                else
                        memcpy(at, bytes, n);
                at += n;
        }
}

static struct snapshot *snapshot_take(unsigned depth) {
        size_t n = 0, part;

        for (unsigned i = 0; i < MODEL_REGIONS; i++)
                n += model.plan->world[i].n;
        for (unsigned i = 0; i < model.plan->n_actors; i++)
                if (has_stack(&model.actors[i])) {
                        (void)stack_of(&model.actors[i], &part);
                        n += part;
                }
        if (n > model.kept[depth].n) {
                free(model.kept[depth].snapshot);
                model.kept[depth].n = n;
                model.kept[depth].snapshot = malloc(sizeof(struct snapshot) + n);
                if (!model.kept[depth].snapshot)
                        abort();
        }
        copy_state(model.kept[depth].snapshot, false);
        return model.kept[depth].snapshot;
}

/* ---- the search ------------------------------------------------------------------------------------------- */

static void tell_trace(unsigned depth) {
        size_t used = 0, room = sizeof(model.result->trace);
        unsigned from = depth > room / TRACE_LINE ? depth - (unsigned)(room / TRACE_LINE) : 0;

        for (unsigned i = from; i < depth && used + TRACE_LINE < room; i++)
                used += (size_t)snprintf(model.result->trace + used, room - used, "  %u: %.80s\n", model.path[i].actor,
                                         model.path[i].what);
}

static bool can_step(unsigned i) {
        const struct actor *actor = &model.actors[i];
        if (actor->status == FRESH)
                return !model.plan->is_asleep || !model.plan->is_asleep(i);
        return actor->status == READY;
}

/* Whether the one who took the last step would have to wait for this one's. */
static bool preempts(unsigned i) {
        return model.last < MODEL_ACTORS && model.last != i && can_step(model.last);
}

static bool may_step(unsigned i) {
        return can_step(i) && (!model.plan->preemptions_max || model.preemptions < model.plan->preemptions_max || !preempts(i));
}

/* What past calls left below the stack would tell states apart that are the same. */
static void clear_below(const struct actor *actor) {
        size_t n;
        unsigned char *bottom = stack_of(actor, &n);

        memset(bottom - BELOW, 0, BELOW);
}

static void step(unsigned i) {
        struct actor *actor = &model.actors[i];

        model.preemptions += preempts(i);
        model.last = i;
        model.me = i;
        if (actor->status == FRESH) {
                /* As model_switch() leaves a stack: six registers, and where to return to. */
                void **top = (void **)(void *)(model.stacks[i] + STACK) - 2;
                memset(model.stacks[i], 0, STACK);
                *top = (void *)begin;
                actor->stack = top - 6;
                actor->status = READY;
        }
        model_switch(&model.scheduler, actor->stack);
        model.me = MODEL_ACTORS;
        model.result->n_steps++;
        if (has_stack(actor))
                clear_below(actor);
}

static void judge_end(void) {
        bool is_dead[MODEL_ACTORS];

        model.result->n_ends++;
        for (unsigned i = 0; i < model.plan->n_actors; i++) {
                is_dead[i] = model.actors[i].status == DEAD;
                if (model.actors[i].status == BLOCKED || model.actors[i].status == READY)
                        model_fail("stuck: actor %u sleeps and nobody will wake it", i);
        }
        if (!model.failed)
                model.plan->end(is_dead);
}

static void search(unsigned depth);

static void descend(unsigned depth, unsigned i, const char *what) {
        model.path[depth].actor = i;
        model.path[depth].what = what;
        if (model.failed)
                tell_trace(depth + 1);
        else
                search(depth + 1);
}

static void search(unsigned depth) {
        struct snapshot *snapshot;
        bool moved = false, may_move = false;

        if (!is_new(state_hash()))
                return;
        if (++model.result->n_states > model.plan->states_max || depth >= DEPTH_MAX - 1) {
                if (depth >= DEPTH_MAX - 1)
                        model_fail("no end after %u steps", depth);
                model_fail("more than %lu states", (unsigned long)model.plan->states_max);
                tell_trace(depth);
                return;
        }
        snapshot = snapshot_take(depth);
        for (unsigned choice = 0; choice < 2 * model.plan->n_actors && !model.failed; choice++) {
                unsigned i = choice % model.plan->n_actors;
                bool dies = choice >= model.plan->n_actors;
                if (moved)
                        copy_state(snapshot, true);
                moved = false;
                if (dies ? !has_stack(&model.actors[i]) || !model.plan->may_die || !model.plan->may_die(i) : !may_step(i))
                        continue;
                const char *what = dies ? "dies" : model.actors[i].status == FRESH ? "begins" : model.actors[i].next;
                moved = true;
                if (dies) {
                        model.actors[i].status = DEAD;
                        model.plan->died(i);
                } else {
                        may_move = true;
                        step(i);
                }
                descend(depth, i, what);
        }
        if (!may_move && !model.failed) {
                if (moved)
                        copy_state(snapshot, true);
                judge_end();
                if (model.failed)
                        tell_trace(depth);
        }
}

void model_run(const struct model_plan *plan, struct model_result *ret_result) {
        uint64_t n = 1024;

        memset(ret_result, 0, sizeof(*ret_result));
        while (n < plan->states_max * 2)
                n *= 2;
        memset(model.actors, 0, sizeof(model.actors));
        model.plan = plan;
        model.result = ret_result;
        model.me = model.last = MODEL_ACTORS;
        model.preemptions = 0;
        model.failed = false;
        model.seen_mask = n - 1;
        model.seen = calloc(n, sizeof(*model.seen));
        if (!model.seen)
                abort();
        plan->reset();
        search(0);
        ret_result->failed = model.failed;
        for (unsigned i = 0; i < DEPTH_MAX; i++) {
                free(model.kept[i].snapshot);
                model.kept[i].snapshot = NULL;
                model.kept[i].n = 0;
        }
        free(model.seen);
        model.seen = NULL;
}
