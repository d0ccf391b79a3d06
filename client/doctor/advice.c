/* SPDX-License-Identifier: Apache-2.0 */
/* The table of what to do, one entry a code. Constant; any thread. The manual page has the same words, and a lint compares them. */
#include "advice.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "proto/cleanup.h"

#define GIVE_THE_GPU                    \
        "  docker run --gpus all ...\n" \
        "  podman run --device nvidia.com/gpu=all ..."

#define GIVING_NEEDS                                                                                \
        "On the host this takes the NVIDIA Container Toolkit, and for podman once a CDI file of it:\n" \
        "  nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"

#define START_THE_DAEMON                                              \
        "On the host, start the daemon, as a service or by hand:\n" \
        "  systemctl start gpuipcd\n"                                \
        "  gpuipcd"

/* clang-format off: a table */
static const char *const texts[N_DOCTOR_CODES] = {
        [DOCTOR_NO_DRIVER_LIBRARY] =
                "Start the container with the GPU, which brings the library and the device nodes with it:\n"
                GIVE_THE_GPU "\n"
                GIVING_NEEDS "\n"
                "On a host, install the NVIDIA driver. Where the library lies elsewhere, name its directory:\n"
                "  export LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/nvidia",
        [DOCTOR_DRIVER_TOO_OLD] =
                "Version 470 or newer of the NVIDIA driver is needed on the host. If an old libcuda.so.1 comes with the image, "
                "take it off LD_LIBRARY_PATH.",
        [DOCTOR_NO_GPU] =
                "See that there is one (nvidia-smi -L on the host), and give it to the container:\n"
                GIVE_THE_GPU,
        [DOCTOR_PROC_NOT_MOUNTED] =
                "Mount the /proc of this pid namespace, as container engines do by themselves:\n"
                "  mount -t proc proc /proc\n"
                "With unshare, add --mount-proc.",
        [DOCTOR_DRIVER_MISMATCH] =
                "After an update of the driver, reboot the host or reload its modules. In a container, take a compat library "
                "off the path:\n"
                "  unset LD_LIBRARY_PATH\n"
                "  ldconfig -p | grep libcuda.so.1",
        [DOCTOR_DRIVER_INIT] =
                "See whether it works on the host (nvidia-smi), and what its kernel says:\n"
                "  dmesg | grep -i -e nvrm -e xid",
        [DOCTOR_CUDA_FORKED] =
                "Use CUDA only after the fork, or start the child with exec. In Python:\n"
                "  torch.multiprocessing.set_start_method('spawn')",
        [DOCTOR_DEVICE_UNREACHABLE] =
                "Let this process see the GPU that holds the memory (CUDA_VISIBLE_DEVICES, --gpus), or allocate on one that it "
                "uses:\n"
                "  gpuipcctl devices",
        [DOCTOR_SAME_PID] =
                "Give the program another number, as an init of its container does:\n"
                "  docker run --init ...\n"
                "Or run the daemon on the host, or its container with the host's numbers:\n"
                "  docker run --pid=host ... gpuipcd\n"
                "Handles of the kind cuda-fd, the default, do not mind:\n"
                "  gpuipcctl alloc --handle cuda-fd SIZE",
        [DOCTOR_HANDLE_GONE] =
                "Open the buffer anew. A classic handle ends with its buffer and with the daemon that made it.",
        [DOCTOR_HANDLE_REFUSED] =
                "The daemon and this process must use the same driver of the same host, and the GPU's device node must be in "
                "the container:\n"
                GIVE_THE_GPU,
        [DOCTOR_DRIVER_NO_MEMORY] =
                "Release something: a context takes about 500 MiB of its GPU. See who has it:\n"
                "  gpuipcctl list\n"
                "  nvidia-smi",
        [DOCTOR_CONTEXT_LOST] =
                "Start the process anew, and find what failed on the GPU before:\n"
                "  compute-sanitizer PROGRAM",
        [DOCTOR_CLASSIC_READ_ONLY] =
                "Open it for writing too, or have it allocated with the handle cuda-fd.",
        [DOCTOR_DRIVER_REFUSES] =
                "The driver's own words are all there is. Try the other kind of handle, and see what the kernel says:\n"
                "  dmesg | grep -i -e nvrm -e xid",
        [DOCTOR_WITHOUT_CUDA] =
                "Use a library that was built where the CUDA Toolkit's headers are (make CUDA_INCLUDE=DIR).",
        [DOCTOR_DRIVER_HANGS] =
                "A GPU may have fallen off the bus, or the driver needs long to start (enable nvidia-persistenced). On the "
                "host:\n"
                "  timeout 30 nvidia-smi\n"
                "  dmesg | grep -i -e nvrm -e xid",
        [DOCTOR_DRIVER_CRASHES] =
                "The library and the kernel module may be of different versions, or the library is damaged. Compare:\n"
                "  cat /proc/driver/nvidia/version\n"
                "  ldconfig -p | grep libcuda.so.1",
        [DOCTOR_FABRIC] =
                "On the host, see that the fabric manager runs and is of the driver's version:\n"
                "  systemctl status nvidia-fabricmanager",
        [DOCTOR_RUNTIME_NEWER] =
                "Update the host's driver, or use an image of the driver's CUDA version or older. Programs that bring a runtime "
                "of their own may still work.",
        [DOCTOR_NO_KERNEL_DRIVER] =
                "On the host, install the NVIDIA driver and load it:\n"
                "  modprobe nvidia",
        [DOCTOR_NO_DEVICE_NODE] =
                "Start the container with the GPU, which brings all of its nodes:\n"
                GIVE_THE_GPU "\n"
                GIVING_NEEDS "\n"
                "On a host, make the nodes:\n"
                "  nvidia-modprobe -c 0 -u",
        [DOCTOR_DEVICE_NODE_CLOSED] =
                "With \"Operation not permitted\" the container may not use the device: start it with the GPU instead of a mount "
                "of /dev.\n"
                GIVE_THE_GPU "\n"
                "With \"Permission denied\" this user may not: see the node's mode and group, and add that group.\n"
                "  ls -l /dev/nvidia*\n"
                "  docker run --group-add GROUP ...",
        [DOCTOR_VISIBLE_NONE] =
                "Name the GPUs that this process is to use, or all:\n"
                "  unset CUDA_VISIBLE_DEVICES",
        [DOCTOR_VISIBLE_INVALID] =
                "CUDA stops at the first entry it does not know and hides what follows. UUIDs stay right where numbers change:\n"
                "  nvidia-smi -L\n"
                "  export CUDA_VISIBLE_DEVICES=GPU-...",
        [DOCTOR_VISIBLE_RENUMBERED] =
                "Nothing, unless something passes ordinals between processes: pass UUIDs.",
        [DOCTOR_GPU_HIDDEN] =
                "Its memory can still be mapped, over another GPU and more slowly. To use it directly, name it too:\n"
                "  unset CUDA_VISIBLE_DEVICES",
        [DOCTOR_GPU_NOT_GIVEN] =
                "Give it to the container, or allocate on a GPU that both have (gpuipcctl alloc --device UUID).\n"
                GIVE_THE_GPU,
        [DOCTOR_GPU_NOT_BROKERED] =
                "Allocate on a GPU of the daemon's; or let the daemon see this one too and restart it:\n"
                "  gpuipcctl devices",
        [DOCTOR_NO_VMM] =
                "Ask for classic handles (handle cuda-ipc) on this GPU.",
        [DOCTOR_NO_STREAM_MEMOPS] =
                "Fences and channels wait on the processor on this GPU, which takes longer. Update the driver.",
        [DOCTOR_MIG] =
                "CUDA shares memory within a slice, not between slices: give both ends the same one.\n"
                "  docker run --gpus device=MIG-... ...",
        [DOCTOR_WSL] =
                "The driver of WSL shares less than that of Linux. What the trials below say is what works.",
        [DOCTOR_TEGRA] =
                "Classic handles depend on the release of L4T, and the driver does not scrub memory by itself. What the trials "
                "below say is what works.",
        [DOCTOR_NO_SOCKET] =
                "In a container, mount the socket's directory:\n"
                "  docker run -v /run/gpuipcd:/run/gpuipcd:ro ...\n"
                START_THE_DAEMON "\n"
                "Where the socket is elsewhere, say so:\n"
                "  export GPUIPC_SOCKET=/there/gpuipcd.sock",
        [DOCTOR_SOCKET_STALE] =
                "Start the container anew, and mount the directory, not the socket: a mounted file stays what it was when the "
                "daemon makes its socket again.\n"
                "  docker run -v /run/gpuipcd:/run/gpuipcd:ro ...\n"
                "Where it was the directory, and that was removed and made again, the same container will do:\n"
                "  docker restart CONTAINER",
        [DOCTOR_NOBODY_LISTENS] =
                START_THE_DAEMON "\n"
                "Its log says why it ended:\n"
                "  journalctl -u gpuipcd",
        [DOCTOR_SOCKET_DENIED] =
                "Use everyone's socket (directory 0755, socket 0666), not the administrators':\n"
                "  unset GPUIPC_SOCKET\n"
                "  docker run -v /run/gpuipcd:/run/gpuipcd:ro ...\n"
                "Where that one is for a group, give the container the group:\n"
                "  docker run --group-add GROUP ...\n"
                "An administrator runs as root or belongs to gpuipc-admin:\n"
                "  usermod --append --groups gpuipc-admin USER",
        [DOCTOR_NOT_A_SOCKET] =
                "Docker makes an empty directory where what was to be mounted did not exist. Remove that on the host, start the "
                "daemon, then the container anew with the socket's directory:\n"
                "  rmdir /run/gpuipcd/gpuipcd.sock\n"
                "  systemctl start gpuipcd\n"
                "  docker run -v /run/gpuipcd:/run/gpuipcd:ro ...",
        [DOCTOR_DAEMON_SILENT] =
                "The daemon is stopped, stuck or overrun. On the host:\n"
                "  systemctl status gpuipcd\n"
                "  journalctl -u gpuipcd",
        [DOCTOR_NOT_THE_DAEMON] =
                "Is the path right? gpuipcd's own is /run/gpuipcd/gpuipcd.sock:\n"
                "  unset GPUIPC_SOCKET",
        [DOCTOR_SOCKET_UNREACHABLE] =
                "The system's words say why. A socket's path has at most 107 bytes.",
        [DOCTOR_SOCKET_FILE_MOUNT] =
                "It works until the daemon is restarted. Mount the directory instead:\n"
                "  docker run -v /run/gpuipcd:/run/gpuipcd:ro ...",
        [DOCTOR_NOT_ADMITTED] =
                "On the host, add this user to the section [Access] of /etc/gpuipcd/gpuipcd.conf:\n"
                "  AllowUsers=UID\n"
                "and have the daemon read it, as a service or by hand:\n"
                "  systemctl reload gpuipcd\n"
                "  pkill -HUP -x gpuipcd\n"
                "Or run as a user or with a group that is admitted there (AllowUsers=, AllowGroups=, AllowUidRanges=):\n"
                "  docker run --user ADMITTED ...\n"
                "  docker run --group-add GROUP ...",
        [DOCTOR_OVERFLOW_UID] =
                "Map this user in the user namespace, or run as one who is mapped:\n"
                "  unshare --user --map-root-user ...\n"
                "  cat /proc/self/uid_map",
        [DOCTOR_TURNED_AWAY] =
                "Let some clients go, or have the administrator raise the limit (ClientsMax=, ClientsPerUser= in gpuipcd.conf):\n"
                "  gpuipcctl list",
        [DOCTOR_OTHER_UID] =
                "Nothing, unless a buffer is to be shared with a user outside: its mode counts by the outer number.",
        [DOCTOR_IDENTITY_UNKNOWN] =
                "See what else is found; the daemon answers, and would not lend a byte.",
        [DOCTOR_CONTAINER_UNKNOWN] =
                "With Isolation=container the daemon reads /proc/PID/cgroup of whoever comes. Run it on the host, or its container "
                "with the host's numbers:\n"
                "  docker run --pid=host ... gpuipcd\n"
                "Where its /proc is mounted with hidepid=, mount that for a group that may look, give the daemon this group "
                "(SupplementaryGroups of systemd.exec(5)), and start it anew:\n"
                "  mount -o remount,gid=NUMBER /proc\n"
                "  systemctl edit gpuipcd\n"
                "  systemctl restart gpuipcd",
        [DOCTOR_SHM_PRIVATE] =
                "Nothing for gpuipc, whose handles do not need it. Programs that share CUDA events by classic handles get error 205 "
                "(MapBufferObjectFailed) unless they have one /dev/shm and one user. All on the host's:\n"
                "  docker run --ipc=host ...\n"
                "Or all on the first one's, which still is not the daemon's:\n"
                "  docker run --ipc=shareable --name FIRST ...\n"
                "  docker run --ipc=container:FIRST ...",
        [DOCTOR_SHM_UNKNOWN] =
                "Use a daemon of this command's version, which tells.",
        [DOCTOR_SHM_SMALL] =
                "gpuipc does not need it; PyTorch's data loaders and NCCL do, and end with a bus error when it is full. Give it "
                "more:\n"
                "  docker run --shm-size=8g ...",
        [DOCTOR_SHM_UNUSABLE] =
                "Mount it, or start the container with one:\n"
                "  mount -t tmpfs -o mode=1777 shm /dev/shm\n"
                "  docker run --shm-size=1g ...",
        [DOCTOR_FEW_DESCRIPTORS] =
                "Each open buffer takes a descriptor. Raise the limit:\n"
                "  ulimit -n 65536\n"
                "  docker run --ulimit nofile=65536 ...",
        [DOCTOR_LITTLE_MEMLOCK] =
                "CUDA's pinned memory does not count; RDMA does (NCCL over InfiniBand, GPUDirect). If that is used:\n"
                "  docker run --ulimit memlock=-1 ...",
        [DOCTOR_ADDRESS_SPACE] =
                "CUDA reserves far more addresses than it uses memory. Take the limit away:\n"
                "  ulimit -v unlimited",
        [DOCTOR_DAEMON_NO_GPU] =
                "The daemon found no driver when it started, or was told --backend host. On the host, see its log, then start it "
                "again:\n"
                "  journalctl -u gpuipcd\n"
                "  systemctl restart gpuipcd",
        [DOCTOR_DEVICE_DEGRADED] =
                "Use another device meanwhile. On the host:\n"
                "  journalctl -u gpuipcd\n"
                "  dmesg | grep -i -e nvrm -e xid",
        [DOCTOR_NOT_ZEROED] =
                "Write before you read. An administrator who minds removes Wipe=never from gpuipcd.conf.",
        [DOCTOR_OTHER_VERSION] =
                "Nothing, as long as all works: either side goes without what the other does not know.",
        [DOCTOR_TRIAL_REFUSED] =
                "The daemon's words say why. See what is in use, and the limits:\n"
                "  gpuipcctl list --buffers\n"
                "  gpuipcctl status",
        [DOCTOR_TRIAL_MAP] =
                "The library's words say why.",
        [DOCTOR_TRIAL_BYTES] =
                "This must not be: do not use the device. See what its kernel module says, and report it:\n"
                "  dmesg | grep -i -e nvrm -e xid",
        [DOCTOR_TRIAL_NOT_ZERO] =
                "This must not be where the daemon promises it; report it. Write before you read.",
        [DOCTOR_TRIAL_PEER] =
                "Let this process see the GPU that holds the memory (CUDA_VISIBLE_DEVICES, --gpus).",
        [DOCTOR_TRIAL_RELEASE] =
                "See the daemon's log:\n"
                "  journalctl -u gpuipcd",
        [DOCTOR_TRIAL_SKIPPED] =
                "Cure what was found before, then run doctor again.",
        [DOCTOR_CHANNEL_CORRUPT] =
                "Every member of a channel can write to its control page, and one of them wrote what none does that follows the protocol: "
                "a fault in a program that overruns memory, or malice. Find out who shares it, then make a new channel, with a mode that "
                "lets in only those you trust:\n"
                "  gpuipcctl list",
        [DOCTOR_CHANNEL_LEFT] =
                "The connection to the daemon ended without being taken up again, or somebody ended the lease (gpuipcctl kick). Free the "
                "channel object and attach anew.",
};
/* clang-format on */

const char *advice(enum doctor_code code) {
        return (size_t)code < ELEMENTSOF(texts) ? texts[code] : NULL;
}

static bool in_word(char c) {
        return isalnum((unsigned char)c) || c == '_';
}

void advice_fill(enum doctor_code code, const char *word, const char *value, char ret[ADVICE_SIZE]) {
        const char *text = advice(code);
        size_t n = strlen(word), at = 0;
        char before = ' ';

        for (; text && *text && at < ADVICE_SIZE - 1; before = text[-1]) {
                if (!in_word(before) && strncmp(text, word, n) == 0 && !in_word(text[n])) {
                        (void)snprintf(ret + at, ADVICE_SIZE - at, "%s", value);
                        at += strlen(ret + at);
                        text += n;
                } else {
                        ret[at++] = *text++;
                }
        }
        ret[at] = 0;
}

bool advice_find(const char *id, enum doctor_code *ret) {
        for (int code = 0; code < N_DOCTOR_CODES; code++)
                if (strcasecmp(doctor_code_id((enum doctor_code)code), id) == 0) {
                        *ret = (enum doctor_code)code;
                        return true;
                }
        return false;
}
