/* SPDX-License-Identifier: Apache-2.0 */
/* Strings compared as the characters they stand for: whether an object has a key twice. Reads checked text
 * only. Any thread. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "strict.h"

enum { FEW_KEYS = 32 }; /* up to here, and without escapes, comparing likely pairs is cheaper than sorting */

static uint32_t hex4(const char *text) {
        uint32_t code = 0;

        for (int i = 0; i < 4; i++) {
                unsigned char c = (unsigned char)text[i];

                code = code << 4 | (c <= '9' ? c - (uint32_t)'0' : (c | 0x20u) - 'a' + 10);
        }
        return code;
}

/* After the backslash. */
static uint32_t next_escaped(const char **at) {
        static const char names[] = "bfnrt", codes[] = "\b\f\n\r\t";
        const char *p = *at, *name = strchr(names, *p);
        char c = *p++;
        uint32_t code = name != NULL ? (unsigned char)codes[name - names] : (unsigned char)c;

        if (c == 'u') {
                code = hex4(p);
                p += 4;
                if (code >= 0xD800 && code <= 0xDBFF) {
                        code = 0x10000 + ((code - 0xD800) << 10 | (hex4(p + 2) - 0xDC00));
                        p += 6;
                }
        }
        *at = p;
        return code;
}

static uint32_t next_code(const char **at) {
        const char *p = *at;
        uint32_t code = (unsigned char)*p++;

        if (code >= 0x80) {
                int n_tails = code >= 0xF0 ? 3 : code >= 0xE0 ? 2 : 1;

                code &= 0x3Fu >> n_tails;
                while (n_tails-- > 0)
                        code = code << 6 | ((unsigned char)*p++ & 0x3F);
        } else if (code == '\\') {
                code = next_escaped(&p);
        }
        *at = p;
        return code;
}

bool strict_equal(const char *text, size_t n, bool escaped, const char *letters) {
        const char *end = text + n;

        if (!escaped)
                return strlen(letters) == n && memcmp(text, letters, n) == 0;
        while (text < end && *letters != '\0')
                if (next_code(&text) != (unsigned char)*letters++)
                        return false;
        return text == end && *letters == '\0';
}

static int compare_keys(const char *text, const struct span *a, const struct span *b) {
        const char *p = text + a->key, *q = text + b->key;
        const char *p_end = p + a->n_key, *q_end = q + b->n_key;

        /* Bytes of UTF-8 sort as the characters do, so both ways agree on one order. */
        if (!a->key_escaped && !b->key_escaped) {
                int order = memcmp(p, q, a->n_key < b->n_key ? a->n_key : b->n_key);

                return order != 0 ? order : (a->n_key > b->n_key) - (a->n_key < b->n_key);
        }
        while (p < p_end && q < q_end) {
                uint32_t c = next_code(&p), d = next_code(&q);

                if (c != d)
                        return c < d ? -1 : 1;
        }
        return (p < p_end) - (q < q_end);
}

/* Without escapes. */
static bool same_key(const char *text, const struct span *a, const struct span *b) {
        return a->n_key == b->n_key && memcmp(text + a->key, text + b->key, a->n_key) == 0;
}

struct hashed_key {
        uint64_t hash;
        const struct span *span;
};

static uint64_t hash_key(const char *text, const struct span *span, uint64_t seed) {
        const char *at = text + span->key, *end = at + span->n_key;
        uint64_t hash = seed;

        while (at < end) {
                hash = (hash ^ next_code(&at)) * UINT64_C(0x9E3779B97F4A7C15);
                hash ^= hash >> 29;
        }
        return hash;
}

static int compare_hashed(const void *a, const void *b, void *text) {
        const struct hashed_key *p = a, *q = b;

        if (p->hash != q->hash)
                return p->hash < q->hash ? -1 : 1;
        return compare_keys(text, p->span, q->span);
}

/* Sorted, so that an object of nothing but keys costs no more than its size; by a hash first, which is quick to
 * compare. Its seed is an address, so that a sender cannot prepare keys of one hash. */
static int find_twice_sorted(const char *text, const struct spans *spans, size_t first, size_t n_keys) {
        _cleanup_free_ struct hashed_key *keys = reallocarray(NULL, n_keys, sizeof(*keys));
        size_t n = 0;

        if (keys == NULL)
                return -ENOMEM;
        for (size_t i = first; i < spans->n; i = spans->items[i].next) {
                keys[n].span = &spans->items[i];
                keys[n++].hash = hash_key(text, &spans->items[i], (uintptr_t)keys);
        }
        qsort_r(keys, n, sizeof(*keys), compare_hashed, (void *)text);
        for (size_t i = 1; i < n; i++)
                if (keys[i - 1].hash == keys[i].hash && compare_keys(text, keys[i - 1].span, keys[i].span) == 0)
                        return 1;
        return 0;
}

/* One of 64 bits that equal keys share. */
static uint64_t key_mark(const char *text, const struct span *span) {
        const unsigned char *key = (const unsigned char *)text + span->key;

        if (span->n_key == 0)
                return 1;
        return UINT64_C(1) << ((key[0] * 5u + key[span->n_key - 1] * 3u + span->n_key) & 63);
}

int strict_key_twice(const char *text, const struct spans *spans, size_t first, size_t n_keys) {
        const struct span *items = spans->items;
        uint64_t marks = 0;

        for (size_t i = first; i < spans->n; i = items[i].next) {
                uint64_t mark = key_mark(text, &items[i]);
                bool likely = (marks & mark) != 0;

                if (n_keys > FEW_KEYS || items[i].key_escaped)
                        return find_twice_sorted(text, spans, first, n_keys);
                marks |= mark;
                for (size_t j = first; likely && j < i; j = items[j].next)
                        if (same_key(text, &items[i], &items[j]))
                                return 1;
        }
        return 0;
}
