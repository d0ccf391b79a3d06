# SPDX-License-Identifier: Apache-2.0
"""How the sources are written: marks, words, lengths, and who may include whom."""

import concurrent.futures
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import sources  # noqa: E402
from sources import ROOT, read  # noqa: E402

FUNCTION_LINES = 70
FILE_LINES = 450
TEST_FILE_LINES = 700
COLUMNS = 140

# Downwards only: a module includes its own layer and those before it. A new module needs a place here.
LAYERS = (
    ("util", "alarm clock creds errand fault handed lending limits list log log_text map memory notify pace rcstr waitq"),
    ("backends", "annex backend backend_absent backend_cuda backend_host cuda_* wipe wipe_helper"),
    ("lane", "lane"),
    ("store", "leftovers state state_* store"),
    ("ledger", "audit audit_state buffer channel client cursor events keeps lease ledger policy quota record registry reserve restore resume stored"),
    ("house", "house spare workplace"),
    ("ops", "grant keeping making opening ops ops_* request"),
    ("dispatch", "dispatch report wait"),
    ("session", "farewell hall outbox process sender session"),
    ("listener", "listener doors"),
    ("config", "config config_*"),
    ("broker", "broker devices digest keeper recovery recovery_*"),
    ("main", "main"),
)
# Written as a verb or name would be, but never by a person reading aloud.
FORBIDDEN = re.compile(r"\b(TODO|FIXME|XXX|HACK|WIP|tbd|stub|stubs|placeholder|lorem ipsum)\b", re.I)
REGISTRIES = re.compile(r"\b(pypi\.org|pythonhosted\.org|deb\.debian\.org|snapshot\.debian\.org|crates\.io|npmjs\.\w+|"
                        r"ghcr\.io|docker\.io|quay\.io)\b")


def module_layer(module):
    for number, (_, names) in enumerate(LAYERS):
        for name in names.split():
            if module == name or (name.endswith("*") and module.startswith(name[:-1])):
                return number
    return None


def functions(path):
    """(name, first line, number of lines) of each function: a line at column 0 that ends with "{" up to "}"."""
    found, start, name = [], None, None
    head = ""
    for number, line in enumerate(sources.without_comments(read(path)).splitlines(), 1):
        if start is None:
            head = line if line[:1] not in (" ", "", "}", "#") else head + line
            opens = line.endswith("{") and not re.search(r"=\s*\{$|^(static\s+)?(const\s+)?(struct|union|enum)\s+\w+\s*\{", head)
            if opens and "(" in head and not head.startswith(("extern", "typedef")):
                match = re.search(r"START_TEST\((\w+)|(\w+)\s*\(", head)
                start, name = number, match.group(1) or match.group(2)
        elif line.startswith("}"):
            found.append((name, start, number - start + 1))
            start, head = None, ""
    return found


class MarksTest(unittest.TestCase):
    def report(self, faults):
        if faults:
            self.fail("\n" + "\n".join(faults))

    def test_licence_line(self):
        faults = []
        for path in sources.files(".c", ".h", ".py", ".sh", ".mk", ".map") + ["Makefile"] + sources.scripts("sh", "bash", "python3"):
            if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(read(path).splitlines()[:2]):
                faults.append(f"{path}:1: no SPDX-License-Identifier: Apache-2.0 in its first two lines")
        self.report(faults)

    def test_opening_comment(self):
        faults = [f"{path}:2: does not say what this room holds" for path in sources.files(".c")
                  if not (read(path).splitlines() + ["", ""])[1].startswith("/* ")]
        self.report(faults)

    def test_words(self):
        faults = []
        for path in sources.all_files():
            if path.startswith("tests/lint/") or path == "LICENSE" or not sources.is_text(path):
                continue
            for number, line in enumerate(read(path).splitlines(), 1):
                for match in list(FORBIDDEN.finditer(line)) + list(REGISTRIES.finditer(line)):
                    faults.append(f"{path}:{number}: {match.group(0)!r}")
        self.report(faults)

    def test_lines(self):
        faults = []
        for path in sources.files(".c", ".h"):
            for number, line in enumerate(read(path).splitlines(), 1):
                if len(line) > COLUMNS:
                    faults.append(f"{path}:{number}: {len(line)} columns, at most {COLUMNS}")
                if line != line.rstrip():
                    faults.append(f"{path}:{number}: blanks at the end")
                if "\t" in line:
                    faults.append(f"{path}:{number}: a tab")
            if not read(path).endswith("\n") or read(path).endswith("\n\n"):
                faults.append(f"{path}: does not end with one newline")
        self.report(faults)

    def test_lengths(self):
        faults = []
        for path in sources.files(".c", ".h"):
            n_lines = read(path).count("\n")
            limit = TEST_FILE_LINES if path.startswith("tests/") else FILE_LINES
            if n_lines > limit and path != "include/gpuipc.h":
                faults.append(f"{path}: {n_lines} lines, at most {limit}: split it by noun")
            for name, first, n in functions(path):
                if n > FUNCTION_LINES:
                    faults.append(f"{path}:{first}: {name}() has {n} lines, at most {FUNCTION_LINES}")
        self.report(faults)

    def test_functions_are_found(self):
        n = sum(len(functions(path)) for path in sources.files(".c", rooms=("proto",)))
        self.assertGreater(n, 50)


class RoomsTest(unittest.TestCase):
    report = MarksTest.report

    def test_direction_between_rooms(self):
        allowed = {"include": ("include",), "proto": ("proto", "include"), "daemon": ("daemon", "proto", "include"),
                   "client": ("client", "proto", "include")}
        faults = []
        for path in sources.files(".c", ".h", rooms=sources.ROOMS):
            room = path.partition("/")[0]
            for name in sources.includes(path):
                if name.partition("/")[0] not in allowed[room]:
                    faults.append(f"{path}: includes {name}; {room} may include {', '.join(allowed[room])}")
                if name.startswith("client/ctl/") and not path.startswith("client/ctl/"):
                    faults.append(f"{path}: includes {name}, which is the command's own")
                if path.startswith("client/examples/") and name != "include/gpuipc.h":
                    faults.append(f"{path}: includes {name}; an example has the public header alone")
                if not os.path.exists(f"{ROOT}/{name}"):
                    faults.append(f"{path}: includes {name}, which is not there")
        self.report(faults)

    def test_direction_within_the_daemon(self):
        faults = []
        for path in sources.files(".c", ".h", rooms=("daemon",)):
            module = os.path.splitext(os.path.basename(path))[0]
            layer = module_layer(module)
            if layer is None:
                faults.append(f"{path}: has no layer in tests/lint/test_sources.py")
                continue
            for name in sources.includes(path):
                other = os.path.splitext(os.path.basename(name))[0]
                if name.startswith("daemon/") and (module_layer(other) or 0) > layer:
                    faults.append(f"{path}: includes {name}, upwards: {LAYERS[layer][0]} <- {LAYERS[module_layer(other)][0]}")
        self.report(faults)

    def test_ledger_is_pure(self):
        ledger = dict(LAYERS)["ledger"].split()
        faults = []
        for path in sources.files(".c", ".h", rooms=("daemon",)):
            if os.path.splitext(os.path.basename(path))[0] not in ledger:
                continue
            for found in re.findall(r'#\s*include\s+[<"](uv\.h|sys/socket\.h|(?:proto/)?(?:codec|wire)\.h|log\.h)[">]', read(path)):
                faults.append(f"{path}: includes {found}; the ledger knows no loop, socket, JSON or log")
        self.report(faults)

    def test_silent_rooms(self):
        # Formatting into memory is fine; writing to a stream is not.
        loud = re.compile(r"\b(v?f?printf|v?dprintf|f?puts|putchar|perror|v?syslog|sd_journal_\w+|v?warnx?|v?errx?)\s*\(")
        ledger = dict(LAYERS)["ledger"].split()
        faults = []
        for path in sources.files(".c", ".h", rooms=("proto", "client", "daemon")):
            module = os.path.splitext(os.path.basename(path))[0]
            library = path.startswith("client/") and path.count("/") == 1
            if not (path.startswith("proto/") or library or (path.startswith("daemon/") and module in ledger)):
                continue
            for number, line in enumerate(sources.without_comments(read(path)).splitlines(), 1):
                if loud.search(line):
                    faults.append(f"{path}:{number}: {loud.search(line).group(1)}() in a silent room")
        self.report(faults)

    def test_cjson_in_one_place(self):
        self.report([f"{path}: includes cJSON.h, which is codec.c's alone"
                     for path in sources.files(".c", ".h", rooms=sources.ROOMS)
                     if path != "proto/codec.c" and re.search(r'#\s*include\s+[<"](cjson/)?cJSON', read(path))])

    def test_no_event_loop_in_the_library(self):
        self.report([f"{path}: includes uv.h" for path in sources.files(".c", ".h", rooms=("proto", "client", "include"))
                     if re.search(r"#\s*include\s+<uv", read(path))])


class HeadersTest(unittest.TestCase):
    FLAGS = ["-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-I.", "-Iinclude", "-fsyntax-only"]

    def compile(self, command, text):
        done = subprocess.run([*command, "-"], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              cwd=ROOT, check=False)
        return "" if done.returncode == 0 else done.stdout

    CUDA = os.environ.get("CUDA_INCLUDE", "/usr/local/cuda/include")

    def needs_cuda(self, path):
        return bool(re.search(r"#\s*include\s+<(cuda\w*|nvtx3/\w+)\.h>", read(path))) or any(
            self.needs_cuda(name) for name in sources.includes(path) if name != path and os.path.exists(f"{ROOT}/{name}"))

    def test_each_compiles_alone(self):
        cflags = subprocess.run(["pkg-config", "--cflags", "libuv", "libcjson", "libsystemd", "check"], check=True,
                                stdout=subprocess.PIPE, text=True).stdout.split()
        have_cuda = os.path.exists(f"{self.CUDA}/cuda.h")
        command = ["gcc", *self.FLAGS, *cflags, *(["-isystem", self.CUDA] if have_cuda else []), "-x", "c"]

        def check(path):
            return self.compile(command, f'#include "{path}"\n#include "{path}"\n')

        headers = [path for path in sources.files(".h") if have_cuda or not self.needs_cuda(path)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            faults = [f"{path}:\n{fault}" for path, fault in zip(headers, pool.map(check, headers)) if fault]
        self.assertFalse(faults, "\n".join(faults))

    def test_public_one_is_plain_c99_and_cxx(self):
        text = '#include "gpuipc.h"\n'
        for command in (["gcc", "-std=c99", "-x", "c"], ["clang", "-std=c99", "-x", "c"], ["clang", "-std=c++11", "-x", "c++"]):
            strict = [*command, "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-fsyntax-only"]
            self.assertEqual(self.compile(strict, text), "", command)

    def test_public_one_includes_nothing_of_ours(self):
        self.assertEqual(sources.includes("include/gpuipc.h"), [])


if __name__ == "__main__":
    unittest.main()
