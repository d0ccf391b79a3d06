/* SPDX-License-Identifier: Apache-2.0 */
/* The process's table of mappings. Any thread enters. Never talks to the daemon; maps and unmaps outside its lock,
 * since both can take long for large buffers. */
#include "map.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "doctor_codes.h"
#include "error.h"
#include "proto/cleanup.h"

static struct mapping *mappings; /* under process_lock() */

static const struct map_kind *const kinds[] = {
        &map_host,
#ifdef HAVE_CUDA
        &map_cuda, &map_ipc,
#endif
};

static const struct map_kind *kind_find(const char *name) {
        for (size_t i = 0; i < ELEMENTSOF(kinds); i++)
                if (strcmp(kinds[i]->name, name) == 0)
                        return kinds[i];
        return NULL;
}

static void mapping_free(struct mapping *mapping) {
        if (!mapping)
                return;
        free(mapping->id);
        free(mapping->ipc);
        free(mapping);
}

static void mapping_freep(struct mapping **mapping) {
        mapping_free(*mapping);
}

static bool mapping_same(const struct mapping *a, const struct mapping *b) {
        return a->kind == b->kind && a->access == b->access && a->offset == b->offset && a->size == b->size &&
               a->created_usec == b->created_usec && a->device == b->device && a->inode == b->inode &&
               a->accessor == b->accessor && !a->ipc == !b->ipc && (!a->ipc || strcmp(a->ipc, b->ipc) == 0) &&
               strcmp(a->id, b->id) == 0;
}

/* Under the lock. What a forked child inherited is left to the objects it inherited. */
static struct mapping *find_locked(const struct mapping *like) {
        for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
                if (!mapping->gone && mapping_same(mapping, like) && process_is(mapping->mark))
                        return mapping;
        return NULL;
}

/* With a reference. What ended with its context is still its objects' to release, but no longer anybody else's to share. */
static struct mapping *find(const struct mapping *like) {
        struct mapping *found;

        for (;;) {
                process_lock();
                found = find_locked(like);
                if (found)
                        found->refs++;
                process_unlock();
                if (!found || !found->kind->gone || !found->kind->gone(found))
                        return found;
                process_lock();
                found->gone = true;
                process_unlock();
                mapping_put(found);
        }
}

static int unknown_kind(const char *kind, gpuipc_error *ret_error) {
#ifndef HAVE_CUDA
        if (strncmp(kind, "cuda-", 5) == 0)
                return error_set(ret_error, GPUIPC_ERROR_MAP, 0, kind,
                                 "This library was built without the CUDA Toolkit's headers and cannot map a handle of the kind "
                                 "'%s'. [%s]", kind, doctor_code_id(DOCTOR_WITHOUT_CUDA));
#endif
        return error_set(ret_error, GPUIPC_ERROR_MAP, 0, kind,
                         "This version of the library cannot map a handle of the kind '%s'.", kind);
}

static int mapping_new(const struct map_request *request, struct mapping **ret, gpuipc_error *ret_error) {
        _cleanup_(mapping_freep) struct mapping *mapping = NULL;
        struct stat st = { 0 };
        int r = GPUIPC_OK;

        if (request->fd >= 0 && fstat(request->fd, &st) < 0)
                return error_set(ret_error, GPUIPC_ERROR_MAP, errno, NULL, "The handle cannot be looked at: %s.",
                                 strerrordesc_np(errno));
        mapping = calloc(1, sizeof(*mapping));
        if (!mapping)
                return error_no_memory(ret_error);
        *mapping = (struct mapping){ .refs = 1, .mark = process_mark(), .access = request->access,
                                     .offset = request->offset, .size = request->size,
                                     .created_usec = request->created_usec, .device = st.st_dev, .inode = st.st_ino,
                                     .accessor = -1, .kind = kind_find(request->kind) };
        mapping->id = strdup(request->id);
        mapping->ipc = request->ipc ? strdup(request->ipc) : NULL;
        if (!mapping->id || (request->ipc && !mapping->ipc))
                return error_no_memory(ret_error);
        if (!mapping->kind)
                return unknown_kind(request->kind, ret_error);
        if (mapping->kind->aim)
                r = mapping->kind->aim(request, mapping, ret_error);
        if (r != GPUIPC_OK)
                return r;
        *ret = take_ptr(mapping);
        return GPUIPC_OK;
}

int mapping_get(const struct map_request *request, struct mapping **ret_mapping, gpuipc_error *ret_error) {
        _cleanup_(mapping_freep) struct mapping *fresh = NULL;
        struct mapping *found;
        int r = mapping_new(request, &fresh, ret_error);

        if (r != GPUIPC_OK)
                return r;
        found = find(fresh);
        if (found) {
                *ret_mapping = found;
                return GPUIPC_OK;
        }

        r = fresh->kind->map(request, fresh, ret_error);
        if (r != GPUIPC_OK)
                return r;
        process_lock();
        found = find_locked(fresh); /* another thread may have been quicker */
        if (found) {
                found->refs++;
        } else {
                fresh->next = mappings;
                mappings = fresh;
        }
        process_unlock();
        if (found)
                fresh->kind->unmap(fresh);
        *ret_mapping = found ? found : take_ptr(fresh);
        return GPUIPC_OK;
}

struct mapping *mapping_ref(struct mapping *mapping) {
        process_lock();
        mapping->refs++;
        process_unlock();
        return mapping;
}

int mapping_copy(const struct mapping *mapping, const struct map_copy *copy, gpuipc_error *ret_error) {
        return mapping->kind->copy(mapping, copy, ret_error);
}

void mapping_put(struct mapping *mapping) {
        bool last;

        if (!mapping)
                return;
        process_lock();
        last = --mapping->refs == 0;
        for (struct mapping **link = &mappings; last && *link; link = &(*link)->next)
                if (*link == mapping) {
                        *link = mapping->next;
                        break;
                }
        process_unlock();
        if (!last)
                return;
        mapping->kind->unmap(mapping);
        mapping_free(mapping);
}
