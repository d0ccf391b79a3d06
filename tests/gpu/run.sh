#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the GPU tier on a machine with a GPU, from build/gpu/ as `make gpu-bundle` made it, as root:
#
#     tests/gpu/run.sh [PART] [STEP...]
#     tests/gpu/run.sh all                         the parts in turn, about 17 minutes
#     tests/gpu/run.sh --dry [PART] [STEP...]      on the fakes, as far as they go; also: --dry all. GPUIPC_DRY_GPUS=2: on two
#
# The parts, all of one GPU but the last: one (default: the daemon, libgpuipc, gpuipcctl), python (the package with PyTorch), pipeline
# (preprocessing and training), two (of which `all` is without where there is one GPU). Writes RESULTS.md (RESULTS-PART.md of the others,
# RESULTS-STEP.md where steps are named), a log and the daemons' words to $OUT (default: build/gpu/out). A part ends in under nine minutes,
# with 0 when every figure met its target; `all` with 0 when those of every part did. The steps channel-pace-minute and peer-pipeline run
# only when they are named.
set -eu
cd "$(dirname "$0")/../.."
dry=
part=one
if [ "${1-}" = --dry ]; then
        dry=dry
        shift
fi
[ -x build/gpu/gpuipcd ] || {
        echo 'tests/gpu/run.sh: build/gpu/ is not there: make gpu-bundle, where there is a compiler' >&2
        exit 2
}
if [ "${1-}" = all ]; then
        [ $# -eq 1 ] || {
                echo "tests/gpu/run.sh: all: it takes no steps, and $2 was given: name the part that has it" >&2
                exit 2
        }
        n_gpus=$(python3 -c 'import ctypes as c
n, nvml = c.c_uint(), c.CDLL("libnvidia-ml.so.1")
print(n.value if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetCount_v2(c.byref(n)) == 0 else 0)' 2>/dev/null) || n_gpus=0
        parts='one python pipeline'
        [ -z "$dry" ] && [ "$n_gpus" -lt 2 ] || parts="$parts two"
        failed=
        for part in $parts; do
                printf '\n==== %s\n' "$part"
                sh tests/gpu/run.sh ${dry:+--dry} "$part" || failed="$failed $part"
        done
        printf '\nOf the parts %s:%s failed.\n' "$parts" "${failed:- none}"
        [ -z "$failed" ]
        exit
fi
case ${1-} in
one | python | pipeline | two)
        part=$1
        shift
        ;;
esac
OUT=${OUT:-build/gpu/out}
mkdir -p "$OUT"
# Other users must be able to run what is in it, wherever this tree lies.
bundle=$(mktemp -d /tmp/gpuipc-tier.XXXXXX)
trap 'rm -rf "$bundle"' EXIT
chmod 755 "$bundle"
cp -R build/gpu/. "$bundle/"
cp -R tests/support tests/gpu "$bundle/"
cp -R tests/python "$bundle/pythontests"
mkdir "$bundle/python"
cp -R client/python/gpuipc "$bundle/python/"
cp -R client/python/examples client/python/MIGRATING.md "$bundle/python/"
chmod -R a+rX "$bundle"

libraries=
if [ "$dry" ]; then
        libraries=$bundle/fake
        echo 'RegistryDwords: ""' > "$bundle/params"
        n_gpus=${GPUIPC_DRY_GPUS:-1}
        [ "$part" != two ] || n_gpus=2
        export GPUIPC_FAKE_CUDA="state $bundle/state; devices $n_gpus"
        export GPUIPC_NVIDIA_PARAMS="$bundle/params"
        export GPUIPC_TEST_BACKEND="${GPUIPC_TEST_BACKEND:-fake-fd}"
else
        export GPUIPC_TEST_BACKEND=cuda-fd
        # The machine's own CUDA runtime, if the loader finds it.
        ldconfig -p | grep -q 'libcudart\.so\.13' || libraries=$bundle/cuda
fi
export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+${libraries:+:}$LD_LIBRARY_PATH}"
[ -n "$LD_LIBRARY_PATH" ] || unset LD_LIBRARY_PATH
export OUT GPUIPC_BUILD="$bundle" TMPDIR="$bundle" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 LC_ALL=C.UTF-8
export PYTHONPATH="$bundle/support:$bundle/python" GPUIPC_LIBRARY="$bundle/libgpuipc.so.0" CUDA_CACHE_DISABLE=1 HOME="$bundle"
unset GPUIPC_SOCKET CUDA_VISIBLE_DEVICES
status=0
timeout --kill-after=5 540 python3 "$bundle/gpu/tier.py" "$part" "$dry" "$@" || status=$?
exit "$status"
