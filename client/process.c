/* SPDX-License-Identifier: Apache-2.0 */
/* Fork detection and the one process-wide lock. Any thread enters. Never calls the user's code. */
#include "process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_uint generation;

static void forking(void) {
        (void)pthread_mutex_lock(&mutex);
}

static void forked_parent(void) {
        (void)pthread_mutex_unlock(&mutex);
}

static void forked_child(void) {
        atomic_fetch_add(&generation, 1);
        (void)pthread_mutex_unlock(&mutex);
}

static void arm(void) {
        /* When this fails for want of memory, the pid alone tells parent and child apart. */
        (void)pthread_atfork(forking, forked_parent, forked_child);
}

struct process_mark process_mark(void) {
        (void)pthread_once(&once, arm);
        return (struct process_mark){ .pid = getpid(), .generation = atomic_load(&generation) };
}

bool process_is(struct process_mark mark) {
        /* Both are needed: a raw clone() runs no handlers, and a child may have its parent's pid number in a pid
         * namespace of its own. */
        return mark.generation == atomic_load(&generation) && mark.pid == getpid();
}

void process_lock(void) {
        (void)pthread_mutex_lock(&mutex);
}

void process_unlock(void) {
        (void)pthread_mutex_unlock(&mutex);
}
