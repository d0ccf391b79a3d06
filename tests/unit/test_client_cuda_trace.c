/* SPDX-License-Identifier: Apache-2.0 */
/* What an NVTX tool sees of the library: this program is one. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nvtx3/nvToolsExt.h>

#include "channel_house.h"
#include "include/gpuipc.h"
#include "tests/support/fake_server.h"
#include "tests/support/suite.h"

static char seen[1024]; /* "open(0) map(8192) " for what was begun, "end " for what ended */
static int n_domains;

static nvtxDomainHandle_t NVTX_API domain_create(const char *name) {
        ck_assert_str_eq(name, "gpuipc");
        n_domains++;
        return (nvtxDomainHandle_t)(void *)seen;
}

static nvtxStringHandle_t NVTX_API string_register(nvtxDomainHandle_t domain, const char *text) {
        ck_assert_ptr_eq(domain, seen);
        return (nvtxStringHandle_t)(uintptr_t)text;
}

static int NVTX_API range_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes) {
        size_t n;

        ck_assert_ptr_eq(domain, seen);
        ck_assert_int_eq(attributes->messageType, NVTX_MESSAGE_TYPE_REGISTERED);
        ck_assert_int_eq(attributes->payloadType, NVTX_PAYLOAD_TYPE_INT64);
        n = strlen(seen);
        (void)snprintf(seen + n, sizeof(seen) - n, "%s(%lld) ", (const char *)attributes->message.registered,
                       (long long)attributes->payload.llValue);
        return 0;
}

static int NVTX_API range_pop(nvtxDomainHandle_t domain) {
        ck_assert_ptr_eq(domain, seen);
        (void)strncat(seen, "end ", sizeof(seen) - strlen(seen) - 1);
        return 0;
}

static int NVTX_API listen_in(NvtxGetExportTableFunc_t get_table) {
        const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
        NvtxFunctionTable table = NULL;
        unsigned n = 0;

        if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &n) || n < NVTX_CBID_CORE2_SIZE)
                return 0;
        *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)domain_create;
        *table[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)string_register;
        *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)range_push;
        *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)range_pop;
        return 1;
}

static gpuipc_client *connect_to(const struct fake *fake) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client;
        gpuipc_error error;

        options.socket_path = fake->path;
        ck_assert_msg(gpuipc_connect(&options, &client, &error) == GPUIPC_OK, "%s", error.message);
        return client;
}

/* Looking at it is not traced: there would be no end. */
static void use_fence(gpuipc_buffer *buffer) {
        gpuipc_fence *fence;
        uint64_t value;

        ck_assert_int_eq(gpuipc_fence_new(buffer, 0, &fence, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_signal(fence, 3, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_signal_stream(fence, NULL, 4, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_wait(fence, 2, -1, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_wait_stream(fence, NULL, 1, -1, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_query(fence, &value, NULL), GPUIPC_OK);
        gpuipc_fence_free(fence);
}

static void use(gpuipc_client *client) {
        gpuipc_buffer *buffers[2];
        void *pointer;

        ck_assert_int_eq(gpuipc_allocate(client, 8192, NULL, &buffers[0], NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_open_id(client, "b0", NULL, &buffers[1], NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_buffer_map(buffers[1], &pointer, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_buffer_map(buffers[1], &pointer, NULL), GPUIPC_OK); /* again: nothing is done */
        use_fence(buffers[1]);
        ck_assert_int_eq(gpuipc_release(buffers[1], NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(buffers[0], NULL), GPUIPC_OK);
}

START_TEST(ranges) {
        struct fake_broker broker;
        gpuipc_buffer *named;

        InitializeInjectionNvtx2_fnptr = _i ? listen_in : NULL;
        fake_broker_init(&broker, 8192);
        struct fake *fake = fake_start(fake_broker_answer, &broker);
        gpuipc_client *client = connect_to(fake);
        use(client);
        ck_assert_int_eq(gpuipc_open_name(client, "n", NULL, &named, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(named, NULL), GPUIPC_OK);
        ck_assert_str_eq(seen, _i ? "allocate(8192) end open(0) end map(8192) end fence signal(3) end fence signal(4) end "
                                    "fence wait(2) end fence wait(1) end release(8192) end release(8192) end "
                                    "open(0) end release(8192) end "
                                  : "");
        ck_assert_int_eq(n_domains, _i);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
}
END_TEST

/* A wait carries no number, since the item is what it waits for; a publish carries its ticket. What is refused is no range, nor are a
 * cancel and a release, which wait for nothing. */
static void pass_two(gpuipc_channel *producer, gpuipc_channel *consumer) {
        gpuipc_item item;

        for (uint64_t i = 0; i < 2; i++) {
                house_put(producer, i);
                ck_assert_int_eq(gpuipc_channel_take(consumer, NULL, 0, &item, NULL), GPUIPC_OK);
                ck_assert_int_eq(gpuipc_channel_publish(consumer, &item, 0, NULL, 0, NULL, NULL), GPUIPC_ERROR_INVALID_PARAMETER);
                ck_assert_int_eq(gpuipc_channel_release(consumer, &item, NULL, NULL), GPUIPC_OK);
        }
        ck_assert_int_eq(gpuipc_channel_begin(producer, NULL, 0, &item, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_channel_cancel(producer, &item, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_channel_take(consumer, NULL, 0, &item, NULL), GPUIPC_ERROR_TIMED_OUT);
}

START_TEST(channel_ranges) {
        struct house house;

        if (getenv("GPUIPC_VALGRIND")) {
                printf("SKIP channel_ranges: valgrind knows no pidfds\n");
                return;
        }
        InitializeInjectionNvtx2_fnptr = _i ? listen_in : NULL;
        house_open(&house, NULL);
        gpuipc_channel *producer = house_join(&house, GPUIPC_CHANNEL_PRODUCER), *consumer = house_join(&house, GPUIPC_CHANNEL_CONSUMER);
        ck_assert_str_eq(seen, _i ? "open(0) map(1024) end end open(0) map(1024) end end " : "");
        seen[0] = '\0';
        pass_two(producer, consumer);
        ck_assert_str_eq(seen, _i ? "wait(0) end publish(0) end wait(0) end wait(0) end publish(1) end wait(0) end wait(0) end wait(0) end "
                                  : "");
        ck_assert_int_eq(n_domains, _i);
        ck_assert_int_eq(gpuipc_channel_free(producer, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_channel_free(consumer, NULL), GPUIPC_OK);
        house_close(&house);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_cuda_trace");
        TCase *tcase = tcase_create("ranges");

        tcase_add_loop_test(tcase, ranges, 0, 2); /* without a tool, and with one */
        tcase_add_loop_test(tcase, channel_ranges, 0, 2);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
