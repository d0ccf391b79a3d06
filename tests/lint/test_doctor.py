# SPDX-License-Identifier: Apache-2.0
"""The codes of doctor: the table, what the command says, the manual page and the places that use them agree."""

import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import sources  # noqa: E402
from sources import ROOT, read  # noqa: E402

BUILD = os.environ.get("GPUIPC_BUILD", f"{ROOT}/build")
COMMAND_COLUMNS = 63  # what is left of 80 beside a fix


def codes():
    """[(NAME, code, what)] in the table's order."""
    found = re.findall(r'X\((\w+), "(\w+)", "([^"]*)"\)', read("client/doctor_codes.h"))
    assert len(found) > 50
    return found


def words(text):
    return re.sub(r"\s+", " ", text).strip()


def explained(code):
    return subprocess.run([f"{BUILD}/gpuipcctl", "doctor", code], check=True, stdout=subprocess.PIPE, text=True).stdout


def spoken():
    """What has its words of its own: the table and the checks."""
    return "".join(read(path) for path in sources.files(".c", rooms=("client",)) if path.startswith("client/doctor/"))


def page():
    """{code: words} of the manual page's list."""
    plain = subprocess.run(["mandoc", "-T", "utf8", "-O", "width=1000", f"{ROOT}/packaging/man/gpuipcctl.1"], check=True,
                           stdout=subprocess.PIPE, text=True).stdout
    plain = re.sub(r".\x08", "", plain)
    plain = re.sub("[\u2010\u2011\u2212]", "-", plain)
    section = words(plain[plain.index("\nCODES\n"):plain.index("\nENVIRONMENT\n")])
    parts = re.split(r" (?=G\d{3} )", section)[1:]
    return {part[:4]: part for part in parts}


def text_of(paths):
    return "".join(read(path) for path in paths)


def is_doctor(path):
    return path.startswith("client/doctor/") or os.path.basename(path).startswith("test_doctor")


class CodesTest(unittest.TestCase):
    def test_codes_are_unique_and_in_order(self):
        ids = [code for _, code, _ in codes()]
        self.assertEqual(ids, sorted(set(ids)))
        for code in ids:
            self.assertRegex(code, r"^G\d{3}$")

    def test_page_says_what_the_command_says(self):
        told = page()
        self.assertEqual(set(told), {code for _, code, _ in codes()})
        for _, code, what in codes():
            with self.subTest(code):
                text = words(explained(code)).replace(" Fix: ", " ", 1)
                self.assertIn(what[1:] + ".", text)
                self.assertEqual(told[code], text)

    def test_each_code_is_used(self):
        text = "".join(read(path) for path in sources.files(".c", ".h", rooms=("client",))
                       if os.path.basename(path) not in ("doctor_codes.h", "advice.c"))
        for name, code, _ in codes():
            self.assertTrue(re.search(rf"\bDOCTOR_{name}\b", text), f"{code} is given by nobody")

    def test_each_code_is_provoked(self):
        """By a test of doctor's where doctor gives it, by another where the library does. Tests of the table provoke nothing, and those
        that need a GPU are run too seldom."""
        tests = [path for path in sources.files(".c", ".py", rooms=("tests",))
                 if not path.startswith(("tests/lint/", "tests/gpu/")) and os.path.basename(path) != "test_doctor_advice.c"]
        givers = [path for path in sources.files(".c", ".h", rooms=("client",))
                  if os.path.basename(path) not in ("doctor_codes.h", "advice.c")]
        faults = []
        for by_doctor in (True, False):
            given, named = (text_of(path for path in paths if is_doctor(path) == by_doctor) for paths in (givers, tests))
            faults += [f"{code} (DOCTOR_{name}) is given by {'doctor' if by_doctor else 'the library'} and named by no test of its"
                       for name, code, _ in codes()
                       if re.search(rf"\bDOCTOR_{name}\b", given) and not re.search(rf"\bDOCTOR_{name}\b|\b{code}\b", named)]
        self.assertFalse(faults, "\n" + "\n".join(faults))

    def test_what_is_advised_exists(self):
        advice = spoken()
        verbs = set(re.findall(r'^        \{ "(\w+)", "', read("client/ctl/verbs.c"), re.M))
        self.assertIn("list", verbs)
        for verb in re.findall(r"\bgpuipcctl (\w+)", advice):
            self.assertIn(verb, verbs)
        keys = set(re.findall(r'\b(?:DAEMON|ACCESS|LIMIT)\("(\w+)"', read("daemon/config_keys.c")))
        for key in re.findall(r"\b([A-Z][a-z]+[A-Za-z]*)=", advice):
            self.assertIn(key, keys)

    def test_commands_fit(self):
        for _, code, _ in codes():
            for line in explained(code).splitlines():
                self.assertLessEqual(len(line), 80, line)
        for command in re.findall(r'"  ([^"]*?)(?:\\n)?"', spoken()):
            self.assertLessEqual(len(command), COMMAND_COLUMNS, command)

    def test_engines_are_told_in_their_own_words(self):
        """Podman takes --gpus and gives nothing: where one engine's way stands, the other's does."""
        texts = [explained(code) for _, code, _ in codes()] + re.findall(r"_fix\[\] =\n(.*?);\n", spoken(), re.S)
        given = [text for text in texts if "--gpus all" in text]
        self.assertGreater(len(given), 5)
        for text in given:
            self.assertIn("podman run --device nvidia.com/gpu=all ...", text)


if __name__ == "__main__":
    unittest.main()
