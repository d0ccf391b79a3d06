/* SPDX-License-Identifier: Apache-2.0 */
/* One function a slot, since the callers' form has no room to say which pool is meant. Any thread enters, with locks of its own held. */
#include "pool.h"

#define SLOTS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) \
        X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)

#define ENTRY(n)                                                                                                                           \
        static void *entry_##n(int64_t size, int device, void *stream) {                                                                   \
                (void)stream;                                                                                                              \
                return pool_alloc(n, size, device);                                                                                        \
        }
SLOTS(ENTRY)

#define NAME(n) entry_##n,
static const gpuipc_pool_alloc_fn entries[] = { SLOTS(NAME) };
_Static_assert(sizeof(entries) / sizeof(entries[0]) == GPUIPC_POOLS, "a function for each pool");

gpuipc_pool_alloc_fn pool_entry(size_t slot) {
        return entries[slot];
}
