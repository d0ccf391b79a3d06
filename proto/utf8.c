/* SPDX-License-Identifier: Apache-2.0 */
/* One character of UTF-8 at a time. Any thread; it keeps nothing and allocates nothing. */
#include "utf8.h"

static int is_tail(unsigned char c) {
        return (c & 0xC0) == 0x80;
}

size_t utf8_length(const char *text, size_t n) {
        const unsigned char *u = (const unsigned char *)text;

        if (n == 0)
                return 0;
        if (u[0] < 0x80)
                return 1;
        if (u[0] < 0xC2 || n < 2 || !is_tail(u[1]))
                return 0;
        if (u[0] < 0xE0)
                return 2;
        if (n < 3 || !is_tail(u[2]))
                return 0;
        if (u[0] < 0xF0) {
                if ((u[0] == 0xE0 && u[1] < 0xA0) || (u[0] == 0xED && u[1] >= 0xA0))
                        return 0;
                return 3;
        }
        if (n < 4 || !is_tail(u[3]) || u[0] > 0xF4)
                return 0;
        if ((u[0] == 0xF0 && u[1] < 0x90) || (u[0] == 0xF4 && u[1] >= 0x90))
                return 0;
        return 4;
}

size_t utf8_put(uint32_t code, char *ret) {
        if (code < 0x80) {
                ret[0] = (char)code;
                return 1;
        }
        if (code < 0x800) {
                ret[0] = (char)(0xC0 | code >> 6);
                ret[1] = (char)(0x80 | (code & 0x3F));
                return 2;
        }
        if (code < 0x10000) {
                ret[0] = (char)(0xE0 | code >> 12);
                ret[1] = (char)(0x80 | (code >> 6 & 0x3F));
                ret[2] = (char)(0x80 | (code & 0x3F));
                return 3;
        }
        ret[0] = (char)(0xF0 | code >> 18);
        ret[1] = (char)(0x80 | (code >> 12 & 0x3F));
        ret[2] = (char)(0x80 | (code >> 6 & 0x3F));
        ret[3] = (char)(0x80 | (code & 0x3F));
        return 4;
}

size_t utf8_cut(const char *text, size_t n, size_t max) {
        if (n <= max)
                return n;
        while (max > 0 && is_tail((unsigned char)text[max]))
                max--;
        return max;
}
