/* SPDX-License-Identifier: Apache-2.0 */
/* List and ListBuffers: pages of what one may see, by a cursor that stays valid while entries come and go. Loop thread. */
#include "ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A page is at most 64 KiB on the wire; 64 bytes are for what is around the items. */
#define PAGE_BYTES ((size_t)65536 - 64)
#define PAGE_ITEMS 1024
#define PAGE_LOOKS 4096 /* entries looked at for one page, seen or not: others wait meanwhile */

enum listed { LISTED_END, LISTED_HIDDEN, LISTED_ITEM };

static bool list_wants(const struct request *request, int64_t uid, const char *name) {
        const struct list_params *params = &request->params.list;

        if (params->uid != SCHEMA_UNSET && params->uid != uid)
                return false;
        return !params->name || (name && strcmp(params->name, name) == 0);
}

static enum listed list_lease(const struct request *request, void *ret) {
        const struct lease *lease = cursor_lease(&request->cursor);

        if (!lease)
                return LISTED_END;
        if (!list_wants(request, lease->holder->uid, rcstr_text(lease->buffer->name)) ||
            !lease_visible(&request->house->registry.policy, request_peer(request), lease))
                return LISTED_HIDDEN;
        lease_describe(lease, ret);
        return LISTED_ITEM;
}

static enum listed list_buffer(const struct request *request, void *ret) {
        const struct buffer *buffer = cursor_buffer(&request->cursor);

        if (!buffer)
                return LISTED_END;
        if (!list_wants(request, buffer->owner.uid, rcstr_text(buffer->name)) ||
            !policy_may_see(&request->house->registry.policy, request_peer(request), &buffer->owner, buffer->mode))
                return LISTED_HIDDEN;
        buffer_describe(buffer, ret);
        return LISTED_ITEM;
}

/* Fills one page. With more to come than fits, `continues` is set, or one who did not ask for pages is refused. */
static int list_page(struct request *request, const struct schema *schema,
                     enum listed (*look)(const struct request *request, void *ret), struct struct_array *ret) {
        size_t n = 0, bytes = 0, looks = 0;
        enum listed listed;

        for (;; cursor_step(&request->cursor)) {
                char *item = (char *)request->page + n * schema->size;

                listed = look(request, item);
                if (listed == LISTED_END || (request->more && ++looks > PAGE_LOOKS))
                        break;
                if (listed == LISTED_HIDDEN)
                        continue;
                bytes += codec_measure(schema, item) + 1;
                if (bytes > PAGE_BYTES || n == PAGE_ITEMS - 1)
                        break;
                n++;
        }
        if (listed != LISTED_END && !request->more)
                return fail_plain(&request->failure, VERDICT_EXPECTED_MORE);
        request->continues = listed != LISTED_END;
        *ret = (struct struct_array){request->page, n};
        return 0;
}

static int list_begin(struct request *request, const struct schema *schema) {
        request->page = malloc(PAGE_ITEMS * schema->size);
        return request->page ? 0 : -ENOMEM;
}

int op_list_begin(struct request *request) {
        cursor_init_leases(&request->cursor, request_registry(request));
        return list_begin(request, &schema_lease);
}

int op_list_finish(struct request *request) {
        return list_page(request, &schema_lease, list_lease, &request->reply.list.leases);
}

int op_list_buffers_begin(struct request *request) {
        cursor_init_buffers(&request->cursor, request_registry(request));
        return list_begin(request, &schema_buffer);
}

int op_list_buffers_finish(struct request *request) {
        return list_page(request, &schema_buffer, list_buffer, &request->reply.list_buffers.buffers);
}
