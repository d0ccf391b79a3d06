/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding base64 as strictly as it is written. Any thread enters. Never reads past the text's end. */
#include "base64.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static int value_of(char c) {
        static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        const char *at = c ? strchr(alphabet, c) : NULL;
        return at ? (int)(at - alphabet) : -1;
}

/* Four characters, the last `n_padding` of which are "=", are 3 - n_padding bytes. */
static int decode_four(const char *text, size_t n_padding, unsigned char *ret) {
        uint32_t bits = 0;

        for (size_t i = 0; i < 4; i++) {
                bool pads = i >= 4 - n_padding;
                int value = pads ? (text[i] == '=' ? 0 : -1) : value_of(text[i]);
                if (value < 0)
                        return -EINVAL;
                bits = bits << 6 | (uint32_t)value;
        }
        /* Bits that belong to no byte are zero, or two texts would be one handle. */
        if (bits & ((UINT32_C(1) << (8 * n_padding)) - 1))
                return -EINVAL;
        for (size_t i = 0; i < 3 - n_padding; i++)
                ret[i] = (unsigned char)(bits >> (16 - 8 * i));
        return 0;
}

int base64_decode(const char *text, void *ret_bytes, size_t n) {
        unsigned char *to = ret_bytes;

        if (strlen(text) != (n + 2) / 3 * 4)
                return -EINVAL;
        for (; n > 0; text += 4) {
                size_t take = n < 3 ? n : 3;
                int r = decode_four(text, 3 - take, to);
                if (r < 0)
                        return r;
                to += take;
                n -= take;
        }
        return 0;
}
