/* SPDX-License-Identifier: Apache-2.0 */
/* Around every call of an entry point: the faults that the script has for it, and the line in the log. */
#ifndef FAKE_CALL_H
#define FAKE_CALL_H

#define EXPORT __attribute__((visibility("default")))

struct call {
        const char *entry;
        int device; /* physical; -1: none */
};

/* Waits as the script says. 0, or the code to fail with. */
int call_begin(struct call *call, const char *entry, int device);

/* Logs the result, and returns it. */
int call_end(const struct call *call, int result);

/* Logs a thing that happened, as a call that went well. */
void call_note(const char *what, int device);

/* The body of an entry point: its value is the result. `work` is not evaluated when the script has the call fail. */
#define CALL(device, work)                                                                                   \
        ({                                                                                                   \
                struct call _call;                                                                           \
                int _result = call_begin(&_call, __func__, (device));                                        \
                if (_result == 0)                                                                            \
                        _result = (int)(work);                                                               \
                call_end(&_call, _result);                                                                   \
        })

#endif
