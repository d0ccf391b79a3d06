/* SPDX-License-Identifier: Apache-2.0 */
/* Every interleaving of a few actors that share memory: depth first, each state once.
 *
 * An actor is a coroutine that calls model_at() before each access to what it shares; a step is one access and whatever
 * private follows it. A state is the bytes of the world (which the model is told of: everything that an actor may change
 * lies in it, or on its stack) and the actors' stacks; a state that was seen is not gone into again. What the actors do must
 * depend on nothing else: no clock, no heap. Where no actor can go on, the end is judged. */
#ifndef CHANNEL_MODEL_H
#define CHANNEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODEL_ACTORS 5
#define MODEL_REGIONS 4

struct model_region {
        void *bytes;
        size_t n;
};

struct model_plan {
        unsigned n_actors;
        void (*actor[MODEL_ACTORS])(unsigned actor);
        struct model_region world[MODEL_REGIONS]; /* in eights of bytes, those not used empty */
        void (*reset)(void);                      /* the world before the first step */
        bool (*is_quiet)(const volatile void *address);
        bool (*is_asleep)(unsigned actor);        /* an actor that may not begin yet; NULL: none */
        bool (*may_die)(unsigned actor);          /* NULL: nobody */
        void (*died)(unsigned actor);             /* the world takes note */
        void (*end)(const bool *is_dead);         /* model_fail() when it is not as it must be */
        uint64_t states_max;
        unsigned preemptions_max; /* how often an actor that could go on is made to wait; 0: without bound */
};

struct model_result {
        uint64_t n_states, n_steps, n_ends;
        bool failed;
        char why[256];
        char trace[8192]; /* the steps that led there */
};

void model_run(const struct model_plan *plan, struct model_result *ret_result);

/* ---- for actors ------------------------------------------------------------------------------------------- */

/* An access to what nobody changes in this plan is no step. */
void model_at(const char *what, const volatile void *address);
unsigned model_me(void);

/* Sleeping on an event: what is looked at is not a count but whether somebody has changed it since, so that a state does not
 * remember how often that was. The two system calls: a sleep ends at once when it was changed, and by nothing but a wake. */
uint32_t model_event_look(const volatile void *event);
void model_event_change(const volatile void *event);
long model_futex(const volatile void *event, int operation);

/* The rules have been broken. Does not return to an actor. */
void model_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
