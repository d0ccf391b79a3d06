/* SPDX-License-Identifier: Apache-2.0 */
/* A full house: 1,000 clients and 10,000 leases. What the daemon then weighs, how long a full List takes to read, and how
 * soon the 1,000 leases of a killed holder are gone. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "echo.h"
#include "proto/cleanup.h"
#include "tests/support/daemon_fixture.h"

#define CLIENTS 1000
#define LEASES 10000
#define HOLDER_LEASES 1000
#define LISTS 5
#define KILLS 5
#define MIB (1024.0)

static char reply[65536];

static void open_lease(int fd, const char *name) {
        char request[160];
        snprintf(request, sizeof(request),
                 "{\"method\":\"io.gpuipc.Broker.Open\",\"parameters\":{\"name\":\"%s\",\"access\":\"ro\"}}", name);
        exchange_once(fd, request, reply, sizeof(reply));
        ck_assert_msg(!strstr(reply, "\"error\""), "Open: %s", reply);
}

static void allocate(int fd, const char *name) {
        char request[160];
        snprintf(request, sizeof(request),
                 "{\"method\":\"io.gpuipc.Broker.Allocate\",\"parameters\":{\"size\":4096,\"name\":\"%s\"}}", name);
        exchange_once(fd, request, reply, sizeof(reply));
        ck_assert_msg(!strstr(reply, "\"error\""), "Allocate: %s", reply);
}

/* All but the holder's: each client makes one buffer and opens its neighbours'. */
static void fill(const struct gpuipcd *daemon, struct raw *clients, size_t n) {
        char name[32];
        for (size_t i = 0; i < n; i++) {
                clients[i] = raw_connect(daemon->socket);
                snprintf(name, sizeof(name), "scale/%zu", i);
                allocate(clients[i].fd, name);
        }
        for (size_t lease = n; lease < LEASES - HOLDER_LEASES; lease++) {
                snprintf(name, sizeof(name), "scale/%zu", (lease + lease / n) % n);
                open_lease(clients[lease % n].fd, name);
        }
}

static int hold(int talk_fd, void *data) {
        const struct gpuipcd *daemon = data;
        char name[32];
        struct raw client = raw_connect(daemon->socket);
        for (int i = 0; i < HOLDER_LEASES; i++) {
                snprintf(name, sizeof(name), "scale/%d", i % (CLIENTS - 1));
                open_lease(client.fd, name);
        }
        return talk_say(talk_fd, 'h') != 0 || talk_hear(talk_fd, 'x') != 0;
}

/* Milliseconds from the call to the end of its last page. */
static double list_all(const struct gpuipcd *daemon, size_t *ret_pages, size_t *ret_bytes) {
        struct raw client = raw_connect(daemon->socket);
        int64_t start = now_usec();
        size_t pages = 0, bytes = 0;
        ck_assert_int_eq(raw_send_text(&client, "{\"method\":\"io.gpuipc.Broker.List\",\"more\":true}"), 0);
        for (bool last = false; !last; pages++) {
                _cleanup_free_ char *page = raw_read(&client);
                ck_assert_ptr_nonnull(page);
                bytes += strlen(page) + 1;
                /* A page's own members stand at its end, behind the leases. */
                const char *tail = strrchr(page, ']');
                last = !tail || !strstr(tail, "\"continues\":true");
        }
        double ms = (double)(now_usec() - start) / 1000;
        raw_close(&client);
        *ret_pages = pages;
        *ret_bytes = bytes;
        return ms;
}

/* Milliseconds from SIGKILL until GetStatus says that the holder's leases are gone. */
static double kill_holder(struct gpuipcd *daemon, struct raw *watcher) {
        struct child holder = child_start(NULL, hold, daemon);
        child_hear(&holder, 'h');
        ck_assert_int_eq(gpuipcd_status(daemon, "leases"), LEASES);
        int64_t start = now_usec(), deadline = deadline_in(WAIT_MS);
        child_kill(&holder);
        for (;;) {
                exchange_once(watcher->fd, "{\"method\":\"io.gpuipc.Broker.GetStatus\"}", reply, sizeof(reply));
                if (json_int(reply, "parameters.leases") == LEASES - HOLDER_LEASES)
                        return (double)(now_usec() - start) / 1000;
                ck_assert_msg(now_ms() < deadline, "the leases of a killed holder are not gone");
        }
}

START_TEST(scale) {
        double kills[KILLS], lists[LISTS];
        size_t pages = 0, bytes = 0;
        struct raw *clients = calloc(CLIENTS, sizeof(*clients));
        ck_assert_ptr_nonnull(clients);
        struct gpuipcd *daemon = gpuipcd_start(&(struct gpuipcd_options){
                .args = (const char *const[]){ "--log-level", "warning", "--clients-per-user", "2000", NULL } });
        long idle_kb = gpuipcd_memory_kb(daemon, "VmRSS");
        int64_t start = now_ms();
        fill(daemon, clients, CLIENTS - 1);
        struct child holder = child_start(NULL, hold, daemon);
        child_hear(&holder, 'h');
        printf("%d clients, %d leases on %d buffers, made in %.1f s; the daemon has %zu descriptors open\n", CLIENTS,
               LEASES, CLIENTS - 1, (double)(now_ms() - start) / 1000, fds_count(daemon->pid));
        ck_assert_int_eq(gpuipcd_status(daemon, "leases"), LEASES);

        for (size_t i = 0; i < LISTS; i++)
                lists[i] = list_all(daemon, &pages, &bytes);
        long full_kb = gpuipcd_memory_kb(daemon, "VmRSS");
        child_kill(&holder);
        wait_for(gpuipcd_status(daemon, "leases") == LEASES - HOLDER_LEASES);
        for (size_t i = 0; i < KILLS; i++)
                kills[i] = kill_holder(daemon, &clients[0]);

        printf("  List: %zu pages, %zu bytes\n", pages, bytes);
        printf("  %-58s %9.2f MiB\n", "the daemon's resident memory, idle", (double)idle_kb / MIB);
        bench_at_most("the daemon's resident memory, full", (double)full_kb / MIB, "MiB", 32);
        bench_at_most("a full List, read to its end", bench_median(lists, LISTS), "ms", 50);
        bench_at_most("from SIGKILL of a holder of 1,000 to the last one gone", bench_median(kills, KILLS), "ms", 10);

        for (size_t i = 0; i < CLIENTS - 1; i++)
                raw_close(&clients[i]);
        free(clients);
        /* Their leases drain, since this process lives. */
        gpuipcd_stop(daemon);
} END_TEST

int main(void) {
        return bench_main(scale);
}
