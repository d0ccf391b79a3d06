/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's library: found when it is first needed, never linked. Any thread enters. Never keeps anything of its own. */
#include "cuda_driver.h"

#include <stdio.h>

#include "error.h"
#include "proto/cleanup.h"
#include "proto/symbols.h"

#define SYMBOL_(name, optional) { #name, offsetof(struct cuda_driver, name), optional },
#define SYMBOL(function) SYMBOL_(function, false)
#define OPTIONAL(function) SYMBOL_(function, true)

static const struct symbol functions[] = { CUDA_FUNCTIONS(SYMBOL) CUDA_FUNCTIONS_OPTIONAL(OPTIONAL) };

int cuda_driver_load(struct cuda_driver *driver, gpuipc_error *ret_error) {
        static const char *const sonames[] = { "libcuda.so.1", NULL };
        char why[200];
        int r = symbols_load(sonames, functions, ELEMENTSOF(functions), driver, why, sizeof(why));

        if (r == -ENOSYS)
                return error_set(ret_error, GPUIPC_ERROR_MAP, 0, "libcuda.so.1",
                                 "Memory on a GPU cannot be mapped: the driver is too old (%s). Version 470 or newer is "
                                 "needed. [%s]", why, doctor_code_id(DOCTOR_DRIVER_TOO_OLD));
        if (r < 0)
                return error_set(ret_error, GPUIPC_ERROR_MAP, 0, "libcuda.so.1",
                                 "Memory on a GPU cannot be mapped: the driver's library cannot be loaded (%s). In a "
                                 "container, start it with the GPU (--gpus all, NVIDIA Container Toolkit), or put the "
                                 "library's directory on LD_LIBRARY_PATH. [%s]", why,
                                 doctor_code_id(DOCTOR_NO_DRIVER_LIBRARY));
        return GPUIPC_OK;
}

/* ---- errors ----------------------------------------------------------------------------------------------- */

const char *cuda_driver_words(const struct cuda_driver *driver, CUresult result, char words[CUDA_WORDS_SIZE]) {
        const char *name = NULL, *text = NULL;

        if (driver->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
                name = "an error unknown to the driver";
        if (driver->cuGetErrorString(result, &text) != CUDA_SUCCESS || !text)
                text = "";
        (void)snprintf(words, CUDA_WORDS_SIZE, "%s (%d)%s%s", name, (int)result, text[0] ? ": " : "", text);
        return words;
}

/* Nothing on the GPU works any more in this process, whatever was called. */
static bool is_context_lost(CUresult result) {
        switch (result) {
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CUDA_ERROR_ECC_UNCORRECTABLE:
                return true;
        default:
                return false;
        }
}

bool cuda_driver_result_speaks(CUresult result) {
        return result == CUDA_ERROR_OUT_OF_MEMORY || is_context_lost(result);
}

int cuda_driver_refused(const struct cuda_driver *driver, CUresult result, const char *what, const char *call,
                        enum doctor_code code, const char *remedy, gpuipc_error *ret_error) {
        char words[CUDA_WORDS_SIZE];

        if (result == CUDA_ERROR_OUT_OF_MEMORY) {
                code = DOCTOR_DRIVER_NO_MEMORY;
                remedy = "A context takes about 500 MiB of its GPU, and each mapping takes address space; release some.";
        } else if (is_context_lost(result)) {
                code = DOCTOR_CONTEXT_LOST;
                remedy = "Something that ran on the GPU before has failed, and CUDA is over for this process: start it anew.";
        }
        return error_set(ret_error, GPUIPC_ERROR_MAP, 0, call, "%s: %s says %s.%s%s [%s]", what, call,
                         cuda_driver_words(driver, result, words), remedy[0] ? " " : "", remedy, doctor_code_id(code));
}

int cuda_driver_error(const struct cuda_driver *driver, CUresult result, const char *call, enum doctor_code code,
                      const char *remedy, gpuipc_error *ret_error) {
        return cuda_driver_refused(driver, result, "The buffer cannot be mapped", call, code, remedy, ret_error);
}

int cuda_driver_forked(gpuipc_error *ret_error) {
        return error_set(ret_error, GPUIPC_ERROR_FORKED, 0, "CUDA",
                         "CUDA was initialised before this process was made by fork(), and does not work in such a child. "
                         "Use CUDA in the child alone, or start the child with exec (in Python: the start method 'spawn' or "
                         "'forkserver'). [%s]", doctor_code_id(DOCTOR_CUDA_FORKED));
}

/* ---- initialising ----------------------------------------------------------------------------------------- */

int cuda_driver_init(const struct cuda_driver *driver, gpuipc_error *ret_error) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        CUresult result = driver->cuInit(0);
        char remedy[300];

        switch (result) {
        case CUDA_SUCCESS:
                return GPUIPC_OK;
        case CUDA_ERROR_NOT_INITIALIZED: /* so it says in a child of a process that had initialised it */
                return cuda_driver_forked(ret_error);
        case CUDA_ERROR_NO_DEVICE:
                (void)snprintf(remedy, sizeof(remedy), "This process sees no GPU: %s%.100s%s.",
                               visible ? "CUDA_VISIBLE_DEVICES is '" : "is there one, and was the container given it "
                               "(--gpus)", visible ? visible : "", visible ? "'" : "?");
                return cuda_driver_error(driver, result, "cuInit()", DOCTOR_NO_GPU, remedy, ret_error);
        case CUDA_ERROR_OPERATING_SYSTEM:
                return cuda_driver_error(driver, result, "cuInit()", DOCTOR_PROC_NOT_MOUNTED,
                                         "In a pid namespace of one's own /proc must be mounted anew (mount -t proc proc "
                                         "/proc).", ret_error);
        case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
        case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
                return cuda_driver_error(driver, result, "cuInit()", DOCTOR_DRIVER_MISMATCH,
                                         "libcuda.so.1 and the kernel module must be of one version: is an old or a compat "
                                         "library first on LD_LIBRARY_PATH?", ret_error);
        case CUDA_ERROR_SYSTEM_NOT_READY:
                return cuda_driver_error(driver, result, "cuInit()", DOCTOR_FABRIC,
                                         "On machines with NVSwitch, nvidia-fabricmanager must run on the host first.", ret_error);
        default:
                return cuda_driver_error(driver, result, "cuInit()", DOCTOR_DRIVER_INIT,
                                         "Are /dev/nvidiactl, /dev/nvidia-uvm and the GPU's own node there and open to this "
                                         "user?", ret_error);
        }
}
