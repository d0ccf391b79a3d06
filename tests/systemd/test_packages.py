# SPDX-License-Identifier: Apache-2.0
"""The Debian packages in a booted machine: installed, upgraded while buffers are held, removed, purged; and what they are made of.
deadline: 600 s"""

import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from machine import ADMIN_SOCKET, BUILD, PATH, ROOT, SERVICE, SOCKET, UNITS, WAIT_S, Machine, serving, wait_for  # noqa: E402

DEBS = f"{BUILD}/deb"
NAMES = ("gpuipcd", "gpuipc-tools", "libgpuipc0", "libgpuipc-dev", "python3-gpuipc")
DROP_IN = "/etc/gpuipcd/gpuipcd.conf.d/50-test.conf"
# Where a package manager, the manager of units and their logs keep what they know; looked at for our names only.
KEPT_BY_OTHERS = ("proc", "sys", "dev", "run", "tmp", "mnt", "pkg", "var/log", "var/cache", "var/lib/dpkg", "var/lib/systemd/catalog",
                  "var/tmp", "usr/share/info", "root")
# Made by sysusers: a user's number must not come to mean another one, so that Debian's packages leave users behind.
USERS = {"etc/passwd", "etc/passwd-", "etc/group", "etc/group-", "etc/shadow", "etc/shadow-", "etc/gshadow", "etc/gshadow-",
         "etc/.pwd.lock"}
# A Python of the machine's own, which knows the package by its installation alone.
PYTHON = "/usr/bin/python3"
HOLDER = """import array, sys, gpuipc
with gpuipc.Client() as client:
    numbers = memoryview(array.array("i", range(6))).cast("B").cast("i", (2, 3))
    buffer = client.put("array", numbers, mode=0o644)
    print("put", flush=True)
    sys.stdin.readline()
"""
READER = """import sys, gpuipc
with gpuipc.Client() as client:
    got = client.get("array", owner=int(sys.argv[1]), wait=10)
    print(got.dtype, got.shape, got.memoryview().tolist(), "numpy" in sys.modules)
"""
TELLER = """import importlib.metadata, os, gpuipc, gpuipc._native
place = os.path.dirname(gpuipc.__file__)
print(place, gpuipc._native.library().path, importlib.metadata.version("gpuipc"), len(os.listdir(f"{place}/__pycache__")) > 10)
"""
machine = None


def make(*words):
    subprocess.run(["make", "-s", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                   env={"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"})


def setUpModule():
    global machine
    for tool in ("dpkg-buildpackage", "dh", "dh_python3", "fakeroot"):
        if not shutil.which(tool, path=PATH):
            raise unittest.SkipTest(f"no packages can be built: there is no {tool}")
    make("deb")


def debs(directory):
    return [next(path for path in sorted(glob.glob(f"{directory}/{name}_*.deb"))) for name in NAMES]


def made_newer(directory):
    """The same packages as a later version: what an upgrade installs."""
    for path in debs(DEBS):
        tree = f"{directory}/{os.path.basename(path)}.tree"
        subprocess.run(["dpkg-deb", "-R", path, tree], check=True)
        with open(f"{tree}/DEBIAN/control", encoding="utf-8") as file:
            text = file.read()
        version = next(line for line in text.splitlines() if line.startswith("Version: ")).split()[1]
        with open(f"{tree}/DEBIAN/control", "w", encoding="utf-8") as file:
            file.write(text.replace(f"Version: {version}", f"Version: {version}+later").replace(f"(= {version})", f"(= {version}+later)"))
        subprocess.run(["dpkg-deb", "-b", "--root-owner-group", tree, f"{directory}/{os.path.basename(path)}"], check=True,
                       stdout=subprocess.DEVNULL)
        shutil.rmtree(tree)


class Making(unittest.TestCase):
    def test_lintian_is_content(self):
        if not shutil.which("lintian", path=PATH):
            self.skipTest("there is no lintian")
        changes = glob.glob(f"{DEBS}/*.changes")
        self.assertEqual(len(changes), 1)
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "warning,error", *changes], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, ""))

    def test_two_builds_agree(self):
        """Elsewhere, in another time zone and language, and with a stranger's mask."""
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/tmp")) as directory:
            subprocess.run(["sh", "-c", "umask 077; exec mk/package deb \"$0\"", f"{directory}/again"], cwd=ROOT, check=True,
                           stdout=subprocess.DEVNULL,
                           env={"PATH": PATH, "HOME": "/root", "LC_ALL": "C", "TZ": "Pacific/Kiritimati"})
            for path in glob.glob(f"{DEBS}/*.deb"):
                with self.subTest(os.path.basename(path)):
                    hashes = []
                    for each in (path, f"{directory}/again/{os.path.basename(path)}"):
                        with open(each, "rb") as file:
                            hashes.append(hashlib.sha256(file.read()).hexdigest())
                    self.assertEqual(*hashes)

    def test_the_source_stays_as_it_is(self):
        """All is made in copies."""
        done = subprocess.run(["git", "status", "--porcelain", "--ignored=no"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            self.skipTest("not a checkout of git")
        self.assertNotRegex(done.stdout, r"(?m)^\?\? (debian|.*debhelper|.*\.(deb|substvars|changes|buildinfo))")

    def test_rpm(self):
        if not shutil.which("rpmbuild", path=PATH):
            self.skipTest("there is no rpmbuild")
        make("rpm")
        names, files = set(), set()
        for path in glob.glob(f"{BUILD}/rpm/RPMS/*/*.rpm"):
            query = ["rpm", "-qp", "--nosignature", path]
            names.add(subprocess.run([*query, "--qf", "%{NAME}"], stdout=subprocess.PIPE, text=True, check=True).stdout)
            files.update(subprocess.run([*query, "-l"], stdout=subprocess.PIPE, text=True, check=True).stdout.split())
        self.assertEqual(names, {"gpuipcd", "gpuipc-tools", "gpuipc-libs", "gpuipc-devel", "python3-gpuipc"})
        self.assertEqual({path.split("/")[1] for path in files}, {"etc", "usr"})
        self.assertTrue([path for path in files if re.fullmatch(r"/usr/lib/python3\.\d+/site-packages/gpuipc/client\.py", path)], files)
        # What the Debian packages have is there as well, wherever each distribution wants it.
        wanted = set()
        for path in debs(DEBS):
            text = subprocess.run(["dpkg-deb", "-c", path], stdout=subprocess.PIPE, text=True, check=True).stdout
            wanted |= {os.path.basename(line.split()[5]).removesuffix(".gz") for line in text.splitlines() if line[0] in "-l"}
        here = {os.path.basename(path).removesuffix(".gz") for path in files}
        self.assertEqual(wanted - {"changelog", "copyright"} - here, set())


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        global machine
        if machine:
            return
        newer = tempfile.mkdtemp(prefix="newer.", dir=os.environ.get("TMPDIR", "/tmp"))
        unittest.addModuleCleanup(shutil.rmtree, newer)
        made_newer(newer)
        machine = Machine.for_module((DEBS, "/pkg"), (newer, "/mnt"))
        for name, uid in (("alice", 3001), ("bob", 3002)):
            machine.run("useradd", "-u", str(uid), "-M", name)

    @staticmethod
    def dpkg(*words):
        return machine.run("dpkg", *words, environment={"DEBIAN_FRONTEND": "noninteractive"}).stdout

    @classmethod
    def install(cls):
        return cls.dpkg("--install", *(f"/pkg/{os.path.basename(path)}" for path in debs(DEBS)))

    @classmethod
    def upgrade(cls):
        return cls.dpkg("--install", *(f"/mnt/{os.path.basename(path)}" for path in debs(DEBS)))

    @classmethod
    def purge(cls):
        return cls.dpkg("--purge", *NAMES)


class Installed(PackageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.install()
        cls.addClassCleanup(cls.purge)

    def tearDown(self):
        machine.remove(DROP_IN)
        machine.systemctl("stop", SERVICE)

    def test_sockets_are_enabled_and_start_the_service(self):
        for unit in (SOCKET, ADMIN_SOCKET):
            self.assertEqual(machine.show(unit, "UnitFileState", "ActiveState"), {"UnitFileState": "enabled", "ActiveState": "active"})
        self.assertEqual(machine.property(SERVICE, "ActiveState"), "inactive")
        self.assertIn("LEASE", machine.ctl("list", uid=3001).stdout)
        self.assertEqual(machine.property(SERVICE, "ActiveState"), "active")
        self.assertEqual(machine.property(SERVICE, "User"), "gpuipc")
        machine.run("getent", "group", "gpuipc-admin")
        self.assertEqual(machine.run("stat", "-c", "%a %G", "/run/gpuipcd-admin/admin.sock").stdout, "660 gpuipc-admin\n")

    def test_a_member_may_and_others_are_told(self):
        machine.run("groupadd", "sharers")
        machine.run("usermod", "-a", "-G", "sharers", "alice")
        self.addCleanup(machine.run, "groupdel", "sharers")
        machine.write(DROP_IN, "[Access]\nAllowGroups=sharers\n")
        list_as = ["setpriv", "--init-groups", "gpuipcctl", "list"]
        member = machine.run(*list_as[:1], "--reuid=alice", "--regid=alice", *list_as[1:], check=False)
        self.assertEqual(member.returncode, 0, member.stdout)
        other = machine.run(*list_as[:1], "--reuid=bob", "--regid=bob", *list_as[1:], check=False)
        self.assertEqual(other.returncode, 1, other.stdout)
        self.assertIn("AllowGroups", other.stdout)

    def test_the_catalog_and_the_pages_are_there(self):
        self.assertIn("The broker of shared memory serves", machine.run("journalctl", "--list-catalog").stdout)
        said = self.dpkg("--listfiles", *NAMES)
        for page in ("man8/gpuipcd.8", "man5/gpuipcd.conf.5", "man1/gpuipcctl.1", "man3/libgpuipc.3"):
            self.assertIn(page, said)

    def test_python(self):
        """An array goes from one user's process to another's, with the library of the other package and nothing but Python."""
        holder = machine.start(PYTHON, "-c", HOLDER, uid=3001, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(machine.end, holder)
        self.assertEqual(holder.stdout.readline(), "put\n")
        told = machine.run(PYTHON, "-c", READER, "3001", uid=3002).stdout
        self.assertEqual(told, "int32 (2, 3) [[0, 1, 2], [3, 4, 5]] False\n")
        holder.communicate("\n", timeout=WAIT_S)  # one that lives would start the service again
        self.assertEqual(holder.returncode, 0)
        version = machine.run("dpkg-query", "-W", "-f", "${Version}", "python3-gpuipc").stdout
        self.assertEqual(machine.run(PYTHON, "-c", TELLER, uid=3001).stdout.split(),
                         ["/usr/lib/python3/dist-packages/gpuipc", "libgpuipc.so.0", version, "True"])

    def test_a_program_is_built_with_it(self):
        machine.write("/root/try.c", "#include <gpuipc.h>\n#include <stdio.h>\nint main(void) { puts(gpuipc_version()); return 0; }\n")
        machine.run("sh", "-c", "cc -o /root/try /root/try.c $(pkg-config --cflags --libs gpuipc)")
        shown = machine.run("/root/try").stdout.strip()
        self.assertEqual(shown, machine.run("pkg-config", "--modversion", "gpuipc").stdout.strip())
        machine.run("sh", "-c", "cc -static-libgcc -o /root/try /root/try.c -Wl,-Bstatic -lgpuipc -Wl,-Bdynamic -lcjson")
        self.assertEqual(machine.run("/root/try").stdout.strip(), shown)


class Upgraded(PackageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.addClassCleanup(cls.purge)

    def setUp(self):
        """The earlier version, its sockets on and the service not started."""
        self.install()
        machine.systemctl("stop", SERVICE)

    def jobs(self, after):
        """Numbers of the manager's jobs that concerned the service."""
        return {line["JOB_ID"] for line in machine.journal(after=after) if "JOB_ID" in line}

    def test_the_service_is_restarted_by_one_job(self):
        """A stop followed by a start would empty the manager's store."""
        machine.systemctl("start", SERVICE)
        pid, after = machine.main_pid(), machine.cursor()
        self.upgrade()
        machine.wait_show(SERVICE, ActiveState="active")
        self.assertNotEqual(machine.main_pid(), pid)
        self.assertEqual(len(self.jobs(after)), 1, machine.journal_text(after=after))
        for unit in (SOCKET, ADMIN_SOCKET):
            self.assertEqual(machine.property(unit, "ActiveState"), "active")
        self.assertTrue(serving(machine))

    def test_held_buffers_are_kept(self):
        if "restart-keeps-buffers" not in machine.status()["features"]:
            self.skipTest("this daemon keeps nothing over a restart")
        machine.write("/root/data", "held " * 1000)
        machine.ctl("put", "--keep", "1h", "--detach", "kept", "/root/data")
        holder = machine.hold("held", uid=3001)
        self.upgrade()
        names = {buffer["name"] for buffer in machine.ctl_json("list", "--buffers")["buffers"]}
        self.assertEqual(names, {"kept", "held"})
        self.assertEqual(machine.ctl("get", "kept").stdout, "held " * 1000)
        wait_for(lambda: [lease["state"] for lease in machine.ctl_json("list")["leases"] if lease.get("name") == "held"] == ["active"],
                 "the holder to come back")
        self.assertIsNone(holder.poll())
        machine.end(holder)

    def test_a_stopped_service_stays_stopped(self):
        self.upgrade()
        self.assertEqual(machine.property(SERVICE, "ActiveState"), "inactive")

    def test_disabled_sockets_stay_disabled(self):
        machine.systemctl("disable", "--now", SOCKET, ADMIN_SOCKET)
        self.addCleanup(machine.systemctl, "enable", "--now", SOCKET, ADMIN_SOCKET)
        self.upgrade()
        self.assertEqual(machine.property(SOCKET, "UnitFileState"), "disabled")

    def test_a_changed_configuration_is_kept(self):
        self.addCleanup(machine.write, "/etc/gpuipcd/gpuipcd.conf", machine.read("/etc/gpuipcd/gpuipcd.conf"))
        text = machine.read("/etc/gpuipcd/gpuipcd.conf") + "\n[Limits]\nClientsMax=99\n"
        machine.write("/etc/gpuipcd/gpuipcd.conf", text)
        machine.systemctl("start", SERVICE)
        self.upgrade()
        self.assertEqual(machine.read("/etc/gpuipcd/gpuipcd.conf"), text)
        self.assertEqual(machine.status()["limits"]["clients"], 99)


class Removed(PackageTest):
    def tearDown(self):
        self.purge()

    def files(self):
        """Whatever the machine has written and is not kept by others: the overlay's upper layer, to which nobody else writes."""
        found = {}
        top = f"{machine.directory}/layers/upper"
        for directory, names, files in os.walk(top):
            inside = os.path.relpath(directory, top)
            names[:] = [name for name in names if os.path.normpath(f"{inside}/{name}") not in KEPT_BY_OTHERS]
            for name in names + files:
                path = os.path.normpath(f"{inside}/{name}")
                try:
                    found[path] = os.lstat(f"{top}/{path}").st_mtime_ns if name in files else None
                except FileNotFoundError:
                    continue
        return found

    def test_remove_keeps_the_configuration_and_stops_all(self):
        self.install()
        client = machine.start("sh", "-c", "while :; do gpuipcctl status || sleep 0.01; done")
        self.addCleanup(machine.end, client)
        wait_for(lambda: machine.property(SERVICE, "ActiveState") == "active", "the client to start it")
        self.dpkg("--remove", *NAMES)
        for unit in UNITS:
            self.assertEqual(machine.property(unit, "ActiveState"), "inactive", unit)
        self.assertEqual(machine.processes(), [])
        self.assertTrue(os.path.exists(f"{machine.root}/etc/gpuipcd/gpuipcd.conf"))
        self.assertFalse(os.path.exists(machine.inside("/run/gpuipcd")))

    def test_python_wants_the_library(self):
        """Alone it is unpacked at most, and says what is missing."""
        (path,) = (path for path in debs(DEBS) if "/python3-gpuipc_" in path)
        done = machine.run("dpkg", "--install", f"/pkg/{os.path.basename(path)}", check=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"python3-gpuipc depends on libgpuipc0 \(>= [\d.]+\); however:\s+Package libgpuipc0 is not installed")

    def test_purge_leaves_nothing(self):
        self.install()  # caches of others that begin with the first package
        self.purge()
        before = self.files()
        self.install()
        machine.ctl("list")
        self.purge()
        after = self.files()
        self.assertEqual(set(after) - set(before), set(), "left behind")
        self.assertEqual(set(before) - set(after), set(), "taken along")
        changed = {path for path in after if after[path] != before[path]}
        # Its index of pages, and the loader's of libraries, are written anew with the same content.
        self.assertEqual({path for path in changed if "gpuipc" in path} | (changed & USERS), set())
        for directory in ("etc/systemd", "var/lib/systemd", "run", "etc/gpuipcd"):
            named = [path for path, names, files in os.walk(machine.inside(f"/{directory}")) for name in names + files if "gpuipc" in name]
            self.assertEqual(named, [], directory)
        # Users stay, as those of all Debian packages do.
        machine.run("getent", "passwd", "gpuipc")


if __name__ == "__main__":
    unittest.main()
