# SPDX-License-Identifier: Apache-2.0
"""systemd's own client, varlinkctl, against the daemon. Debian 12 has none, so it runs from a tree of Debian 13
(tests/foreign/trixie) into which the socket's directory is bound. deadline: 300 s"""

import json
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import varlink_idl  # noqa: E402
from daemon import ROOT, DaemonTest  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

TREE = f"{ROOT}/build/cache/trixie"
NAME = "io.gpuipc.Broker"
# In a mount namespace of its own: what is bound there is gone with the process.
INSIDE = ('mount --bind "$1" "$2/mnt" && mount --bind "$3" "$2/media" && mount -t proc proc "$2/proc" && '
          'tree=$2 && shift 3 && '
          'exec chroot "$tree" varlinkctl "$@"')


@unittest.skipUnless(os.geteuid() == 0, "needs root, to make a Debian tree and to bind a directory into it")
class VarlinkctlTest(DaemonTest):
    @classmethod
    def setUpClass(cls):
        subprocess.run([f"{ROOT}/tests/foreign/trixie", TREE], check=True)

    def varlinkctl(self, *arguments, status=0):
        """(stdout, stderr)"""
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", INSIDE, "sh", self.daemon.directory, TREE, f"{ROOT}/proto", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=WAIT_S,
            check=False)
        if status == 0:
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        else:
            self.assertNotEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout, done.stderr

    def test_info(self):
        output, _ = self.varlinkctl("info", "/mnt/s", "--json=short")
        info = json.loads(output)
        self.assertEqual(set(info["interfaces"]), {NAME, "org.varlink.service"})
        self.assertTrue(info["vendor"] and info["product"] and info["version"] and info["url"])

    def test_list_interfaces_and_methods(self):
        output, _ = self.varlinkctl("list-interfaces", "/mnt/s")
        self.assertEqual(set(output.split()), {NAME, "org.varlink.service"})
        output, _ = self.varlinkctl("list-methods", "/mnt/s", NAME)
        self.assertIn(f"{NAME}.Allocate", output)

    def test_introspect(self):
        # It parses the description and prints it in its own layout; the meaning must be the file's.
        for interface in (NAME, "org.varlink.service"):
            output, errors = self.varlinkctl("introspect", "/mnt/s", interface)
            self.assertEqual(errors, "")
            with open(f"{ROOT}/proto/{interface}.varlink", encoding="utf-8") as file:
                self.assertEqual(varlink_idl.parse(output), varlink_idl.parse(file.read()))

    def test_validate_idl(self):
        for interface in (NAME, "org.varlink.service"):
            self.varlinkctl("validate-idl", f"/media/{interface}.varlink")

    def test_validate_idl_refuses_a_broken_one(self):
        shutil.copy(f"{ROOT}/proto/{NAME}.varlink", f"{self.daemon.directory}/broken.varlink")
        with open(f"{self.daemon.directory}/broken.varlink", "a", encoding="utf-8") as file:
            file.write("method Broken( -> ()\n")
        self.varlinkctl("validate-idl", "/mnt/broken.varlink", status=1)

    def test_call_get_status(self):
        output, _ = self.varlinkctl("call", "/mnt/s", f"{NAME}.GetStatus", "{}", "--json=short")
        status = json.loads(output)
        self.assertEqual((status["backend"], status["buffers"], status["sessions"]), ("host", 0, 1))
        self.assertEqual([device["uuid"] for device in status["devices"]], ["host"])

    def test_call_with_more(self):
        with self.client() as client:
            leases = [client.call("Allocate", {"size": 4096 * (number + 1), "name": f"some/{number}"})["lease"]
                      for number in range(3)]
            output, _ = self.varlinkctl("call", "--more", "/mnt/s", f"{NAME}.ListBuffers", "{}", "--json=short")
            # One document a reply.
            replies = [json.loads(line) for line in output.splitlines() if line.strip("\x1e ")]
            found = [(b["name"], b["size"]) for reply in replies for b in reply["buffers"]]
            self.assertEqual(found, [("some/0", 4096), ("some/1", 8192), ("some/2", 12288)])
            for lease in leases:
                client.call("Release", {"lease": lease})

    def test_call_that_fails(self):
        _, errors = self.varlinkctl("call", "/mnt/s", f"{NAME}.Open", '{"name":"nowhere"}', status=1)
        self.assertIn(f"{NAME}.NoSuchBuffer", errors)
        _, errors = self.varlinkctl("call", "/mnt/s", f"{NAME}.Allocate", '{"size":-1}', status=1)
        self.assertIn("org.varlink.service.InvalidParameter", errors)


if __name__ == "__main__":
    unittest.main()
