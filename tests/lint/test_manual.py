# SPDX-License-Identifier: Apache-2.0
"""Manual pages, help texts, configuration keys and the library's symbols say the same thing."""

import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from sources import ROOT, read, without_comments  # noqa: E402

BUILD = os.environ.get("GPUIPC_BUILD", f"{ROOT}/build")
PAGES = {"gpuipcd.8", "gpuipcctl.1", "gpuipcd.conf.5", "libgpuipc.3", "gpuipc-channel.7"}


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                          env={**os.environ, "COLUMNS": "200"}).stdout


def page_path(page):
    return f"{ROOT}/packaging/man/{page}"


def page_text(page):
    """As a reader sees it: plain, in one line of words, without breaks at hyphens."""
    plain = output("mandoc", "-T", "utf8", "-O", "width=1000", page_path(page))
    plain = re.sub(r".\x08", "", plain)
    for dash in "\u2010\u2011\u2212":
        plain = plain.replace(dash, "-")
    return re.sub(r"\s+", " ", plain)


def options(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text))


def twin(key):
    return "--" + re.sub(r"(?<!^)(?=[A-Z])", "-", key).lower()


def config_keys():
    """{Key: default}: the names from the daemon's table, the defaults from its help."""
    names = re.findall(r'\b(?:DAEMON|ACCESS|LIMIT)\("(\w+)"', read("daemon/config_keys.c"))
    keys = {}
    for row in re.split(r"\n(?=  --|\n|\w+:\n)", output(f"{BUILD}/gpuipcd", "--help")):
        for name in names:
            if re.match(rf"  {twin(name)}[= ]", row):
                default = re.search(r" \[(.*)\]\s*$", row)
                keys[name] = default.group(1) if default else ""
    return keys


def public_functions():
    return set(re.findall(r"\b(gpuipc_\w+)\s*\(", "".join(re.findall(r"^GPUIPC_PUBLIC[^;]*;", without_comments(read("include/gpuipc.h")), re.M))))


class PagesTest(unittest.TestCase):
    def test_all_are_there_and_clean(self):
        for page in sorted(PAGES):
            with self.subTest(page):
                self.assertTrue(os.path.exists(page_path(page)), f"packaging/man/{page} is missing")
                done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page_path(page)], stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, check=False)
                self.assertEqual(done.stdout.strip(), "")

    def test_references_lead_somewhere(self):
        for page in sorted(PAGES):
            with self.subTest(page):
                for name, section in re.findall(r"\b((?:lib)?gpuipc[\w.]*)\((\d)\)", page_text(page)):
                    self.assertIn(f"{name}.{section}", PAGES)


class DaemonTest(unittest.TestCase):
    def test_help_has_each_key(self):
        found = options(output(f"{BUILD}/gpuipcd", "--help"))
        self.assertGreater(len(found), 20)
        self.assertEqual(found - {"--help", "--version", "--config", "--test-config"}, {twin(key) for key in config_keys()})

    def test_page_has_each_option_and_no_other(self):
        text = page_text("gpuipcd.8")
        # What containers are started with are options of other programs.
        text = text[:text.index(" CONTAINERS A container ")] + text[text.index(" LIFETIMES "):]
        told, known = options(text), options(output(f"{BUILD}/gpuipcd", "--help"))
        self.assertEqual(told - known, set(), "told of and not known")
        # The keys' twins may be told of as a rule; the rest by name.
        self.assertEqual(known - {twin(key) for key in config_keys()} - told, set(), "not told of")

    def test_configuration_page_has_each_key_with_its_default(self):
        text = page_text("gpuipcd.conf.5")
        self.assertEqual(set(re.findall(r"(?<![\w-])([A-Z]\w+)=", text)), set(config_keys()))
        self.assertEqual(options(text) - options(output(f"{BUILD}/gpuipcd", "--help")), set())
        for key, default in config_keys().items():
            with self.subTest(key):
                if default:
                    paragraph = text[text.index(f"{key}="):]
                    self.assertIn(default, paragraph[:1500], f"default {default} of {key}=")

    def test_sample_configuration_is_accepted_and_complete(self):
        path = f"{ROOT}/packaging/gpuipcd.conf"
        self.assertTrue(os.path.exists(path), "packaging/gpuipcd.conf is missing")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        shown = dict(re.findall(r"^#?([A-Z]\w+)=(.*)$", text, re.M))
        self.assertEqual(shown, config_keys())
        active = re.sub(r"^#(?=[A-Z]\w+=)", "", text, flags=re.M)
        copy = f"{os.environ.get('TMPDIR', '/tmp')}/gpuipcd.conf"
        for content in (text, active):
            with open(copy, "w", encoding="utf-8") as file:
                file.write(content)
            output(f"{BUILD}/gpuipcd", "--config", copy, "--test-config")


class CommandTest(unittest.TestCase):
    def verbs(self):
        text = output(f"{BUILD}/gpuipcctl", "help")
        found = re.findall(r"^  ([a-z]+)\b", text[text.index("Verbs:"):text.index("Options of every verb")], re.M)
        self.assertGreater(len(found), 10)
        return found

    def test_each_verb_has_help(self):
        for verb in self.verbs():
            self.assertEqual(output(f"{BUILD}/gpuipcctl", "help", verb), output(f"{BUILD}/gpuipcctl", verb, "--help"))

    def test_page_has_each_verb_and_option_and_no_other(self):
        text, known = page_text("gpuipcctl.1"), set()
        # What doctor advises are options of other programs; test_doctor.py looks at it.
        text = text[:text.index(" CODES What ")] + text[text.index(" ENVIRONMENT "):]
        for verb in self.verbs():
            self.assertRegex(text, rf"\b{verb}\b", f"verb {verb}")
            known |= options(output(f"{BUILD}/gpuipcctl", "help", verb))
        known |= options(output(f"{BUILD}/gpuipcctl", "help"))
        self.assertEqual(options(text) - known, set(), "told of and not known")
        self.assertEqual(known - options(text), set(), "not told of")

    def test_completions_have_each_verb_and_option(self):
        """They are generated; the shells themselves are asked in tests/integration/test_completion.py."""
        for path in (f"{BUILD}/completions/bash/gpuipcctl", f"{BUILD}/completions/zsh/_gpuipcctl"):
            with self.subTest(path):
                with open(path, encoding="utf-8") as file:
                    text = file.read()
                for verb in self.verbs():
                    self.assertRegex(text, rf"\b{verb}\b", f"verb {verb}")
                    for option in options(output(f"{BUILD}/gpuipcctl", "help", verb)):
                        self.assertIn(option, text)


class LibraryTest(unittest.TestCase):
    def test_version_script_is_the_header(self):
        body = without_comments(read("client/libgpuipc.map"))
        self.assertEqual(set(re.findall(r"\b(gpuipc_\w+)\s*;", body)), public_functions())

    def test_library_exports_the_header(self):
        symbols = output("nm", "-D", "--defined-only", f"{BUILD}/libgpuipc.so.0")
        exported = set(re.findall(r" [TDBRVWi] (\w+)", symbols))
        self.assertEqual(exported, public_functions())

    def test_soname(self):
        self.assertIn("[libgpuipc.so.0]", output("readelf", "-d", f"{BUILD}/libgpuipc.so.0"))

    def test_library_needs_no_event_loop(self):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", f"{BUILD}/libgpuipc.so.0"))
        self.assertEqual({name for name in needed if not name.startswith(("libc.", "libcjson.", "ld-linux"))}, set())

    def test_static_library_exports_the_header(self):
        symbols = output("nm", "--defined-only", "-g", f"{BUILD}/libgpuipc.a")
        self.assertEqual(set(re.findall(r" [TDBRVW] (\w+)", symbols)), public_functions())

    def test_programs_are_hardened(self):
        for program in ("gpuipcd", "gpuipcctl", "libgpuipc.so.0"):
            with self.subTest(program):
                headers = output("readelf", "-W", "-l", "-d", f"{BUILD}/{program}")
                self.assertIn("DYN (", headers, "position-independent")
                self.assertIn("GNU_RELRO", headers)
                self.assertRegex(headers, r"FLAGS.*NOW|BIND_NOW", "bound at start")
                self.assertNotRegex(headers, r"GNU_STACK.*RWE")
                self.assertIn("__stack_chk_fail", output("nm", "-D", f"{BUILD}/{program}"))

    def test_page_has_each_function(self):
        text = page_text("libgpuipc.3")
        told = set(re.findall(r"\b(gpuipc_\w+)\(\)", text)) | set(re.findall(r"\b(gpuipc_\w+)\(", text))
        self.assertEqual(public_functions() - told, set(), "not told of")
        self.assertEqual(told - public_functions(), set(), "told of and not there")

    def test_page_has_each_status(self):
        text = page_text("libgpuipc.3")
        for status in set(re.findall(r"\b(GPUIPC_(?:OK|ERROR_\w+))\b", without_comments(read("include/gpuipc.h")))):
            self.assertIn(status, text)


class InstallTest(unittest.TestCase):
    def test_what_is_installed(self):
        root = f"{os.environ.get('TMPDIR', '/tmp')}/installed"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        subprocess.run(["make", "-s", "install", f"DESTDIR={root}", "PREFIX=/usr"], check=True, cwd=ROOT, env=environment,
                       stdout=subprocess.DEVNULL)
        there = {os.path.relpath(f"{directory}/{name}", root) for directory, _, names in os.walk(root) for name in names}
        for path in ("usr/sbin/gpuipcd", "usr/bin/gpuipcctl", "usr/lib/libgpuipc.so.0", "usr/lib/libgpuipc.so", "usr/lib/libgpuipc.a",
                     "usr/include/gpuipc.h", "usr/lib/pkgconfig/gpuipc.pc", "etc/cdi/gpuipc.json", *(f"usr/share/man/man{p[-1]}/{p}" for p in PAGES)):
            self.assertIn(path, there)
        headers = output("readelf", "-d", f"{root}/usr/bin/gpuipcctl")
        self.assertNotRegex(headers, "R(UN)?PATH")
        # Built against what is installed, a program runs with it.
        source = f"{root}/use.c"
        with open(source, "w", encoding="utf-8") as file:
            file.write('#include <gpuipc.h>\n#include <stdio.h>\nint main(void) { return puts(gpuipc_version()) < 0; }\n')
        for link in (["-lgpuipc"], ["-l:libgpuipc.a", "-lcjson"]):
            subprocess.run(["gcc", "-o", f"{root}/use", source, f"-I{root}/usr/include", f"-L{root}/usr/lib", *link], check=True)
            version = subprocess.run([f"{root}/use"], env={"LD_LIBRARY_PATH": f"{root}/usr/lib"}, stdout=subprocess.PIPE,
                                     text=True, check=True).stdout.strip()
            self.assertEqual(version, re.search(r'GPUIPC_VERSION "(.*)"', read("include/gpuipc.h")).group(1))
        pc = read_file(f"{root}/usr/lib/pkgconfig/gpuipc.pc")
        self.assertIn(f"Version: {version}", pc)


def read_file(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


if __name__ == "__main__":
    unittest.main()
