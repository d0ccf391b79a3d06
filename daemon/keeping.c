/* SPDX-License-Identifier: Apache-2.0 */
/* Between work and finish. Loop thread; sends nothing itself. */
#include "keeping.h"

#include <errno.h>
#include <sys/stat.h>

#include "clock.h"

static void keeping_put(struct errand *errand, uint32_t parcel, int fd) {
        errand->parcels[errand->n] = parcel;
        errand->fds[errand->n++] = fd;
}

/* The process's first lease: its pidfd goes along. Another call of its may be sending it just now: this one comes after. */
static bool keeping_process(struct request *request) {
        struct stored *stored = request->lease->stored;

        if (stored->parcel == 0)
                stored_sent(stored, 0);
        if (stored->phase == STORED_NEW || stored->phase == STORED_FAILED) {
                stored->phase = STORED_SENDING;
                request->keeps_process = true;
                keeping_put(&request->errand, stored->parcel, request->holder->pidfd);
        }
        return stored->phase != STORED_SENT;
}

bool keeping_begin(struct request *request) {
        struct buffer *buffer = request->buffer;
        struct stat st = {0};
        bool made;
        int fd;

        request->kept = 0;
        request->keeps_process = false;
        if (!request->lease || !request->lease->stored || request->job.result != 0 || request->holder->exited)
                return false;
        made = buffer->phase == PHASE_RESERVED;
        fd = backing_fd(request->backing, ACCESS_RW);
        if (made && fstat(fd, &st) < 0)
                request->kept = -errno;
        if (request->kept == 0)
                request->kept = registry_record(request_registry(request), request->lease, st.st_dev, st.st_ino, clock_real_usec());
        if (request->kept < 0)
                return false;
        request->errand = (struct errand){.what = ERRAND_PUT};
        if (made)
                keeping_put(&request->errand, buffer->parcel, fd);
        return keeping_process(request) || made;
}

void keeping_end(struct request *request) {
        struct stored *stored = request->lease->stored;

        request->kept = request->errand.result;
        if (request->keeps_process)
                stored_sent(stored, request->kept);
        if (request->kept == 0 && stored->phase == STORED_FAILED)
                request->kept = -EIO;
}
