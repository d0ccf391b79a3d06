/* SPDX-License-Identifier: Apache-2.0 */
/* Base64 of RFC 4648, padded. */
#ifndef CLIENT_BASE64_H
#define CLIENT_BASE64_H

#include <stddef.h>

/* Decodes exactly n bytes. 0; -EINVAL when the text is anything else. */
int base64_decode(const char *text, void *ret_bytes, size_t n);

#endif
