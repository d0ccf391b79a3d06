# SPDX-License-Identifier: Apache-2.0
"""Runs a program in namespaces of its own, as a container would: sandbox.py OPTION... -- PROGRAM WORD...

Root only. The program ends with this process. Standard library only."""

import argparse
import ctypes
import os
import signal
import sys
import threading

NEW = {"mount": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}
MS_REC, MS_PRIVATE, MS_BIND, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x4000, 1 << 18, 0x1000, 2, 4, 8
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
libc = ctypes.CDLL(None, use_errno=True)


def checked(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)


def write(path, text):
    """Loads no module, which another user may not be able to."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def mount(source, target, kind, flags, options=""):
    checked(libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()), target)


def unshare(*names):
    checked(libc.unshare(sum(NEW[name] for name in names)), f"unshare {names}")


def become(uid):
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def enter_user_namespace(uid):
    """Root inside, that uid outside, as a rootless container."""
    become(uid)
    unshare("user")
    for path, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1")):
        write(f"/proc/self/{path}", text)


def hide(path):
    if os.path.isdir(path):
        mount("none", path, "tmpfs", 0, "mode=755")
    else:
        mount("/dev/null", path, "", MS_BIND)


def make_bare_dev():
    mount("none", "/dev", "tmpfs", MS_NOSUID, "mode=755")
    for name, numbers in DEVICES.items():
        os.mknod(f"/dev/{name}", 0o20666, os.makedev(*numbers))
        os.chmod(f"/dev/{name}", 0o666)
    os.mkdir("/dev/shm")
    mount("none", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")


def arrange_mounts(options):
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    if options.pid and not options.no_proc:
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if options.bare_dev:
        make_bare_dev()
    elif options.shm == "own":
        mount("none", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m")
    for path in options.hide:
        hide(path)


def use_up_numbers(last):
    """The next process gets the number after this one."""
    try:
        write("/proc/sys/kernel/ns_last_pid", str(last))
        return
    except OSError:
        pass
    seen = [0]
    while seen[0] < last:  # threads have numbers out of the same row
        thread = threading.Thread(target=lambda: seen.__setitem__(0, threading.get_native_id()))
        thread.start()
        thread.join()


def execute(options):
    if options.uid and not options.user:
        become(options.uid)
    if options.no_new_privileges:
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.execvp(options.program[0], options.program)


def be_first(options):
    """The first process of the pid namespace: it starts the program and is there until that ends."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    arrange_mounts(options)
    if options.pid_number:
        use_up_numbers(options.pid_number - 1)
    pid = os.fork()
    if pid == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        execute(options)
    if options.pid_number and pid != options.pid_number:
        sys.exit(f"sandbox: the program got pid {pid}, not {options.pid_number}")
    os.close(0)
    os.close(1)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)


def main():
    parser = argparse.ArgumentParser()
    for name in ("pid", "mount", "ipc", "net", "uts", "user"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--shm", choices=("own", "shared"), default="shared")
    parser.add_argument("--uid", type=int, default=0)
    parser.add_argument("--pid-number", type=int, default=0)
    parser.add_argument("--hide", action="append", default=[])
    parser.add_argument("--bare-dev", action="store_true")
    parser.add_argument("--no-proc", action="store_true")
    parser.add_argument("--no-new-privileges", action="store_true")
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    if options.user:
        enter_user_namespace(options.uid or 1001)
    names = [name for name in ("mount", "uts", "ipc", "net", "pid") if getattr(options, name)]
    if names:
        unshare(*names)
    if not options.pid:
        if options.mount:
            arrange_mounts(options)
        execute(options)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    pid = os.fork()
    if pid == 0:
        be_first(options)
    os.close(0)
    os.close(1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)


if __name__ == "__main__":
    main()
