/* SPDX-License-Identifier: Apache-2.0 */
/* Places where a test stops the daemon or takes a kernel feature away. Only in builds with GPUIPC_FAULT; nothing otherwise.
 *
 *   GPUIPC_FAULT_POINT   "Allocate.begun,Open.worked": at each of these points the daemon writes the point's name and a newline
 *                        to descriptor GPUIPC_FAULT_FD and waits there for one byte
 *   GPUIPC_FAULT_KILL    17: at the seventeenth step of the state or the store, the daemon kills itself. Steps are, of State: grown,
 *                        extent-written, extent-published, cleared, half-written, written, before-word, word, live, number; of Store:
 *                        put, putting, remove, removing
 *   GPUIPC_FAULT_ABSENT  "SO_PASSRIGHTS,SO_PASSPIDFD,SO_PEERPIDFD": socket options to do without, as older kernels do */
#ifndef DAEMON_FAULT_H
#define DAEMON_FAULT_H

#include <stdbool.h>

#ifdef GPUIPC_FAULT
/* Any thread. `what` is a method's full name, or Spare, State or Store; `beat` the moment within it. */
void fault_point(const char *what, const char *beat);
bool fault_absent(const char *option);

/* Ends the process when what it says does not hold. */
void fault_check(bool holds, const char *what);
#else
static inline void fault_point(const char *what, const char *beat) {
        (void)what;
        (void)beat;
}
static inline void fault_check(bool holds, const char *what) {
        (void)holds;
        (void)what;
}
static inline bool fault_absent(const char *option) {
        (void)option;
        return false;
}
#endif

#endif
