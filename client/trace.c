/* SPDX-License-Identifier: Apache-2.0 */
/* NVTX, header-only: it looks once, in the environment, for a tool that listens. Any thread enters. Nothing without the Toolkit's
 * headers. */
#include "trace.h"

#ifdef HAVE_CUDA

#include <pthread.h>

#include <nvtx3/nvToolsExt.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static nvtxDomainHandle_t domain; /* NULL: nobody listens */
static nvtxStringHandle_t names[N_TRACE_RANGES];

static void find_tool(void) {
        static const char *const texts[N_TRACE_RANGES] = {
                [TRACE_ALLOCATE] = "allocate",
                [TRACE_OPEN] = "open",
                [TRACE_MAP] = "map",
                [TRACE_RELEASE] = "release",
                [TRACE_FENCE_SIGNAL] = "fence signal",
                [TRACE_FENCE_WAIT] = "fence wait",
                [TRACE_PUBLISH] = "publish",
                [TRACE_CHANNEL_WAIT] = "wait",
        };

        domain = nvtxDomainCreateA("gpuipc");
        for (int i = 0; domain && i < N_TRACE_RANGES; i++)
                names[i] = nvtxDomainRegisterStringA(domain, texts[i]);
}

bool trace_begin(enum trace_range range, int64_t payload) {
        nvtxEventAttributes_t attributes = { .version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE };

        (void)pthread_once(&once, find_tool);
        if (!domain)
                return false;
        attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
        attributes.message.registered = names[range];
        attributes.payloadType = NVTX_PAYLOAD_TYPE_INT64;
        attributes.payload.llValue = payload;
        (void)nvtxDomainRangePushEx(domain, &attributes);
        return true;
}

void trace_end(bool *begun) {
        if (*begun)
                (void)nvtxDomainRangePop(domain);
}

#else

bool trace_begin(enum trace_range range, int64_t payload) {
        (void)range, (void)payload;
        return false;
}

void trace_end(bool *begun) {
        (void)begun;
}

#endif
