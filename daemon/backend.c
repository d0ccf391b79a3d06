/* SPDX-License-Identifier: Apache-2.0 */
/* What backings of every kind have in common. Loop and pool threads; never closes anything. */
#include "backend.h"

int backing_fd(const struct backing *backing, enum access access) {
        return backing->fds[access];
}

bool backing_prepared(const struct backing *backing, enum access access) {
        return backing->ipc || backing->fds[access] >= 0;
}
