/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of unknown length, put aside in a file that has no name. */
#ifndef CTL_SPOOL_H
#define CTL_SPOOL_H

/* Reads `fd` to its end. An exit code, having said why; the caller closes *ret_fd, which stands at the start. */
int spool_open(int fd, const char *name, int *ret_fd);

#endif
