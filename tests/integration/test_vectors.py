# SPDX-License-Identifier: Apache-2.0
"""Every message of proto/vectors that a client may send, sent to the real daemon: what comes back is what expect.tsv
says, and the daemon goes on. Each vector is a case of its own. Runs on any memory. deadline: 180 s"""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from actors import in_child  # noqa: E402
from daemon import ROOT, Daemon, open_fds  # noqa: E402
from rawclient import RawClient  # noqa: E402

FOLDER = f"{ROOT}/proto/vectors"
QUIET_S = 0.05


def listed():
    with open(f"{FOLDER}/expect.tsv", encoding="utf-8") as file:
        for line in file:
            if not line.startswith("#"):
                name, kind, _, _, _, daemon = line.rstrip("\n").split("\t")
                yield name, kind, daemon


def short(error):
    return error.rpartition(".")[2]


def hear(client):
    """One thing that comes back: "reply", "close", or an error with its first parameter."""
    message = client.read()
    if message is None:
        return "close"
    if "error" not in message:
        return "reply"
    values = list(message.get("parameters", {}).values())
    return ":".join([short(message["error"])] + [str(value) for value in values[:1]])


def fits(expected, heard):
    return heard == expected or (":" not in expected and heard.partition(":")[0] == expected) or \
        (expected == "error" and heard not in ("reply", "close"))


def exchange(path, data, expected):
    """Sends the message and hears as much as is expected; then whether the connection still serves."""
    heard = []
    with RawClient(path) as client:
        try:
            client.send(data + b"\0")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it closed while the end of a too long message was on its way
        for word in expected:
            if word == "silence":
                heard.append("silence" if not client.readable(QUIET_S) else hear(client))
            else:
                heard.append(hear(client))
        if heard[-1] != "close" and b'"more":true' not in data:
            try:
                client.send_call("org.varlink.service.GetInfo")
                heard.append(hear(client))
            except BrokenPipeError:
                heard.append("close")
    return heard


class Vectors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fds_before = open_fds()
        cls.daemon = Daemon(memory="host" if backend.HOST else "auto")
        cls.addClassCleanup(cls.daemon.kill)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()
        assert len(open_fds()) == len(cls.fds_before), "descriptors are left"

    def try_vector(self, name, daemon):
        with open(f"{FOLDER}/{name}", "rb") as file:
            data = file.read()
        expected = daemon.split(",")
        # Its own process, so that what was allocated ends with it.
        heard = in_child(lambda: exchange(self.daemon.socket, data, expected))
        told = f"{name}: {json.dumps(heard)} for {daemon}"
        self.assertTrue(all(map(fits, expected, heard)), told)
        if len(heard) > len(expected):
            self.assertEqual(heard[-1], "reply", f"the connection should serve on; {told}")
        self.daemon.wait_idle()

    def test_all_are_listed(self):
        names = sorted(name for name in os.listdir(FOLDER) if name.endswith(".json"))
        self.assertEqual(names, sorted(name for name, _, _ in listed()))

    def test_each_call_says_what_the_daemon_does(self):
        words = {"reply", "error", "silence", "close", "InvalidParameter", "MethodNotFound", "InterfaceNotFound",
                 "ExpectedMore", "NoSuchBuffer", "NoSuchLease", "NoSuchSession", "NoSuchDevice", "HandleUnsupported", "TimedOut"}
        for name, kind, daemon in listed():
            with self.subTest(name):
                if kind == "call":
                    self.assertLessEqual({part.partition(":")[0] for part in daemon.split(",")}, words)
                else:
                    self.assertEqual(daemon, "-")


def add_cases():
    for name, kind, daemon in listed():
        if kind != "call":
            continue

        def case(self, name=name, daemon=daemon):
            self.try_vector(name, daemon)

        case.__name__ = f"test_{name.removesuffix('.json')}"
        setattr(Vectors, case.__name__, case)


add_cases()

if __name__ == "__main__":
    unittest.main()
