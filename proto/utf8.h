/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing over U+10FFFF. */
#ifndef PROTO_UTF8_H
#define PROTO_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the character that starts at text, 1 to 4; 0 when the n bytes there start none. */
size_t utf8_length(const char *text, size_t n);

/* Writes a code point (not a surrogate) to ret, which has room for 4; returns its bytes. */
size_t utf8_put(uint32_t code, char *ret);

/* The longest prefix of n bytes of valid text, at most max bytes, that ends between two characters. */
size_t utf8_cut(const char *text, size_t n, size_t max);

#endif
