/* SPDX-License-Identifier: Apache-2.0 */
/* The driver clears memory as it is freed, unless it was told not to or runs where somebody else is to do it. The rules are those of the
 * open kernel module (memory manager, "scrub on free"): in force from Turing on, on one's own board. The probing thread enters. */
#include "cuda_zeroed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/cleanup.h"

/* Registry keys that turn it off, and the value that leaves it on. */
static const struct {
        const char *key;
        long harmless;
} keys[] = {
        {"RMDisableScrubOnFree", 0},
        {"RMDisableAsyncMemScrub", 0},
        {"RMEnablePMA", 1},
};

/* Whether somewhere in the text the key has another value than the harmless one; one that cannot be read is another. */
static bool is_set(const char *text, const char *key, long harmless) {
        for (const char *at = text; (at = strcasestr(at, key)); ) {
                char *end;
                long value;

                at += strlen(key);
                at += strspn(at, " \t");
                if (*at != '=' && *at != ':')
                        continue; /* a longer name */
                at++;
                value = strtol(at, &end, 0);
                if (end == at || value != harmless)
                        return true;
        }
        return false;
}

const char *cuda_params_doubt(const char *params_file) {
        _cleanup_free_ char *text = NULL;
        size_t n = 0;
        ssize_t got;
        FILE *file = fopen(params_file, "re");

        if (!file)
                return "the driver's parameters cannot be read";
        got = getdelim(&text, &n, '\0', file);
        (void)fclose(file);
        if (got <= 0)
                return "the driver's parameters cannot be read";
        for (size_t i = 0; i < ELEMENTSOF(keys); i++)
                if (is_set(text, keys[i].key, keys[i].harmless))
                        return "the driver's registry keys turn its scrubbing off";
        return NULL;
}

static int attribute(const struct cuda_api *api, CUdevice device, CUdevice_attribute which, int in_doubt) {
        int value;

        return api->cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : in_doubt;
}

const char *cuda_zeroed_doubt(const struct cuda_api *api, CUdevice device, const struct cuda_gauge *gauge, const char *params_file) {
        int major = attribute(api, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
        int minor = attribute(api, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);

        if (attribute(api, device, CU_DEVICE_ATTRIBUTE_INTEGRATED, 1) != 0)
                return "the GPU uses the machine's own memory";
        if (attribute(api, device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 1) != 0)
                return "the GPU's memory belongs to the operating system";
        if (access("/dev/dxg", F_OK) == 0)
                return "the GPU belongs to Windows";
        if (major < 7 || (major == 7 && minor < 5))
                return "the GPU is older than Turing";
        switch (cuda_gauge_virtualization(gauge)) {
        case CUDA_VIRTUALIZATION_NONE:
        case CUDA_VIRTUALIZATION_PASSTHROUGH:
                return cuda_params_doubt(params_file);
        case CUDA_VIRTUALIZATION_UNKNOWN:
                return "NVML does not tell whether the GPU is virtual";
        default:
                return "the GPU is virtual, or shared out to virtual machines";
        }
}
