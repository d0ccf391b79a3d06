/* SPDX-License-Identifier: Apache-2.0 */
/* The stable codes of findings, in the library's errors ("… [G009]") and in `gpuipcctl doctor`. A code once given out keeps its
 * meaning; new ones are added at the end of their block. Constant; pulls in nothing. */
#ifndef CLIENT_DOCTOR_CODES_H
#define CLIENT_DOCTOR_CODES_H

#include <stddef.h>

/* X(NAME, code, what is the matter) */
#define DOCTOR_CODES(X)                                                                                      \
        /* G001…G099: CUDA in this process */                                                                \
        X(NO_DRIVER_LIBRARY, "G001", "the driver's library libcuda.so.1 is not there")                       \
        X(DRIVER_TOO_OLD, "G002", "the driver's library lacks functions that are needed")                    \
        X(NO_GPU, "G003", "CUDA shows this process no GPU")                                                  \
        X(PROC_NOT_MOUNTED, "G004", "/proc is not that of this process's pid namespace")                     \
        X(DRIVER_MISMATCH, "G005", "the driver's library and its kernel module differ in version")           \
        X(DRIVER_INIT, "G006", "CUDA cannot be initialised")                                                 \
        X(CUDA_FORKED, "G007", "CUDA was initialised before this process was forked")                        \
        X(DEVICE_UNREACHABLE, "G008", "the GPU in use cannot reach the one that holds the memory")           \
        X(SAME_PID, "G009", "this process has the daemon's pid number, in another pid namespace")            \
        X(HANDLE_GONE, "G010", "the memory behind a classic handle is gone, or its owner is")                \
        X(HANDLE_REFUSED, "G011", "the driver does not take the descriptor for memory on a GPU")             \
        X(DRIVER_NO_MEMORY, "G012", "the driver is out of memory or address space")                          \
        X(CONTEXT_LOST, "G013", "an earlier fault ended CUDA in this process")                               \
        X(CLASSIC_READ_ONLY, "G014", "a classic handle cannot be mapped read-only")                          \
        X(DRIVER_REFUSES, "G015", "the driver refuses for a reason of its own")                              \
        X(WITHOUT_CUDA, "G016", "the library was built without CUDA")                                        \
        /* G017…: more of CUDA here */                                                                       \
        X(DRIVER_HANGS, "G017", "a call into the driver does not return")                                    \
        X(DRIVER_CRASHES, "G018", "a call into the driver ends the process that makes it")                   \
        X(FABRIC, "G019", "the driver waits for the fabric between the GPUs to be set up")                   \
        X(RUNTIME_NEWER, "G020", "a CUDA runtime here is newer than the driver")                             \
        X(NO_KERNEL_DRIVER, "G021", "the host's kernel has no NVIDIA driver loaded")                         \
        X(NO_DEVICE_NODE, "G022", "device nodes of the GPUs are missing")                                    \
        X(DEVICE_NODE_CLOSED, "G023", "a device node of a GPU cannot be opened")                             \
        X(VISIBLE_NONE, "G024", "CUDA_VISIBLE_DEVICES hides every GPU")                                      \
        X(VISIBLE_INVALID, "G025", "CUDA_VISIBLE_DEVICES names a GPU that is not here")                      \
        X(VISIBLE_RENUMBERED, "G026", "CUDA_VISIBLE_DEVICES gives GPUs other numbers than the host has")     \
        X(GPU_HIDDEN, "G027", "a GPU of the daemon is hidden from this process")                             \
        X(GPU_NOT_GIVEN, "G028", "a GPU of the daemon was not given to this container")                      \
        X(GPU_NOT_BROKERED, "G029", "a GPU here is none of the daemon's")                                    \
        X(NO_VMM, "G030", "a GPU cannot share memory by descriptor")                                         \
        X(NO_STREAM_MEMOPS, "G031", "a GPU has no stream memory operations")                                 \
        X(MIG, "G032", "a GPU is a MIG slice")                                                               \
        X(WSL, "G033", "this is Windows Subsystem for Linux")                                                \
        X(TEGRA, "G034", "this is a Tegra board, whose GPU shares the host's memory")                        \
        /* G1xx: the way to the daemon */                                                                    \
        X(SOCKET_WELL, "G100", "the daemon answers")                                                         \
        X(NO_SOCKET, "G101", "nothing is at the socket's path")                                              \
        X(SOCKET_STALE, "G102", "what was mounted for the socket has gone stale")                            \
        X(NOBODY_LISTENS, "G103", "nobody listens at the socket")                                            \
        X(SOCKET_DENIED, "G104", "this user may not reach the socket")                                       \
        X(NOT_A_SOCKET, "G105", "what is at the socket's path is no such socket")                            \
        X(DAEMON_SILENT, "G106", "the daemon does not answer")                                               \
        X(NOT_THE_DAEMON, "G107", "what answers at the socket is not gpuipcd")                               \
        X(SOCKET_UNREACHABLE, "G108", "the socket cannot be connected to")                                   \
        X(SOCKET_FILE_MOUNT, "G109", "the socket is mounted as a file and will go stale")                    \
        /* G2xx: who one is to the daemon */                                                                 \
        X(IDENTITY, "G200", "who this process is to the daemon")                                             \
        X(NOT_ADMITTED, "G201", "the daemon does not let this user in")                                      \
        X(OVERFLOW_UID, "G202", "this user is nobody to the daemon")                                         \
        X(TURNED_AWAY, "G203", "the daemon has no room for another client")                                  \
        X(OTHER_UID, "G204", "this user has another number to the daemon")                                   \
        X(IDENTITY_UNKNOWN, "G205", "who this process is to the daemon could not be told")                   \
        X(CONTAINER_UNKNOWN, "G206", "the daemon cannot tell which container this is")                       \
        /* G3xx: namespaces and /dev/shm */                                                                  \
        X(NAMESPACES, "G300", "the namespaces of this process")                                              \
        X(SHM_SHARED, "G310", "/dev/shm is shared with the daemon")                                          \
        X(SHM_PRIVATE, "G311", "/dev/shm is not shared with the daemon")                                     \
        X(SHM_UNKNOWN, "G312", "whether /dev/shm is shared with the daemon is not known")                    \
        X(SHM_SMALL, "G313", "/dev/shm is small")                                                            \
        X(SHM_UNUSABLE, "G314", "/dev/shm is missing or cannot be written")                                  \
        /* G4xx: GPUs and limits that are well */                                                            \
        X(DRIVER_WELL, "G400", "CUDA works in this process")                                                 \
        X(NODES_WELL, "G401", "device nodes are there and open")                                             \
        X(DEVICES_SAME, "G402", "this process and the daemon see the same GPUs")                             \
        X(LIMITS_WELL, "G410", "the limits of this process")                                                 \
        X(FEW_DESCRIPTORS, "G411", "this process may have few descriptors")                                  \
        X(LITTLE_MEMLOCK, "G412", "this process may lock little memory")                                     \
        X(ADDRESS_SPACE, "G413", "the address space of this process is limited")                             \
        /* G5xx: the daemon */                                                                               \
        X(DAEMON_NO_GPU, "G501", "the daemon has no GPU")                                                    \
        X(DEVICE_DEGRADED, "G502", "a device no longer answers the daemon")                                  \
        X(NOT_ZEROED, "G503", "the daemon does not promise that new memory is zero")                         \
        X(OTHER_VERSION, "G504", "the daemon and this command differ in version")                            \
        /* G6xx: trying it */                                                                                \
        X(TRIAL_WELL, "G600", "a buffer was made, mapped, written, read and released")                       \
        X(TRIAL_REFUSED, "G601", "the daemon refuses a buffer")                                              \
        X(TRIAL_MAP, "G602", "a buffer cannot be mapped")                                                    \
        X(TRIAL_BYTES, "G603", "bytes read back are not those written")                                      \
        X(TRIAL_NOT_ZERO, "G604", "new memory is not zero")                                                  \
        X(TRIAL_PEER, "G605", "memory is reached over another GPU, which is slower")                         \
        X(TRIAL_RELEASE, "G606", "a buffer cannot be released")                                              \
        X(TRIAL_SKIPPED, "G607", "memory on a GPU was not tried")                                            \
        /* G7xx: channels */                                                                                 \
        X(CHANNEL_CORRUPT, "G701", "a channel's control page was written over")                              \
        X(CHANNEL_LEFT, "G702", "this process is no longer a member of a channel")

#define DOCTOR_CODE_(name, code, what) DOCTOR_##name,
enum doctor_code { DOCTOR_CODES(DOCTOR_CODE_) N_DOCTOR_CODES };
#undef DOCTOR_CODE_

static inline const char *doctor_code_id(enum doctor_code code) {
#define DOCTOR_CODE_(name, id, what) [DOCTOR_##name] = id,
        static const char *const ids[N_DOCTOR_CODES] = { DOCTOR_CODES(DOCTOR_CODE_) };
#undef DOCTOR_CODE_
        return ids[code];
}

static inline const char *doctor_code_what(enum doctor_code code) {
#define DOCTOR_CODE_(name, id, what) [DOCTOR_##name] = what,
        static const char *const whats[N_DOCTOR_CODES] = { DOCTOR_CODES(DOCTOR_CODE_) };
#undef DOCTOR_CODE_
        return whats[code];
}

#endif
