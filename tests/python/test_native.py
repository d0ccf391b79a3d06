# SPDX-License-Identifier: Apache-2.0
"""What the Python package believes of the library is what gpuipc.h says: functions, arguments, numbers, structs to the byte."""

import ctypes
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from daemon import ROOT  # noqa: E402
from package import gpuipc  # noqa: E402

from gpuipc import _native, errors  # noqa: E402

with open(f"{ROOT}/include/gpuipc.h", encoding="utf-8") as file:
    HEADER = re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.S)

# What a C type of the header is to ctypes, where it is passed or returned.
PLAIN = {"int": ctypes.c_int, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64, "size_t": ctypes.c_size_t, "void": None,
         "const char *": ctypes.c_char_p}


def functions():
    """{name: (result, [arguments])}, types without names."""
    found = {}
    for result, name, arguments in re.findall(r"GPUIPC_PUBLIC\s+([\w\s*]+?)\s*\b(gpuipc_\w+)\(((?:[^()]|\([^()]*\))*)\);", HEADER):
        each = [re.sub(r"\s+", " ", part).strip() for part in re.split(r",(?![^(]*\))", arguments)]
        found[name] = (re.sub(r"\s+", " ", result).strip(), [] if each == ["void"] else each)
    return found


def numbers():
    """{name: value} of every enumerator and plain #define."""
    found = dict(re.findall(r"\b(GPUIPC_[A-Z_]+)\s*=\s*(\d+)", HEADER))
    found.update(re.findall(r"^#define\s+(GPUIPC_[A-Z_]+)\s+(\d+)\s*$", HEADER, re.M))
    return {name: int(value) for name, value in found.items()}


def structs():
    """{name: [member]} in the header's order."""
    found = {}
    for body, name in re.findall(r"typedef struct gpuipc_\w+ \{(.*?)\} (gpuipc_\w+);", HEADER, re.S):
        members = []
        for line in body.split(";"):
            pointer = re.search(r"\(\*(\w+)\)", line)
            if pointer:
                members.append(pointer.group(1))
            elif line.strip():
                members += [re.search(r"(\w+)\s*(\[[\w\s]*\]\s*)*$", part).group(1) for part in line.split(",")]
        found[name] = members
    return found


class NativeTest(unittest.TestCase):
    def test_each_function_is_known(self):
        known = {**_native.PROTOTYPES, **_native.LOCKED_PROTOTYPES}
        self.assertGreater(len(functions()), 70)
        self.assertEqual(set(known), set(functions()))

    def test_arguments_and_results(self):
        for name, (result, arguments) in functions().items():
            with self.subTest(name):
                known_result, known = {**_native.PROTOTYPES, **_native.LOCKED_PROTOTYPES}[name]
                self.assertEqual(len(known), len(arguments), arguments)
                for each, type_ in zip(arguments, known):
                    self.assertTrue(self.fits(each, type_), f"{each}: {type_}")
                if result in PLAIN:
                    self.assertEqual(known_result, PLAIN[result])
                elif result.endswith("_fn"):
                    self.assertEqual(known_result, ctypes.c_void_p)
                else:
                    self.assertRegex(result, r"^gpuipc_(access|channel_(kind|policy|role))$")
                    self.assertEqual(known_result, ctypes.c_int)

    def fits(self, argument, type_):
        """An argument as the header has it, with its name."""
        if "(*" in argument:
            return issubclass(type_, ctypes._CFuncPtr)
        kind = re.sub(r"\s*\w+$", "", argument) if not argument.endswith("*") else argument
        kind = kind.strip()
        if kind == "const char *":
            return type_ is ctypes.c_char_p
        if kind in ("int", "gpuipc_status", "int64_t", "uint64_t", "size_t"):
            return type_ is PLAIN.get(kind, ctypes.c_int)
        bare = kind.replace("const", "").replace(" ", "")
        if bare.endswith("**") and bare != "gpuipc_event_info**":
            return type_ is ctypes.POINTER(ctypes.c_void_p)
        if bare == "gpuipc_event_info**":
            return type_ is ctypes.POINTER(ctypes.POINTER(_native.EventInfo))
        if bare.rstrip("*") in _native.STRUCTS:
            return type_ is ctypes.POINTER(_native.STRUCTS[bare.rstrip("*")])
        if bare == "uint64_t*":
            return type_ is ctypes.POINTER(ctypes.c_uint64)
        return bare.endswith("*") and type_ is ctypes.c_void_p

    def test_numbers(self):
        found = numbers()
        self.assertEqual({f"GPUIPC_{'' if name == 'OK' else 'ERROR_'}{name}": value for name, value in _native.STATUS.items()},
                         {name: value for name, value in found.items() if name == "GPUIPC_OK" or name.startswith("GPUIPC_ERROR_")})
        for ours, theirs in {"RW": "RW", "RO": "RO", "QUEUE": "CHANNEL_QUEUE", "BROADCAST": "CHANNEL_BROADCAST",
                             "BLOCK": "CHANNEL_BLOCK", "DROP_OLDEST": "CHANNEL_DROP_OLDEST", "PRODUCER": "CHANNEL_PRODUCER",
                             "CONSUMER": "CHANNEL_CONSUMER", "ITEM_META_MAX": "ITEM_META_MAX", "CHANNEL_MEMBERS": "CHANNEL_MEMBERS",
                             "POOLS": "POOLS", "IPC_HANDLE_SIZE": "IPC_HANDLE_SIZE"}.items():
            self.assertEqual(getattr(_native, ours), found[f"GPUIPC_{theirs}"], ours)

    def test_each_status_has_an_error(self):
        self.assertEqual(set(errors.BY_STATUS), set(_native.STATUS.values()) - {0})
        self.assertEqual(len(set(errors.BY_STATUS.values())), len(errors.BY_STATUS))
        for status, kind in errors.BY_STATUS.items():
            name = _native.library().gpuipc_status_name(status).decode().removeprefix("GPUIPC_ERROR_").replace("_", "").lower()
            self.assertEqual(kind.__name__.removesuffix("Error").lower(), name)
            self.assertTrue(hasattr(gpuipc, kind.__name__), kind)

    def test_what_is_made_can_be_ended(self):
        """Where a signal's handler raises before anyone has it."""
        makes = {name for name, (_, arguments) in functions().items()
                 if any(re.fullmatch(r"(?:gpuipc_\w+|void) \*\*ret_\w+", each) for each in arguments)}
        self.assertEqual(set(_native._ENDS), makes - {"gpuipc_buffer_map", "gpuipc_watch_next", "gpuipc_python_capsule"})
        for end in _native._ENDS.values():
            self.assertIn(end, functions())

    def test_structs_to_the_byte(self):
        self.assertEqual(set(structs()), set(_native.STRUCTS))
        lines = ['#include <stddef.h>', '#include <stdio.h>', '#include "gpuipc.h"', "int main(void) {"]
        wanted = []
        for name, members in structs().items():
            type_ = _native.STRUCTS[name]
            self.assertEqual([field[0] for field in type_._fields_], members, name)
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            wanted.append(f"{name} {ctypes.sizeof(type_)}")
            for member in members:
                lines.append(f'printf("{name}.{member} %zu %zu\\n", offsetof({name}, {member}), sizeof((({name} *)0)->{member}));')
                field = getattr(type_, member)
                wanted.append(f"{name}.{member} {field.offset} {field.size}")
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run(["gcc", "-x", "c", "-I", f"{ROOT}/include", "-o", f"{directory}/sizes", "-"], check=True, text=True,
                           input="\n".join([*lines, "return 0;", "}"]))
            told = subprocess.run([f"{directory}/sizes"], check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n")
        self.assertEqual(told[:-1], wanted)


class LoadingTest(unittest.TestCase):
    def load(self, **environment):
        code = "import gpuipc\ntry: gpuipc.Client('/nowhere')\nexcept gpuipc.Error as error: print(type(error).__name__, error)"
        return subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
                              env={**os.environ, "PYTHONPATH": f"{ROOT}/client/python", **environment}).stdout

    def test_the_one_that_is_named(self):
        self.assertRegex(self.load(), "^UnreachableError ")

    def test_one_that_is_not_there(self):
        told = self.load(GPUIPC_LIBRARY="/nowhere/libgpuipc.so.0")
        self.assertRegex(told, r"^LibraryError /nowhere/libgpuipc\.so\.0 cannot be loaded.*GPUIPC_LIBRARY")

    def test_one_of_another_kind(self):
        self.assertRegex(self.load(GPUIPC_LIBRARY="libm.so.6"), r"^LibraryError libm\.so\.6 is of another version.*gpuipc_")

    def test_importing_needs_nothing(self):
        """Neither the library nor NumPy nor PyTorch."""
        code = "import sys; before = set(sys.modules); import gpuipc; print(sorted(m for m in set(sys.modules) - before if " \
               "m.split('.')[0] in ('numpy', 'torch', 'cupy', 'jax', 'ml_dtypes')))"
        told = subprocess.run([sys.executable, "-BI", "-c", f"import sys; sys.path.insert(0, '{ROOT}/client/python'); {code}"], check=True,
                              stdout=subprocess.PIPE, text=True, env={**os.environ, "GPUIPC_LIBRARY": "/nowhere"}).stdout
        self.assertEqual(told, "[]\n")

    def test_without_pytorch(self):
        """-S: of no place where a torch could be."""
        code = f"import sys; sys.path.insert(0, '{ROOT}/client/python'); import gpuipc.torch"
        done = subprocess.run([sys.executable, "-BIS", "-c", code], stderr=subprocess.PIPE, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(f"ModuleNotFoundError: gpuipc.torch needs PyTorch, and {sys.executable} has none.", done.stderr)


if __name__ == "__main__":
    unittest.main()
