/* SPDX-License-Identifier: Apache-2.0 */
/* The errors that driver and runtime name, with the real ones' words. Those left out are met nowhere here. */
#ifndef FAKE_ERRORS_H
#define FAKE_ERRORS_H

struct error_text {
        int code;
        const char *driver_name, *runtime_name, *text;
};

/* NULL: no such error. */
const struct error_text *error_find(int code);

#endif
