/* SPDX-License-Identifier: Apache-2.0 */
/* The pools and blocks of this process. Any thread enters, with its framework's locks held. Never calls back, and holds its own lock for
 * no longer than a look at the lists. */
#include "pool.h"

#include <string.h>

#include "client.h"
#include "doctor_codes.h"
#include "error.h"
#include "proto/cleanup.h"

static gpuipc_pool *pools[GPUIPC_POOLS]; /* both under process_lock() */
static struct pool_block *blocks;

/* ---- pools ------------------------------------------------------------------------------------------------ */

static void pool_destroy(gpuipc_pool *pool) {
        if (!pool)
                return;
        client_unref(pool->client);
        free(pool->handle);
        free(pool->mode);
        free(pool->label);
        free(pool);
}

static void pool_destroyp(gpuipc_pool **pool) {
        pool_destroy(*pool);
}

/* Under the lock. The pool, when that was the last reference, to be destroyed without it. */
static gpuipc_pool *unref_locked(gpuipc_pool *pool) {
        if (--pool->refs > 0)
                return NULL;
        if (pools[pool->slot] == pool)
                pools[pool->slot] = NULL;
        return pool;
}

static void pool_unref(gpuipc_pool *pool) {
        gpuipc_pool *last;

        process_lock();
        last = unref_locked(pool);
        process_unlock();
        pool_destroy(last);
}

static int copy(char **to, const char *from) {
        *to = from ? strdup(from) : NULL;
        return from && !*to ? -ENOMEM : 0;
}

/* A forked child leaves its parent's pools where they are. */
static int take_slot(gpuipc_pool *pool, gpuipc_error *ret_error) {
        size_t slot = 0;

        process_lock();
        while (slot < GPUIPC_POOLS && pools[slot])
                slot++;
        if (slot < GPUIPC_POOLS)
                pools[slot] = pool;
        process_unlock();
        pool->slot = slot;
        if (slot < GPUIPC_POOLS)
                return GPUIPC_OK;
        return error_set(ret_error, GPUIPC_ERROR_QUOTA_EXCEEDED, 0, "pools",
                         "This process has %d pools, which is as many as there can be. Free one, and its blocks.", GPUIPC_POOLS);
}

int gpuipc_pool_new(gpuipc_client *client, const gpuipc_pool_options *options, gpuipc_pool **ret_pool, gpuipc_error *ret_error) {
        _cleanup_(pool_destroyp) gpuipc_pool *pool = NULL;
        gpuipc_pool_options o = GPUIPC_POOL_OPTIONS_INIT;
        int r = client_check(client, ret_error);

        if (r == GPUIPC_OK && !ret_pool)
                r = error_parameter(ret_error, "ret_pool", "a pointer to where the pool goes");
        if (r == GPUIPC_OK)
                r = client_options(&o, sizeof(o), options, ret_error);
        if (r == GPUIPC_OK && o.keep_ms < 0)
                r = error_parameter(ret_error, "keep_ms", "milliseconds, or 0 for not at all");
        if (r == GPUIPC_OK && o.wait_ms < 0)
                r = error_parameter(ret_error, "wait_ms", "milliseconds, or 0 for not at all");
        if (r != GPUIPC_OK)
                return r;
        pool = calloc(1, sizeof(*pool));
        if (!pool)
                return error_no_memory(ret_error);
        pool->client = client_ref(client);
        pool->mark = process_mark();
        pool->keep_ms = o.keep_ms;
        pool->wait_ms = o.wait_ms;
        pool->refs = 1;
        if (copy(&pool->handle, o.handle) < 0 || copy(&pool->mode, o.mode) < 0 || copy(&pool->label, o.label) < 0)
                return error_no_memory(ret_error);
        r = take_slot(pool, ret_error);
        if (r == GPUIPC_OK)
                *ret_pool = take_ptr(pool);
        return r;
}

void gpuipc_pool_free(gpuipc_pool *pool) {
        gpuipc_pool *last;

        if (!pool)
                return;
        process_lock();
        pool->closed = true;
        last = unref_locked(pool);
        process_unlock();
        pool_destroy(last);
}

gpuipc_pool_alloc_fn gpuipc_pool_alloc_function(const gpuipc_pool *pool) {
        return pool_entry(pool->slot);
}

gpuipc_pool_free_fn gpuipc_pool_free_function(const gpuipc_pool *pool) {
        (void)pool;
        return pool_free;
}

int64_t gpuipc_pool_failures(const gpuipc_pool *pool, gpuipc_error *ret_error) {
        int64_t failures;

        process_lock();
        failures = pool->failures;
        if (failures > 0 && ret_error)
                *ret_error = pool->error;
        process_unlock();
        return failures;
}

int64_t gpuipc_pool_bytes(const gpuipc_pool *pool) {
        int64_t bytes;

        process_lock();
        bytes = pool->bytes;
        process_unlock();
        return bytes;
}

/* ---- blocks ----------------------------------------------------------------------------------------------- */

static int place_enter(int ordinal, struct pool_place *ret_place, gpuipc_error *ret_error) {
        *ret_place = (struct pool_place){ .ordinal = -1, .device = "host" };
        if (ordinal == -1)
                return GPUIPC_OK;
#ifdef HAVE_CUDA
        return pool_cuda_enter(ordinal, ret_place, ret_error);
#else
        return error_set(ret_error, GPUIPC_ERROR_MAP, 0, "device",
                         "This library was built without the CUDA Toolkit's headers and has no memory on GPU %d. [%s]", ordinal,
                         doctor_code_id(DOCTOR_WITHOUT_CUDA));
#endif
}

static void place_leave(struct pool_place *place, bool keep) {
#ifdef HAVE_CUDA
        pool_cuda_leave(place, keep);
#else
        (void)place;
        (void)keep;
#endif
}

/* With the lease alone a buffer that is to be kept would not end. */
static void give_back(const gpuipc_pool *pool, gpuipc_buffer *buffer_take) {
        if (pool->keep_ms > 0 && process_is(pool->mark))
                (void)gpuipc_free(pool->client, gpuipc_buffer_id(buffer_take), NULL, NULL);
        (void)gpuipc_release(buffer_take, NULL);
}

static int block_fill(const gpuipc_pool *pool, struct pool_block *block, const struct pool_place *place, gpuipc_error *ret_error) {
        gpuipc_allocate_options o = GPUIPC_ALLOCATE_OPTIONS_INIT;
        int r;

        o.device = place->device;
        o.handle = pool->handle;
        o.mode = pool->mode;
        o.keep_ms = pool->keep_ms;
        o.wait_ms = pool->wait_ms;
        o.label = pool->label;
        r = gpuipc_allocate(pool->client, block->size, &o, &block->buffer, ret_error);
        if (r != GPUIPC_OK)
                return r;
        r = gpuipc_buffer_map(block->buffer, &block->pointer, ret_error);
        if (r == GPUIPC_OK && strlen(gpuipc_buffer_id(block->buffer)) >= sizeof(((gpuipc_pool_block *)0)->buffer))
                r = error_protocol(ret_error, "a buffer's id of %zu bytes", strlen(gpuipc_buffer_id(block->buffer)));
        if (r != GPUIPC_OK)
                give_back(pool, take_ptr(block->buffer));
        return r;
}

static int block_new(gpuipc_pool *pool, int64_t size, int ordinal, struct pool_block **ret_block, gpuipc_error *ret_error) {
        _cleanup_free_ struct pool_block *block = NULL;
        struct pool_place place;
        int r;

        if (size <= 0)
                return error_parameter(ret_error, "size", "a number of bytes above 0");
        block = calloc(1, sizeof(*block));
        if (!block)
                return error_no_memory(ret_error);
        *block = (struct pool_block){ .pool = pool, .size = size, .ordinal = ordinal };
        r = place_enter(ordinal, &place, ret_error);
        if (r != GPUIPC_OK)
                return r;
        r = block_fill(pool, block, &place, ret_error);
        place_leave(&place, r == GPUIPC_OK);
        block->retained = place.retained;
        if (r == GPUIPC_OK)
                *ret_block = take_ptr(block);
        return r;
}

/* The pool of that slot with one more reference, or NULL: it is closed, or gone. A forked child gets its parent's, whose client tells it
 * why nothing can be had. */
static gpuipc_pool *pool_ref(size_t slot) {
        gpuipc_pool *pool;

        process_lock();
        pool = pools[slot];
        if (pool && pool->closed)
                pool = NULL;
        if (pool)
                pool->refs++;
        process_unlock();
        return pool;
}

void *pool_alloc(size_t slot, int64_t size, int ordinal) {
        struct pool_block *block = NULL;
        gpuipc_error error = { 0 };
        gpuipc_pool *pool = pool_ref(slot);
        int r;

        if (!pool)
                return NULL;
        r = block_new(pool, size, ordinal, &block, &error);
        process_lock();
        if (r == GPUIPC_OK) { /* the call's reference is the block's from here on */
                pool->bytes += size;
                block->next = blocks;
                blocks = block;
        } else {
                pool->failures++;
                pool->error = error;
        }
        process_unlock();
        if (r == GPUIPC_OK)
                return block->pointer;
        pool_unref(pool);
        return NULL;
}

static struct pool_block *block_take(const void *pointer) {
        struct pool_block *block = NULL;

        process_lock();
        for (struct pool_block **link = &blocks; *link; link = &(*link)->next)
                if ((*link)->pointer == pointer) {
                        block = *link;
                        *link = block->next;
                        block->pool->bytes -= block->size;
                        break;
                }
        process_unlock();
        return block;
}

void pool_free(void *pointer, int64_t size, int ordinal, void *stream) {
        struct pool_block *block = pointer ? block_take(pointer) : NULL;
        gpuipc_pool *pool;

        (void)size;
        (void)ordinal;
        (void)stream;
        if (!block)
                return;
        pool = block->pool;
#ifdef HAVE_CUDA
        if (block->ordinal >= 0)
                pool_cuda_settle(block->ordinal);
#endif
        give_back(pool, take_ptr(block->buffer));
#ifdef HAVE_CUDA
        if (block->retained)
                pool_cuda_release(block->ordinal);
#endif
        free(block);
        pool_unref(pool);
}

int gpuipc_pool_find(const void *pointer, gpuipc_pool_block *block, gpuipc_error *ret_error) {
        gpuipc_pool_block found = GPUIPC_POOL_BLOCK_INIT;
        size_t n = block ? block->struct_size : 0;
        bool any = false;

        if (n < sizeof(n) || n > 4096)
                return error_parameter(ret_error, "block", "one whose struct_size is set: start from GPUIPC_POOL_BLOCK_INIT");
        process_lock();
        for (const struct pool_block *at = blocks; at && !any; at = at->next) {
                any = (uintptr_t)pointer - (uintptr_t)at->pointer < (uintptr_t)at->size && process_is(at->pool->mark);
                if (any) {
                        found.pointer = at->pointer;
                        found.size = at->size;
                        found.cuda_device = at->ordinal;
                        (void)strcpy(found.buffer, gpuipc_buffer_id(at->buffer));
                }
        }
        process_unlock();
        if (!any)
                return error_set(ret_error, GPUIPC_ERROR_NO_SUCH_BUFFER, 0, "pointer", "The address lies in no pool's block.");
        found.struct_size = n;
        (void)memcpy(block, &found, n < sizeof(found) ? n : sizeof(found));
        return GPUIPC_OK;
}
