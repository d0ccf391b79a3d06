#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh [BUILD]: real files pass between processes through a private gpuipcd, each step with its evidence. Ends
# non-zero on any difference. DEMO_CORRUPT=1 changes one byte of what was put, which must be found.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$PWD/${1:-build}
ctl=$build/gpuipcctl
verify=$build/examples/demo_verify

work=$(mktemp -d /tmp/gpuipc-demo.XXXXXX)
daemon='' producers=() consumers=()
# shellcheck disable=SC2317 # called by trap
clean() {
        local status=$?
        trap - EXIT
        for pid in "${consumers[@]}" "${producers[@]}" $daemon; do
                kill -KILL "$pid" 2>/dev/null || :
        done
        { wait; } 2>/dev/null
        if [ $status -ne 0 ]; then
                echo "demo: FAILED; the daemon logged last:" >&2
                tail -n 15 "$work/daemon.log" >&2 || :
        fi
        rm -rf "$work"
        exit $status
}
trap clean EXIT
trap 'exit 1' INT TERM

fail() { echo "demo: $*" >&2; exit 1; }
step() { steps=$((${steps:-0} + 1)); printf '\n=== %d. %s\n' "$steps" "$*"; }
show() { printf '    $ %s\n' "$*"; }
indent() { sed 's/^/    /'; }
# until_true WHAT COMMAND...: asks again for ten seconds at most.
until_true() {
        local what=$1 end=$((SECONDS + 10))
        shift
        until "$@"; do
                [ $SECONDS -lt $end ] || fail "not within 10 s: $what"
                sleep 0.01
        done
}
# figure EXPRESSION: of GetStatus, as Python sees it in s.
figure() {
        "$ctl" status --json | python3 -c "import json,sys; s=json.load(sys.stdin); print($1)"
}
n_leases() {
        "$ctl" list --json | python3 -c '
import json, sys
text = sys.stdin.read()
decoder, at, n = json.JSONDecoder(), 0, 0
while at < len(text.rstrip()):
    value, at = decoder.raw_decode(text, at)
    n += len(value) if isinstance(value, list) else len(value["leases"]) if "leases" in value else 1
    while at < len(text) and text[at].isspace():
        at += 1
print(n)'
}
leases_are() { [ "$(n_leases)" -eq "$1" ]; }
count() { grep -c "$@" || :; }

# ---------------------------------------------------------------------------------------------------------------
step 'Real files of this machine'
large=
for candidate in "$(gcc -print-prog-name=cc1)" "$(gcc -print-prog-name=cc1plus)" "$(gcc -print-prog-name=lto1)" \
        "$(find -L /usr/lib /usr/bin /usr/libexec -xdev -type f -size +20480k -print -quit 2>/dev/null || :)"; do
        if [ -r "$candidate" ] && [ "$(stat -L -c %s "$candidate")" -ge 20000000 ]; then
                large=$candidate
                break
        fi
done
[ -n "$large" ] || fail 'no file of 20 MB found in /usr'
odd=
for candidate in /usr/share/common-licenses/GPL-3 /etc/services /etc/os-release proto/*.varlink include/*.h; do
        if [ -r "$candidate" ] && [ $(($(stat -L -c %s "$candidate") % 2)) -eq 1 ]; then
                odd=$candidate
                break
        fi
done
names=(demo/large demo/small) files=("$large" LICENSE)
[ -z "$odd" ] || { names+=(demo/odd); files+=("$odd"); }
sums=() bytes=0
for file in "${files[@]}"; do
        sum=$(sha256sum "$file")
        sums+=("${sum%% *}")
        size=$(stat -L -c %s "$file")
        bytes=$((bytes + size))
        printf '    %10d bytes  sha256 %.16s...  %s\n' "$size" "$sum" "$file"
done
n=${#files[@]}
wanted=()
for i in "${!names[@]}"; do
        wanted+=("${names[$i]}=${sums[$i]}")
done

# ---------------------------------------------------------------------------------------------------------------
step 'A private daemon'
export GPUIPC_SOCKET=$work/gpuipcd.sock
show gpuipcd --socket "$GPUIPC_SOCKET" --backend host
"$build/gpuipcd" --socket "$GPUIPC_SOCKET" --admin-socket '' --backend host >"$work/daemon.log" 2>&1 &
daemon=$!
answers() { kill -0 "$daemon" 2>/dev/null || fail 'the daemon ended'; [ -S "$GPUIPC_SOCKET" ]; }
until_true 'the socket' answers
"$ctl" status | indent
# Its descriptors, once the first client is really gone.
n_fds() { find "/proc/$daemon/fd" -mindepth 1 | wc -l; }
settled() { idle_fds=$(n_fds); sleep 0.05; [ "$(n_fds)" -eq "$idle_fds" ]; }
until_true 'a steady daemon' settled

# ---------------------------------------------------------------------------------------------------------------
step 'The producer puts them'
for i in "${!files[@]}"; do
        show gpuipcctl put "${names[$i]}" "${files[$i]}"
        "$ctl" put "${names[$i]}" "${files[$i]}" >"$work/put.$i" 2>&1 &
        producers+=($!)
done
for i in "${!files[@]}"; do
        until_true "${names[$i]} put" grep -qs "${names[$i]}" "$work/put.$i"
        indent <"$work/put.$i"
done

if [ "${DEMO_CORRUPT:-0}" != 0 ]; then
        step 'DEMO_CORRUPT: one byte of the largest is changed'
        # shellcheck disable=SC2016 # a program, not a string of the shell
        "$ctl" hold --rw demo/large -- python3 -c '
import os
offset = int(os.environ["GPUIPC_OFFSET"]) + int(os.environ["GPUIPC_SIZE"]) // 2
old = os.pread(3, 1, offset)[0]
os.pwrite(3, bytes([old ^ 1]), offset)
print(f"    byte {offset}: {old:#04x} is now {old ^ 1:#04x}")'
fi

# ---------------------------------------------------------------------------------------------------------------
step 'Two consumers map them and check SHA-256 over the mapping, one in namespaces of its own'
start_consumer() { # NUMBER COMMAND...
        local number=$1
        shift
        mkfifo "$work/say.$number"
        "$@" "$verify" "${wanted[@]}" <"$work/say.$number" >"$work/consumer.$number" 2>&1 &
        consumers+=($!)
}
isolate=(unshare --mount --pid --fork --ipc --net --uts --mount-proc)
[ "$(id -u)" -eq 0 ] || isolate+=(--map-root-user)
start_consumer 1 env
exec 7>"$work/say.1"
start_consumer 2 "${isolate[@]}"
exec 8>"$work/say.2"
# heard NUMBER WORD: consumer NUMBER printed a line for each file.
heard() {
        kill -0 "${consumers[$1 - 1]}" 2>/dev/null || { cat "$work/consumer.$1" >&2; fail "consumer $1 ended"; }
        [ "$(count "^$2 " <"$work/consumer.$1")" -eq "$n" ]
}
check() { # WORD: both said so, and said the right sums
        for number in 1 2; do
                until_true "consumer $number: $1" heard $number "$1"
                echo "  consumer $number:"
                grep "^$1 " "$work/consumer.$number" | indent
                for i in "${!names[@]}"; do
                        grep -qx "$1 ${names[$i]} ${sums[$i]}" "$work/consumer.$number" ||
                                fail "consumer $number saw other bytes in ${names[$i]} than ${files[$i]} has"
                done
        done
}
grep_mapped() { grep '^mapped' "$work/consumer.$1" | indent; }
check first
grep_mapped 1
grep_mapped 2

step 'It is one memory, not copies: the same memfd inode is mapped by each'
# The isolated one is a child of unshare, since it is process 1 of its own pid namespace.
inner=$(pgrep -P "${consumers[1]}")
inodes() { awk '/memfd:/ { print $5 }' "/proc/$1/maps" | sort -u; }
for pid in "${consumers[0]}" "$inner"; do
        printf '    process %-7d %s\n' "$pid" "$(inodes "$pid" | tr '\n' ' ')"
done
[ "$(inodes "${consumers[0]}" | wc -l)" -eq "$n" ] || fail "not $n inodes are mapped"
[ "$(inodes "${consumers[0]}")" = "$(inodes "$inner")" ] || fail 'the consumers map different memory'
for namespace in mnt pid ipc net uts; do
        [ "$(readlink "/proc/$inner/ns/$namespace")" != "$(readlink "/proc/self/ns/$namespace")" ] ||
                fail "consumer 2 shares our $namespace namespace"
done
echo "    and consumer 2 has mnt, pid, ipc, net and uts namespaces of its own"

# ---------------------------------------------------------------------------------------------------------------
step 'Who holds what'
show gpuipcctl list
"$ctl" list | indent
show gpuipcctl list --buffers
"$ctl" list --buffers | indent
leases_are $((3 * n)) || fail "$((3 * n)) leases expected, $(n_leases) found"
[ "$(figure "s['devices'][0]['brokered_bytes']")" -ge "$bytes" ] || fail 'the daemon answers for fewer bytes than were put'

step 'The producer is killed with SIGKILL; the consumers still read'
for pid in "${producers[@]}"; do
        show "kill -KILL $pid"
        kill -KILL "$pid"
        wait "$pid" 2>/dev/null || [ $? -eq 137 ] || fail "$pid did not die of SIGKILL"
done
producers=()
until_true "the producer's leases gone" leases_are $((2 * n))
"$ctl" list | indent
echo again >&7
echo again >&8
check again

# ---------------------------------------------------------------------------------------------------------------
step 'The consumers leave; the list is empty and the bytes are back'
exec 7>&- 8>&-
for pid in "${consumers[@]}"; do
        wait "$pid" || fail "a consumer ended with $?"
done
consumers=()
until_true 'no lease' leases_are 0
show gpuipcctl list
"$ctl" list | indent
nothing_left() {
        [ "$(figure "s['leases'], s['buffers'], s['devices'][0]['brokered_bytes'], s['devices'][0]['draining_bytes']")" = \
                '0 0 0 0' ] && [ "$(n_fds)" -eq "$idle_fds" ]
}
until_true 'nothing left' nothing_left
show gpuipcctl status
"$ctl" status | indent
echo "    leases 0, buffers 0, bytes 0, and the daemon has its $idle_fds descriptors of before"
kill -TERM "$daemon"
wait "$daemon" || fail "the daemon ended with $?"
daemon=
[ ! -e "$GPUIPC_SOCKET" ] || fail 'the daemon left its socket behind'

printf '\ndemo: %d files, %d bytes, two consumers, every sum right, nothing left (%d s)\n' "$n" "$bytes" "$SECONDS"
