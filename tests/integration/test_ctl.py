# SPDX-License-Identifier: Apache-2.0
"""gpuipcctl as one runs it, against a real daemon: what it prints, what it exits with, and that bytes come out as they
went in. Runs on memory that has descriptors. deadline: 180 s"""

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from actors import SLOWER  # noqa: E402
from books import BooksTest, end_process  # noqa: E402
from daemon import GPUIPCCTL, wait_for  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

DONE, REFUSED, USAGE, UNREACHABLE = 0, 1, 2, 3
CONTENTS = bytes(range(256)) * 4000 + b"and an odd end"


class CtlTest(BooksTest):
    def setUp(self):
        super().setUp()
        self.path = f"{self.daemon.directory}/file"
        with open(self.path, "wb") as file:
            file.write(CONTENTS)

    def command(self, *arguments):
        return [GPUIPCCTL, arguments[0], "--socket", self.daemon.socket, *arguments[1:]]

    def run_ctl(self, *arguments, status=DONE, stdin=subprocess.DEVNULL, data=None):
        """(stdout, stderr) as bytes."""
        stdin = {"input": data} if data is not None else {"stdin": stdin}
        done = subprocess.run(self.command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=WAIT_S,
                              check=False, **stdin)
        self.assertEqual(done.returncode, status, (arguments, done.stdout[-500:], done.stderr))
        if status:
            self.assertTrue(done.stderr.startswith(b"gpuipcctl: "), done.stderr)
        else:
            self.assertEqual(done.stderr, b"", arguments)
        return done.stdout, done.stderr

    def json(self, *arguments):
        return json.loads(self.run_ctl(*arguments, "--json")[0])

    def start(self, *arguments, **options):
        """A gpuipcctl that holds, and the words of the line it announced."""
        process = self.popen(*arguments, **options)
        return process, process.stdout.readline().decode().split()

    def popen(self, *arguments, **options):
        return self.owned_process(subprocess.Popen(self.command(*arguments), stdout=subprocess.PIPE, **options))

    def terminate(self, process, number=signal.SIGTERM):
        """Ends it by a signal; its lease is over when it has ended."""
        process.send_signal(number)
        self.assertEqual(process.wait(timeout=WAIT_S), DONE)
        end_process(process)

    def test_put_and_get(self):
        holder, words = self.start("put", "models/one", self.path)
        self.assertEqual(words[1:], ["models/one", str(len(CONTENTS))])
        self.assertEqual(self.run_ctl("get", "models/one")[0], CONTENTS)
        self.assertEqual(self.run_ctl("get", "models/one", "-")[0], CONTENTS)
        self.assertEqual(self.run_ctl("get", "--id", words[0])[0], CONTENTS)
        copy = f"{self.daemon.directory}/copy"
        self.assertEqual(self.run_ctl("get", "models/one", copy)[0], b"")
        with open(copy, "rb") as file:
            self.assertEqual(file.read(), CONTENTS)
        self.terminate(holder)
        self.run_ctl("get", "models/one", status=REFUSED)

    def test_put_of_a_large_file_that_is_found_here(self):
        path = os.path.realpath(sys.executable)
        holder, words = self.start("put", "--seal", "python", path)
        self.assertEqual(int(words[2]), os.path.getsize(path))
        with open(path, "rb") as file:
            self.assertEqual(hashlib.sha256(self.run_ctl("get", "--sealed", "python")[0]).digest(),
                             hashlib.sha256(file.read()).digest())
        self.run_ctl("hold", "--rw", "python", "--", "true", status=REFUSED)
        self.terminate(holder, signal.SIGINT)

    def test_put_from_a_pipe(self):
        with open(self.path, "rb") as file, subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE) as cat:
            holder, _ = self.start("put", "piped", "-", stdin=cat.stdout)
        self.assertEqual(self.run_ctl("get", "piped")[0], CONTENTS)
        self.terminate(holder)
        # With its size known it goes straight into the buffer; too little of it is no success.
        self.run_ctl("put", "--size", str(len(CONTENTS)), "--keep", "1m", "--detach", "sized", "-", data=CONTENTS)
        self.assertEqual(self.run_ctl("get", "sized")[0], CONTENTS)
        self.run_ctl("free", "sized")
        self.run_ctl("put", "--size", "100", "--keep", "1m", "--detach", "short", "-", data=b"too little", status=REFUSED)
        self.run_ctl("get", "short", status=REFUSED)

    def test_put_detached_stays_as_long_as_it_is_kept(self):
        self.run_ctl("put", "--keep", "1h", "--detach", "left", self.path)
        self.assertEqual([buffer["state"] for buffer in self.json("list", "--buffers")["buffers"]], ["kept"])
        self.assertEqual(self.run_ctl("get", "left")[0], CONTENTS)
        self.run_ctl("free", "left")
        self.run_ctl("free", "left", status=REFUSED)

    def test_put_that_is_killed_leaves_its_readers_theirs(self):
        holder, _ = self.start("put", "orphan", self.path)
        reader, words = self.start("hold", "orphan")
        self.assertEqual(words[1:], ["orphan", str(len(CONTENTS))])
        holder.kill()
        holder.wait()
        wait_for(lambda: len(self.json("list")["leases"]) == 1, "the reader's lease alone")
        self.assertEqual(self.run_ctl("get", "orphan")[0], CONTENTS)
        self.terminate(reader)

    def test_get_waits_for_the_name(self):
        getter = self.popen("get", "--wait", "1m", "late")
        wait_for(lambda: self.daemon.status()["sessions"] > 1, "the getter there")
        holder, _ = self.start("put", "late", self.path)
        # The contents may still be on their way: only the length is promised without --sealed.
        self.assertEqual(len(getter.communicate(timeout=WAIT_S)[0]), len(CONTENTS))
        self.assertEqual(getter.returncode, DONE)
        self.run_ctl("get", "--wait", "20ms", "never", status=REFUSED)
        self.terminate(holder)

    @backend.host_only
    def test_hold_for_a_command(self):
        holder, words = self.start("put", "held", self.path)
        script = ('test "$GPUIPC_FD" = 3 && test "$GPUIPC_NAME" = held && test "$GPUIPC_OFFSET" = 0 && '
                  'head -c "$GPUIPC_SIZE" <&3; echo "$GPUIPC_BUFFER" >&2; exit 7')
        done = subprocess.run(self.command("hold", "held", "--", "sh", "-c", script), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=WAIT_S, check=False)
        self.assertEqual((done.returncode, done.stderr.decode().strip()), (7, words[0]))
        self.assertEqual(done.stdout, CONTENTS)
        done = subprocess.run(self.command("hold", "held", "--", "/does/not/exist"), stderr=subprocess.PIPE,
                              timeout=WAIT_S, check=False)
        self.assertEqual(done.returncode, 127)
        self.terminate(holder)

    def test_alloc(self):
        holder, words = self.start("alloc", "--name", "empty", "--mode", "0640", "--label", "mine", "--meta", '{"n":[1]}', "64K")
        self.assertEqual(words[1:], ["empty", "65536"])
        buffer, = self.json("list", "--buffers")["buffers"]
        self.assertEqual((buffer["mode"], buffer["meta"], buffer["size"]), ("0640", {"n": [1]}, 65536))
        lease, = self.json("list", "--name", "empty")["leases"]
        self.assertEqual((lease["label"], lease["pid"]), ("mine", holder.pid))
        self.assertEqual(self.run_ctl("get", "empty")[0], bytes(65536))
        self.terminate(holder)

    def test_kick(self):
        holder, _ = self.start("alloc", "4K", stderr=subprocess.PIPE)
        session, = {lease["session"] for lease in self.json("list")["leases"]}
        self.run_ctl("kick", session)
        # It notices that it no longer holds, and says so.
        self.assertEqual(holder.wait(timeout=WAIT_S), REFUSED)
        self.assertIn(b"gpuipcctl: ", holder.stderr.read())
        self.run_ctl("kick", session, status=REFUSED)

    def test_lists_say_what_the_daemon_says(self):
        holder, _ = self.start("put", "listed", self.path)
        with self.client() as client:
            leases = client.call("List")["leases"]
            buffers = client.call("ListBuffers")["buffers"]
            devices = client.call("GetStatus")["devices"]
        self.assertEqual(self.json("list"), {"leases": leases})
        self.assertEqual(self.json("list", "--buffers"), {"buffers": buffers})
        self.assertEqual(self.json("list", "--name", "other"), {"leases": []})
        brokered = [device["brokered_bytes"] for device in devices]
        self.assertEqual([device["brokered_bytes"] for device in self.json("devices")["devices"]], brokered)
        self.assertEqual(self.json("status")["buffers"], 1)
        for verb in (["list"], ["list", "--buffers"]):
            header, row = self.run_ctl(*verb)[0].decode().splitlines()
            self.assertEqual(len(header.split()) > 8, True)
            self.assertIn(" listed ", row)
        self.assertIn(b" 1000 KiB ", self.run_ctl("list")[0])
        self.assertIn(str(len(CONTENTS)).encode(), self.run_ctl("list", "--bytes")[0])
        self.assertIn(f"{devices[0]['uuid'][:8]}".encode(), self.run_ctl("devices")[0])
        self.assertIn(b"1 buffers, 1 leases", self.run_ctl("status")[0])
        self.assertIn(b'gpuipc_brokered_bytes{device="', self.run_ctl("metrics")[0])
        self.terminate(holder)

    def test_watch(self):
        watch = self.popen("watch", "--since", "0", "--json", stderr=subprocess.PIPE)
        with self.client() as client:
            client.call("Release", {"lease": client.call("Allocate", {"size": 1})["lease"]})
        kinds = [json.loads(watch.stdout.readline())["kind"] for _ in range(4)]
        self.assertEqual(kinds, ["created", "opened", "released", "freed"])
        # The end of the daemon is not yet its own; test_restart_library.py has that.
        self.daemon.stop()
        self.assertIsNone(watch.poll())
        watch.kill()
        watch.communicate(timeout=WAIT_S)
        self.daemon = self.make_daemon()

    def test_top_once(self):
        holder, _ = self.start("alloc", "--name", "seen", "4K")
        self.assertEqual(self.json("top", "--count", "1")["leases"][0]["name"], "seen")
        self.assertIn(b" seen ", self.run_ctl("top", "--count", "1", "--no-color")[0])
        self.terminate(holder)

    def test_top_where_there_is_little_room(self):
        """No line is longer than the terminal is wide, where it would wrap and push the last ones out."""
        holder, _ = self.start("alloc", "--name", "a/rather/long/name/of/a/buffer", "--label", "and a label", "4K")
        for columns in (1, 10, 13, 14, 20, 44, 60, 80):
            for verb in (["top"], ["top", "--buffers"], ["top", "--channels"]):
                with self.subTest(verb, columns=columns):
                    shown = subprocess.run(self.command(*verb, "--count", "1"), stdout=subprocess.PIPE, timeout=WAIT_S, check=True, text=True,
                                           env={**os.environ, "COLUMNS": str(columns)}).stdout
                    self.assertLessEqual(max(map(len, shown.splitlines())), columns, shown)
                    self.assertGreaterEqual(len(shown.splitlines()), 5)
        self.terminate(holder)

    def test_no_descriptor_left(self):
        """Room for the first connection and not for a second one: no outage of the daemon's, that would be waited out."""
        began = time.monotonic()
        done = subprocess.run(self.command("list"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=WAIT_S,
                              check=False, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4)))
        self.assertEqual((done.returncode, done.stdout), (UNREACHABLE, ""), done.stderr)
        self.assertIn("Too many open files", done.stderr)
        self.assertLess(time.monotonic() - began, 10 * SLOWER)

    def test_sizes_that_are_none(self):
        for size in ("0", "1X", "8P", "1e3", "99999999999999999999"):
            for arguments in (["alloc", size], ["put", "--size", size, "x", self.path]):
                with self.subTest(arguments):
                    errors = self.run_ctl(*arguments, status=USAGE)[1].decode()
                    self.assertIn(f'"{size}"', errors)
                    self.assertIn("from 1 to 9007199254740991, or a number with K, M, G, T or P", errors)

    def test_refused(self):
        for arguments in (["get", "nothing"], ["hold", "nothing"], ["free", "nothing"], ["kick", "s9999"],
                          ["put", "bad name", self.path], ["put", "x", "/does/not/exist"], ["alloc", "4096T"]):
            with self.subTest(arguments):
                self.assertEqual(self.run_ctl(*arguments, status=REFUSED)[0], b"")

    def test_usage(self):
        for arguments in (["bogus"], ["get"], ["get", "a", "b", "c"], ["list", "--bogus"], ["alloc", "many"],
                          ["put", "--detach", "x", self.path], ["list", "--json", "--watch"], ["get", "--wait", "soon", "x"]):
            with self.subTest(arguments):
                output, errors = self.run_ctl(*arguments, status=USAGE)
                self.assertEqual(output, b"")
                self.assertIn(b"help", errors)

    def test_unreachable(self):
        for verb in (["list"], ["status", "--json"], ["get", "x"], ["put", "x", self.path], ["watch"], ["metrics"]):
            with self.subTest(verb):
                done = subprocess.run([GPUIPCCTL, *verb, "--socket", f"{self.daemon.directory}/none"], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, timeout=WAIT_S, check=False)
                self.assertEqual((done.returncode, done.stdout), (UNREACHABLE, b""), done.stderr)
                self.assertIn(f"{self.daemon.directory}/none".encode(), done.stderr)

    def test_socket_from_the_environment(self):
        done = subprocess.run([GPUIPCCTL, "version"], stdout=subprocess.PIPE, timeout=WAIT_S, check=False,
                              env={**os.environ, "GPUIPC_SOCKET": self.daemon.socket})
        self.assertEqual(done.returncode, DONE)
        self.assertIn(self.daemon.socket.encode(), done.stdout)

    def test_output_that_nobody_reads(self):
        holder, _ = self.start("put", "piped", self.path)
        getter = self.popen("get", "piped", stderr=subprocess.PIPE)
        getter.stdout.close()
        self.assertEqual(getter.wait(timeout=WAIT_S), REFUSED)
        self.assertIn(b"gpuipcctl: ", getter.stderr.read())
        with open("/dev/full", "wb") as full:
            done = subprocess.run(self.command("list"), stdout=full, stderr=subprocess.PIPE, timeout=WAIT_S, check=False)
        self.assertEqual(done.returncode, REFUSED, done.stderr)
        self.terminate(holder)


if __name__ == "__main__":
    unittest.main()
