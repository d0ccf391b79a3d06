/* SPDX-License-Identifier: Apache-2.0 */
/* Calls per second of one connection, with the daemon and its client on one processor, beside two echo servers that carry
 * the same messages: one that only moves bytes, one that parses and prints the JSON. Rounds are interleaved, so that what
 * slows the machine slows all of them; figures are medians over the rounds. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "echo.h"
#include "proto/cleanup.h"
#include "tests/support/daemon_fixture.h"

#define ROUNDS 9
#define ROUND_USEC 200000
#define STATUS "{\"method\":\"io.gpuipc.Broker.GetStatus\"}"
#define ALLOCATE "{\"method\":\"io.gpuipc.Broker.Allocate\",\"parameters\":{\"size\":4096}}"
#define RELEASE "{\"method\":\"io.gpuipc.Broker.Release\",\"parameters\":{\"lease\":\"%s\"}}"

static char reply[65536];

/* The lease's id in a reply of Allocate. */
static void write_release(char *request, size_t size) {
        static const char key[] = "\"lease\":\"";
        const char *id = strstr(reply, key);
        ck_assert_msg(id, "Allocate: %s", reply);
        id += strlen(key);
        int n = (int)strcspn(id, "\""), length = 0;
        char lease[128];
        ck_assert_int_lt(n, (int)sizeof(lease));
        length = snprintf(lease, sizeof(lease), "%.*s", n, id);
        ck_assert_int_eq(length, n);
        ck_assert_int_lt(snprintf(request, size, RELEASE, lease), (int)size);
}

static void status_once(int fd) {
        exchange_once(fd, STATUS, reply, sizeof(reply));
}

static void pair_once(int fd) {
        char request[256];
        exchange_once(fd, ALLOCATE, reply, sizeof(reply));
        write_release(request, sizeof(request));
        exchange_once(fd, request, reply, sizeof(reply));
}

/* Calls per second over one round; `calls` in each `once`. */
static double round_of(void (*once)(int fd), int fd, int calls) {
        int64_t start = now_usec(), end;
        long n = 0;
        do {
                for (int i = 0; i < 32; i++)
                        once(fd);
                n += 32;
                end = now_usec();
        } while (end - start < ROUND_USEC);
        return (double)n * calls * 1e6 / (double)(end - start);
}

static void compare(const char *what, void (*once)(int fd), int calls, int daemon_fd, const struct exchange *exchanges,
                    size_t n_exchanges, double target) {
        struct echo raw = echo_start(ECHO_RAW, exchanges, n_exchanges);
        struct echo json = echo_start(ECHO_JSON, exchanges, n_exchanges);
        const int fds[3] = { daemon_fd, raw.fd, json.fd };
        double rates[3][ROUNDS], to_raw[ROUNDS], to_json[ROUNDS];
        char name[96];

        for (size_t i = 0; i < 3; i++)
                (void)round_of(once, fds[i], calls);
        for (size_t round = 0; round < ROUNDS; round++) {
                for (size_t i = 0; i < 3; i++)
                        rates[i][round] = round_of(once, fds[i], calls);
                to_raw[round] = rates[0][round] / rates[1][round];
                to_json[round] = rates[0][round] / rates[2][round];
        }
        printf("%s: %.0f calls/s; raw echo %.0f, JSON echo %.0f\n", what, bench_median(rates[0], ROUNDS),
               bench_median(rates[1], ROUNDS), bench_median(rates[2], ROUNDS));
        for (size_t i = 0; i < n_exchanges; i++)
                printf("  message %zu: %zu bytes there, %zu back\n", i + 1, strlen(exchanges[i].request) + 1,
                       strlen(exchanges[i].reply) + 1);
        printf("  %-58s %9.2f\n", "to the raw echo", bench_median(to_raw, ROUNDS));
        snprintf(name, sizeof(name), "to the echo that parses and prints, per call");
        bench_at_least(name, bench_median(to_json, ROUNDS), "", target);
        echo_stop(&raw);
        echo_stop(&json);
}

START_TEST(calls) {
        char release[256];
        bench_pin();
        struct gpuipcd *daemon = gpuipcd_start(&(struct gpuipcd_options){
                .args = (const char *const[]){ "--log-level", "warning", NULL } });
        struct raw client = raw_connect(daemon->socket);

        exchange_once(client.fd, STATUS, reply, sizeof(reply));
        _cleanup_free_ char *status_reply = strdup(reply);
        exchange_once(client.fd, ALLOCATE, reply, sizeof(reply));
        _cleanup_free_ char *allocate_reply = strdup(reply);
        write_release(release, sizeof(release));
        exchange_once(client.fd, release, reply, sizeof(reply));
        _cleanup_free_ char *release_reply = strdup(reply);

        compare("GetStatus", status_once, 1, client.fd, &(struct exchange){ STATUS, status_reply }, 1, 0.4);
        const struct exchange pair[] = { { ALLOCATE, allocate_reply }, { release, release_reply } };
        compare("Allocate + Release of 4096 bytes on host", pair_once, 2, client.fd, pair, 2, 0.2);

        raw_close(&client);
        gpuipcd_wait_idle(daemon);
        gpuipcd_stop(daemon);
} END_TEST

int main(void) {
        puts("One connection, daemon and client on one processor. The raw echo moves as many bytes; the other echo parses");
        puts("each request and prints each reply with cJSON. Both are plain blocking loops.");
        return bench_main(calls);
}
