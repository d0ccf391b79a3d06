/* SPDX-License-Identifier: Apache-2.0 */
/* Fork detection and the one process-wide lock. Any thread enters. Never calls the user's code. */
#include "process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_uint generation = 1; /* so that a mark of zeros is nobody's */
static atomic_uint *here; /* 1 + this process's generation, in memory that a child finds zeroed; NULL: there is no such memory */

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
        size_t n = (size_t)sysconf(_SC_PAGESIZE);
        void *page = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        /* When this fails for want of memory, the pid alone tells parent and child apart. */
        (void)pthread_atfork(forking, forked_parent, forked_child);
        if (page == MAP_FAILED)
                return;
        if (madvise(page, n, MADV_WIPEONFORK) != 0) {
                (void)munmap(page, n);
                return;
        }
        here = page;
}

struct process_mark process_mark(void) {
        unsigned none = 0;

        (void)pthread_once(&once, arm);
        /* A child of a raw clone() ran no handlers and has its parent's generation. */
        if (here && atomic_load(here) == 0)
                (void)atomic_compare_exchange_strong(here, &none, atomic_fetch_add(&generation, 1) + 2);
        return (struct process_mark){ .pid = getpid(), .generation = here ? atomic_load(here) - 1 : atomic_load(&generation) };
}

bool process_is(struct process_mark mark) {
        /* Without a system call: channels ask this for each item. */
        if (here)
                return atomic_load_explicit(here, memory_order_relaxed) == mark.generation + 1;
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
