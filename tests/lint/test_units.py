# SPDX-License-Identifier: Apache-2.0
"""Units, packages and the catalog say what the daemon, the library and the documents say."""

import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from sources import ROOT, files, read, without_comments  # noqa: E402

BUILD = os.environ.get("GPUIPC_BUILD", f"{ROOT}/build")
SERVICE = "systemd/gpuipcd.service"
SOCKETS = {"shared": "systemd/gpuipcd.socket", "admin": "systemd/gpuipcd-admin.socket"}
UNITS = (SERVICE, *SOCKETS.values())
SECONDS = {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86400}


def settings(path):
    """{key: [values]} of a unit."""
    found = {}
    for key, value in re.findall(r"^([A-Z]\w*)=(.*)$", read(path), re.M):
        found.setdefault(key, []).append(value)
    return found


def seconds(text):
    return sum(float(number) * SECONDS[unit or "s"] for number, unit in re.findall(r"([\d.]+) ?(ms|s|min|h|d)?\b", text))


def defaults():
    """{option: default} of the daemon's help."""
    text = subprocess.run([f"{BUILD}/gpuipcd", "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(re.findall(r"^  --([a-z-]+)\b.*(?:\n {30,}.*)*?\[(.*)\]$", text, re.M))


class UnitsTest(unittest.TestCase):
    def setUp(self):
        self.service = settings(SERVICE)
        self.defaults = defaults()

    def test_the_store_is_as_large_as_the_daemon_takes_it_for(self):
        if "store-max" not in self.defaults:
            self.skipTest("the daemon keeps nothing in a store")
        self.assertEqual(self.service["FileDescriptorStoreMax"], [self.defaults["store-max"]])

    def test_descriptors_are_enough(self):
        """Two for each buffer and each client, besides the store."""
        wanted = int(self.service["FileDescriptorStoreMax"][0]) + \
            2 * (int(self.defaults["buffers-max"]) + int(self.defaults["clients-max"]))
        self.assertGreater(int(self.service["LimitNOFILE"][0]), wanted)

    def test_a_stop_may_take_as_long_as_the_daemon_drains(self):
        self.assertGreater(seconds(self.service["TimeoutStopSec"][0]), seconds(self.defaults["drain-sec"]))

    def test_it_never_gives_up(self):
        self.assertEqual((self.service["Restart"], self.service["StartLimitIntervalSec"]), (["always"], ["0"]))
        self.assertLess(seconds(self.service["RestartSec"][0]), 0.5)
        for path in SOCKETS.values():
            self.assertEqual(settings(path)["TriggerLimitIntervalSec"], ["0"])

    def test_sockets_are_the_daemon_s(self):
        for option, (name, path) in zip(("socket", "admin-socket"), SOCKETS.items()):
            socket = settings(path)
            self.assertEqual(socket["ListenStream"], [self.defaults[option]])
            self.assertEqual(socket["FileDescriptorName"], [name])
            self.assertEqual(socket["Service"], ["gpuipcd.service"])
            self.assertIn(os.path.basename(path), self.service["Sockets"][0].split())
            self.assertRegex(read("systemd/gpuipcd.tmpfiles"), rf"(?m)^d +{os.path.dirname(self.defaults[option])} +0755 +root +root +-$")
        modes = dict(re.findall(r"^#define (SHARED|ADMIN)_MODE (\d+)$", read("daemon/doors.c"), re.M))
        self.assertEqual({name.upper(): settings(path)["SocketMode"][0] for name, path in SOCKETS.items()}, modes)

    def test_users_are_made(self):
        group = re.search(r'ADMIN_GROUP "([\w-]+)"', read("daemon/doors.c")).group(1)
        self.assertEqual(settings(SOCKETS["admin"])["SocketGroup"], [group])
        made = read("systemd/gpuipcd.sysusers")
        self.assertRegex(made, rf"(?m)^g +{group} ")
        self.assertRegex(made, rf"(?m)^u +{self.service['User'][0]} ")
        spec = read("packaging/rpm/gpuipc.spec")
        self.assertIn(f"groupadd -r {group}\n", spec)
        self.assertIn(f"useradd -r -g {self.service['User'][0]} ", spec)

    def test_each_relaxation_has_its_reason(self):
        """Above it, or above the ones it stands with."""
        for path in ("systemd/50-cuda.conf", SERVICE):
            lines = read(path).splitlines()
            for number, line in enumerate(lines):
                if re.match(r"(Protect|Private|Restrict|Lock|MemoryDeny)\w+=(no|default|all)$|ProcSubset=all$|DeviceAllow=|ExecStartPre=", line):
                    above = number - 1
                    while lines[above] and not lines[above].startswith(("#", "[")):
                        above -= 1
                    self.assertTrue(lines[above].startswith("#"), f"{path}:{number + 1}: {line}: no reason is given")

    def test_verify_is_silent_and_the_score_is_told(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("there is no systemd-analyze")
        copies = f"{os.environ.get('TMPDIR', '/tmp')}/units"
        os.makedirs(copies, exist_ok=True)
        for path in UNITS:
            with open(f"{copies}/{os.path.basename(path)}", "w", encoding="utf-8") as file:
                file.write(read(path).replace("/usr/sbin/gpuipcd", f"{BUILD}/gpuipcd"))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", *(f"{copies}/{os.path.basename(path)}" for path in UNITS)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.stdout, "")
        shown = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=10", "--no-pager",
                                f"{copies}/gpuipcd.service"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(shown.returncode, 0, shown.stdout[-300:])
        score = re.search(r"Overall exposure level for gpuipcd\.service: ([\d.]+)", shown.stdout).group(1)
        for document in ("README.md", "packaging/man/gpuipcd.8"):
            told = re.search(r"systemd-analyze\s+security\W+(?:\S+\s+){0,12}?(\d\.\d)\b", read(document))
            self.assertTrue(told, f"{document} does not tell the score of systemd-analyze security")
            self.assertEqual(told.group(1), score, document)


class CatalogTest(unittest.TestCase):
    def test_each_message_is_explained(self):
        ids = dict(re.findall(r'#define (MESSAGE_\w+) "([0-9a-f]{32})"', "".join(read(path) for path in files(".h", rooms=("daemon",)))))
        self.assertGreaterEqual(len(ids), 8)
        text = read("systemd/gpuipcd.catalog")
        entries = re.split(r"^-- ", text, flags=re.M)[1:]
        explained = [entry.split()[0] for entry in entries]
        self.assertEqual(len(explained), len(set(explained)))
        self.assertEqual(set(explained), set(ids.values()))
        for entry in entries:
            self.assertRegex(entry, r"\A[0-9a-f]{32}\nSubject: .+\nDefined-By: gpuipc\nDocumentation: man:.+\n\n\S")
            for line in entry.splitlines():
                self.assertLessEqual(len(line), 80, line)

    def test_the_page_has_them(self):
        page = read("packaging/man/gpuipcd.8")
        for number in re.findall(r"^-- ([0-9a-f]{32})$", read("systemd/gpuipcd.catalog"), re.M):
            self.assertIn(f".It {number} Ta", page)


class PackagesTest(unittest.TestCase):
    def test_symbols_are_the_library_s(self):
        listed = set(re.findall(r"^ (gpuipc_\w+)@(\w+\.\d+) ", read("packaging/debian/libgpuipc0.symbols"), re.M))
        nodes = set()
        for node, body in re.findall(r"(GPUIPC_[\d.]+) \{(.*?)\}", without_comments(read("client/libgpuipc.map")), re.S):
            nodes |= {(name, node) for name in re.findall(r"\b(gpuipc_\w+);", body)}
        self.assertEqual(listed, nodes, "packaging/debian/libgpuipc0.symbols and client/libgpuipc.map differ; add what is new, "
                         "with the version it came with")

    def test_versions_are_the_header_s(self):
        version = re.search(r'#define GPUIPC_VERSION "(.*)"', read("include/gpuipc.h")).group(1)
        self.assertRegex(read("packaging/debian/changelog"), rf"\Agpuipc \({re.escape(version)}\) ")
        self.assertIn(f"version_of_source {version}}}", read("packaging/rpm/gpuipc.spec"))

    def test_packages_have_what_is_installed(self):
        """Nothing that make install places is forgotten by either kind of package."""
        tree = f"{os.environ.get('TMPDIR', '/tmp')}/placed"
        subprocess.run(["mk/install", BUILD], cwd=ROOT, check=True, env={"PATH": os.environ["PATH"], "DESTDIR": tree, "prefix": "/usr"})
        names = {name for _, _, there in os.walk(tree) for name in there}
        shutil.rmtree(tree)
        self.assertGreaterEqual(len(names), 20)
        spec = read("packaging/rpm/gpuipc.spec")
        debian = "".join(read(path) for path in files(".install", ".manpages", rooms=("packaging/debian",)))
        whole = {"gpuipcd.conf": "etc/gpuipcd", "io.gpuipc.Broker.varlink": "usr/share/gpuipc", "gpuipcd.catalog": "usr/lib/systemd/catalog",
                 "gpuipc.json": "etc/cdi"}
        for name in sorted(names):
            with self.subTest(name):
                self.assertTrue(name in spec or name == "io.gpuipc.Broker.varlink" and "/gpuipc\n" in spec, "packaging/rpm/gpuipc.spec")
                self.assertTrue(name in debian or name.startswith("libgpuipc.so") or whole.get(name, "lib/systemd/system") in debian,
                                "packaging/debian")


if __name__ == "__main__":
    unittest.main()
