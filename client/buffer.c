/* SPDX-License-Identifier: Apache-2.0 */
/* Buffer objects, from the daemon's grant to Release. The thread that owns the buffer enters; in a forked child only to
 * free. Never uses what the daemon said before it was checked. */
#include "buffer.h"

#include <errno.h>
#include <string.h>

#include "base64.h"
#include "channel.h"
#include "error.h"
#include "message.h"
#include "outage.h"
#include "proto/cleanup.h"
#include "resume.h"
#include "trace.h"

/* ---- from a grant ----------------------------------------------------------------------------------------- */

/* A forked child leaves the connection's list alone, which another thread of the parent may have had in hand. */
static void claim_drop(gpuipc_client *client, struct claim *claim) {
        if (client && process_is(client->mark)) {
                (void)pthread_mutex_lock(&client->lock);
                claim_leave(claim);
                (void)pthread_mutex_unlock(&client->lock);
        }
        free(claim);
}

static void buffer_free(gpuipc_buffer *buffer) {
        if (!buffer)
                return;
        mapping_put(buffer->mapping);
        channel_parts_free(buffer->parts);
        fd_closep(&buffer->fd);
        claim_drop(buffer->client, buffer->claim);
        client_unref(buffer->client);
        free(buffer->id);
        free(buffer->name);
        free(buffer->device);
        free(buffer->handle);
        free(buffer->ipc);
        free(buffer->meta);
        free(buffer);
}

static void buffer_freep(gpuipc_buffer **buffer) {
        buffer_free(*buffer);
}

static int grant_check(const struct grant_reply *grant, gpuipc_error *ret_error) {
        const struct handle_info *handle = &grant->handle;

        if (!grant->lease[0] || !grant->buffer.id[0])
                return error_protocol(ret_error, "a lease or a buffer without an id");
        if (grant->buffer.size <= 0 || grant->buffer.allocated < grant->buffer.size)
                return error_protocol(ret_error, "a buffer of %lld bytes that takes %lld",
                                      (long long)grant->buffer.size, (long long)grant->buffer.allocated);
        if (handle->size < grant->buffer.size || handle->offset < 0 ||
            handle->offset > SCHEMA_INT_MAX - handle->size)
                return error_protocol(ret_error, "a handle of %lld bytes at %lld for a buffer of %lld",
                                      (long long)handle->size, (long long)handle->offset,
                                      (long long)grant->buffer.size);
        return GPUIPC_OK;
}

/* The descriptor the grant names, out of those that came with it. The rest is closed with the reply. */
static int grant_take_fd(const struct handle_info *handle, struct reply *reply, int *ret_fd, gpuipc_error *ret_error) {
        _cleanup_(fdset_deinit) struct fdset own = { 0 };
        int r;

        if (handle->fd == SCHEMA_UNSET) {
                *ret_fd = -1;
                return GPUIPC_OK;
        }
        if (handle->fd < 0 || handle->fd >= FDSET_MAX)
                return error_protocol(ret_error, "a descriptor numbered %lld", (long long)handle->fd);
        r = fdset_split_take(&reply->fds, (size_t)handle->fd + 1, &own);
        if (r == -ENOMEM)
                return error_no_memory(ret_error);
        if (r < 0)
                return conn_no_descriptor(reply, "The buffer's descriptor", ret_error);
        *ret_fd = fdset_take(&own, (size_t)handle->fd);
        return GPUIPC_OK;
}

static int copy(char **to, const char *from) {
        if (!from)
                return 0;
        *to = strdup(from);
        return *to ? 0 : -ENOMEM;
}

static int buffer_fill(gpuipc_buffer *buffer, const struct grant_reply *grant) {
        buffer->size = grant->buffer.size;
        buffer->allocated = grant->buffer.allocated;
        buffer->offset = grant->handle.offset;
        buffer->created_usec = grant->buffer.created_usec;
        buffer->claim = claim_new(grant->lease);
        if (!buffer->claim || copy(&buffer->id, grant->buffer.id) < 0 || copy(&buffer->name, grant->buffer.name) < 0 ||
            copy(&buffer->device, grant->buffer.device) < 0 || copy(&buffer->ipc, grant->handle.ipc) < 0 ||
            copy(&buffer->handle, grant->handle.kind) < 0 || copy(&buffer->meta, grant->buffer.meta) < 0)
                return -ENOMEM;
        return 0;
}

static int buffer_new(const struct grant_reply *grant, gpuipc_buffer **ret, gpuipc_error *ret_error) {
        _cleanup_(buffer_freep) gpuipc_buffer *buffer = NULL;
        int r = grant_check(grant, ret_error);

        if (r != GPUIPC_OK)
                return r;
        buffer = calloc(1, sizeof(*buffer));
        if (!buffer)
                return error_no_memory(ret_error);
        buffer->fd = -1;
        if (buffer_fill(buffer, grant) < 0)
                return error_no_memory(ret_error);
        *ret = take_ptr(buffer);
        return GPUIPC_OK;
}

static bool is_channel(enum method method) {
        return method == METHOD_CHANNEL_CREATE || method == METHOD_CHANNEL_ATTACH;
}

/* The grant without a buffer, and `*ret_lease` as soon as that is known. */
static int grant_read(struct reply *reply, enum method method, gpuipc_buffer **ret, const char **ret_lease, gpuipc_error *ret_error) {
        _cleanup_(channel_parts_freep) struct channel_parts *parts = NULL;
        struct grant_reply grant = { 0 };
        _cleanup_fd_ int fd = -1;
        int r;

        if (is_channel(method))
                r = channel_grant_read(reply, method, &grant, &fd, &parts, ret_error);
        else
                r = message_read(reply, method, &grant, ret_error);
        *ret_lease = grant.lease;
        if (r == GPUIPC_OK)
                r = buffer_new(&grant, ret, ret_error);
        if (r == GPUIPC_OK && !is_channel(method))
                r = grant_take_fd(&grant.handle, reply, &fd, ret_error);
        if (r != GPUIPC_OK)
                return r;
        (*ret)->fd = take_fd(&fd);
        (*ret)->parts = take_ptr(parts);
        return GPUIPC_OK;
}

int buffer_from_reply(gpuipc_client *client, struct conn *conn, struct reply *reply, enum method method,
                      gpuipc_access access, int64_t deadline, gpuipc_buffer **ret_buffer, gpuipc_error *ret_error) {
        _cleanup_(buffer_freep) gpuipc_buffer *buffer = NULL;
        const char *lease = NULL;
        int r = grant_read(reply, method, &buffer, &lease, ret_error);

        if (r == GPUIPC_ERROR_NO_MEMORY && !lease)
                lease = conn_lease_of(reply);
        if (r != GPUIPC_OK && lease) {
                fdset_deinit(&reply->fds);
                (void)conn_return_lease(conn, lease, deadline);
        }
        if (r != GPUIPC_OK)
                return r;
        buffer->client = client_ref(client);
        buffer->access = access;
        (void)pthread_mutex_lock(&client->lock);
        buffer->claim->owned = true;
        claim_join(buffer->claim, conn);
        (void)pthread_mutex_unlock(&client->lock);
        *ret_buffer = take_ptr(buffer);
        return GPUIPC_OK;
}

/* ---- mapping and release ---------------------------------------------------------------------------------- */

static int buffer_check(const gpuipc_buffer *buffer, gpuipc_error *ret_error) {
        if (!buffer)
                return error_parameter(ret_error, "buffer", "one made by gpuipc_allocate() or gpuipc_open_…()");
        return client_check(buffer->client, ret_error);
}

int gpuipc_buffer_map(gpuipc_buffer *buffer, void **ret_pointer, gpuipc_error *ret_error) {
        int r = buffer_check(buffer, ret_error);

        if (r != GPUIPC_OK)
                return r;
        if (!ret_pointer)
                return error_parameter(ret_error, "ret_pointer", "a pointer to where the address goes");
        if (!buffer->mapping) {
                trace_scope(TRACE_MAP, buffer->size);
                struct map_request request = { .id = buffer->id, .kind = buffer->handle, .access = buffer->access,
                                               .fd = buffer->fd, .ipc = buffer->ipc, .device = buffer->device,
                                               .offset = buffer->offset, .size = buffer->size,
                                               .allocated = buffer->allocated, .created_usec = buffer->created_usec };
                r = mapping_get(&request, &buffer->mapping, ret_error);
                if (r != GPUIPC_OK)
                        return r;
        }
        *ret_pointer = buffer->mapping->pointer;
        return GPUIPC_OK;
}

/* What became of a lease that was leaving. GPUIPC_OK: over. */
static int claim_verdict(gpuipc_client *client, const struct claim *claim, bool *ret_leaving, gpuipc_error *ret_error) {
        enum claim_stand stand;
        enum claim_loss why;

        (void)pthread_mutex_lock(&client->lock);
        stand = claim->stand;
        why = claim->why;
        (void)pthread_mutex_unlock(&client->lock);
        *ret_leaving = stand == CLAIM_LEAVING;
        return stand == CLAIM_LOST ? claim_lost(why, ret_error) : GPUIPC_OK;
}

/* Tells the daemon, over the connection that the caller has busy. */
static int release_send(gpuipc_client *client, struct conn *conn, const char *lease, int64_t deadline, gpuipc_error *ret_error) {
        _cleanup_(bytes_deinit) struct bytes message = { 0 };
        _cleanup_(reply_deinit) struct reply reply = { 0 };
        struct release_params params = { .lease = lease };
        int r = message_put(&message, METHOD_RELEASE, &params, false, ret_error);

        if (r == GPUIPC_OK)
                r = outage_call(client, conn, &message, deadline, &reply, ret_error);
        return r == GPUIPC_OK ? message_read(&reply, METHOD_RELEASE, NULL, ret_error) : r;
}

/* Over a connection that may be away: a session taken up again without the lease has ended it. */
static int release_by(gpuipc_client *client, struct conn *conn, const struct claim *claim, int64_t deadline,
                      gpuipc_error *ret_error) {
        bool away = conn->resuming || !conn_open(conn), leaving;
        int r = GPUIPC_OK, verdict;

        for (unsigned n = 0; n <= OUTAGE_REPEATS_MAX; n++) {
                if (away && (conn->resuming || resume_wanted(conn)))
                        r = outage_mend(client, conn, deadline, ret_error);
                else if (away)
                        resume_forget(client, conn, resume_loss(client));
                verdict = claim_verdict(client, claim, &leaving, ret_error);
                if (verdict != GPUIPC_OK || !leaving)
                        return verdict;
                if (r == GPUIPC_OK)
                        r = release_send(client, conn, claim->id, deadline, ret_error);
                if (r != GPUIPC_ERROR_DISCONNECTED)
                        return r;
                away = true;
        }
        return r;
}

static int buffer_release(gpuipc_buffer *buffer, gpuipc_error *ret_error) {
        gpuipc_client *client = buffer->client;
        int64_t deadline = client_deadline(client);
        struct conn *conn;
        bool leaving, unsent;
        int r = client_take_leaving(client, buffer->claim, deadline, &conn, ret_error);

        if (r == GPUIPC_ERROR_TIMED_OUT)
                buffer->claim = NULL; /* the connection's now */
        if (r != GPUIPC_OK)
                return r;
        if (!conn)
                return claim_verdict(client, buffer->claim, &leaving, ret_error);
        if (!conn->resuming && !conn_alive(conn))
                conn_close(conn);
        if (conn_open(conn) && !conn->resuming)
                r = conn_settle(conn, deadline, ret_error);
        unsent = r == GPUIPC_ERROR_TIMED_OUT;
        if (!unsent)
                r = release_by(client, conn, buffer->claim, deadline, ret_error);
        unsent = unsent || r == GPUIPC_ERROR_NO_MEMORY; /* or sent and unanswered: twice does no harm */
        (void)pthread_mutex_lock(&client->lock);
        /* What could not be said yet is left to whoever has the connection next. */
        if (buffer->claim->conn && (unsent || (r != GPUIPC_OK && conn->away_usec != 0)))
                claim_leave_behind(take_ptr(buffer->claim));
        else
                claim_leave(buffer->claim);
        (void)pthread_mutex_unlock(&client->lock);
        client_put(client, conn);
        return r;
}

int gpuipc_release(gpuipc_buffer *buffer_take, gpuipc_error *ret_error) {
        _cleanup_(buffer_freep) gpuipc_buffer *buffer = buffer_take;
        int r;

        if (!buffer)
                return GPUIPC_OK;
        trace_scope(TRACE_RELEASE, buffer->size);
        /* First the memory, then the word that it is let go. */
        mapping_put(take_ptr(buffer->mapping));
        fd_closep(&buffer->fd);
        r = client_check(buffer->client, ret_error);
        if (r != GPUIPC_OK)
                return r;
        return buffer_release(buffer, ret_error);
}

int gpuipc_buffer_check(gpuipc_buffer *buffer, gpuipc_error *ret_error) {
        int r = buffer_check(buffer, ret_error);
        return r == GPUIPC_OK ? client_check_claim(buffer->client, buffer->claim, ret_error) : r;
}

/* ---- facts ------------------------------------------------------------------------------------------------ */

const char *gpuipc_buffer_id(const gpuipc_buffer *buffer) {
        return buffer->id;
}

const char *gpuipc_buffer_name(const gpuipc_buffer *buffer) {
        return buffer->name;
}

const char *gpuipc_buffer_lease(const gpuipc_buffer *buffer) {
        return buffer->claim->id;
}

const char *gpuipc_buffer_device(const gpuipc_buffer *buffer) {
        return buffer->device;
}

const char *gpuipc_buffer_handle(const gpuipc_buffer *buffer) {
        return buffer->handle;
}

const char *gpuipc_buffer_meta(const gpuipc_buffer *buffer) {
        return buffer->meta;
}

int64_t gpuipc_buffer_size(const gpuipc_buffer *buffer) {
        return buffer->size;
}

int64_t gpuipc_buffer_allocated(const gpuipc_buffer *buffer) {
        return buffer->allocated;
}

int64_t gpuipc_buffer_offset(const gpuipc_buffer *buffer) {
        return buffer->offset;
}

gpuipc_access gpuipc_buffer_access(const gpuipc_buffer *buffer) {
        return buffer->access;
}

int gpuipc_buffer_fd(const gpuipc_buffer *buffer) {
        return buffer->fd;
}

int gpuipc_buffer_ipc_handle(const gpuipc_buffer *buffer, void *ret_handle, gpuipc_error *ret_error) {
        unsigned char bytes[GPUIPC_IPC_HANDLE_SIZE];

        if (!ret_handle)
                return error_parameter(ret_error, "ret_handle", "a pointer to where its 64 bytes go");
        if (!buffer->ipc)
                return error_set(ret_error, GPUIPC_ERROR_HANDLE_UNSUPPORTED, 0, buffer->handle,
                                 "A buffer of the kind '%.32s' has no classic handle. Allocate it with the handle 'cuda-ipc'.",
                                 buffer->handle);
        if (base64_decode(buffer->ipc, bytes, sizeof(bytes)) < 0)
                return error_protocol(ret_error, "a classic handle that is not 64 bytes in base64");
        (void)memcpy(ret_handle, bytes, sizeof(bytes));
        return GPUIPC_OK;
}

int gpuipc_buffer_is_peer(const gpuipc_buffer *buffer) {
        return buffer->mapping && buffer->mapping->peer;
}

int gpuipc_buffer_cuda_device(const gpuipc_buffer *buffer) {
        return buffer->mapping ? buffer->mapping->accessor : -1;
}
