/* SPDX-License-Identifier: Apache-2.0 */
/* Between work and finish. Loop thread; sends nothing itself. */
#include "keeping.h"

#include <errno.h>
#include <sys/stat.h>

#include "annex.h"
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

/* What is to be told apart from other descriptors; those that there are not stay 0. */
static int keeping_identify(const int fds[N_PIECES], struct fd_identity ids[N_PIECES]) {
        struct stat st;

        for (unsigned i = 0; i < N_PIECES; i++) {
                if (fds[i] < 0)
                        continue;
                if (fstat(fds[i], &st) < 0)
                        return -errno;
                ids[i] = (struct fd_identity){st.st_dev, st.st_ino};
        }
        return 0;
}

static void keeping_find(const struct backing *backing, int ret_fds[N_PIECES]) {
        const struct annex *annex = backing->annex;

        ret_fds[PIECE_WHOLE] = backing_fd(backing, ACCESS_RW);
        ret_fds[PIECE_FENCES] = annex && annex->fences ? backing_fd(annex->fences, ACCESS_RW) : -1;
        ret_fds[PIECE_CONTROL] = annex ? backing_fd(annex->control, ACCESS_RW) : -1;
}

static void keeping_buffer(struct request *request, const int fds[N_PIECES]) {
        const struct buffer *buffer = request->buffer;

        keeping_put(&request->errand, buffer->parcel, fds[PIECE_WHOLE]);
        if (fds[PIECE_FENCES] >= 0)
                keeping_put(&request->errand, buffer->channel->fences_parcel, fds[PIECE_FENCES]);
        if (fds[PIECE_CONTROL] >= 0)
                keeping_put(&request->errand, buffer->channel->control_parcel, fds[PIECE_CONTROL]);
}

bool keeping_begin(struct request *request) {
        struct fd_identity ids[N_PIECES] = {0};
        int fds[N_PIECES];
        bool made;

        request->kept = 0;
        request->keeps_process = false;
        if (!request->lease || !request->lease->stored || request->job.result != 0 || request->holder->exited)
                return false;
        made = request->buffer->phase == PHASE_RESERVED;
        keeping_find(request->backing, fds);
        if (made)
                request->kept = keeping_identify(fds, ids);
        if (request->kept == 0)
                request->kept = registry_record(request_registry(request), request->lease, ids, clock_real_usec());
        if (request->kept < 0)
                return false;
        request->errand = (struct errand){.what = ERRAND_PUT};
        if (made)
                keeping_buffer(request, fds);
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
