/* SPDX-License-Identifier: Apache-2.0 */
/* Places where a test stops the daemon or takes a kernel feature away. Only in builds with GPUIPC_FAULT; nothing otherwise.
 *
 *   GPUIPC_FAULT_POINT   "Allocate.begun,Open.worked": at each of these points the daemon writes the point's name and a newline
 *                        to descriptor GPUIPC_FAULT_FD and waits there for one byte
 *   GPUIPC_FAULT_ABSENT  "SO_PASSRIGHTS,SO_PASSPIDFD,SO_PEERPIDFD": socket options to do without, as older kernels do */
#ifndef DAEMON_FAULT_H
#define DAEMON_FAULT_H

#include <stdbool.h>

#ifdef GPUIPC_FAULT
/* Any thread. `what` is a method's full name, `beat` the moment within it. */
void fault_point(const char *what, const char *beat);
bool fault_absent(const char *option);
#else
static inline void fault_point(const char *what, const char *beat) {
        (void)what;
        (void)beat;
}
static inline bool fault_absent(const char *option) {
        (void)option;
        return false;
}
#endif

#endif
