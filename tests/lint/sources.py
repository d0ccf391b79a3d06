# SPDX-License-Identifier: Apache-2.0
"""The project's own files, for the lints: what lies in the tree and is not built, fetched or ignored."""

import functools
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SKIPPED = {".git", "build", "__pycache__", "corpus", "vectors"}
ROOMS = ("include", "proto", "client", "daemon")


@functools.cache
def read(path):
    with open(f"{ROOT}/{path}", encoding="utf-8") as file:
        return file.read()


@functools.cache
def all_files():
    """Paths from the root, in order."""
    found = []
    for directory, names, files in os.walk(ROOT):
        names[:] = sorted(name for name in names if name not in SKIPPED)
        for name in files:
            path = os.path.relpath(f"{directory}/{name}", ROOT)
            if name not in SKIPPED and not os.path.islink(f"{ROOT}/{path}"):
                found.append(path)
    return sorted(found)


def files(*suffixes, rooms=None):
    return [path for path in all_files()
            if path.endswith(suffixes) and (rooms is None or path.startswith(tuple(f"{room}/" for room in rooms)))]


def is_text(path):
    with open(f"{ROOT}/{path}", "rb") as file:
        return b"\0" not in file.read(4096)


def scripts(*interpreters):
    """Files whose first line names one of the interpreters."""
    pattern = re.compile(r"#!/(?:usr/)?bin/(?:env )?(?:" + "|".join(interpreters) + r")\b")
    found = []
    for path in all_files():
        with open(f"{ROOT}/{path}", "rb") as file:
            if pattern.match(file.readline(80).decode(errors="replace")):
                found.append(path)
    return found


def includes(path):
    """What a C file includes from the tree, as paths from the root."""
    found = []
    for name in re.findall(r'^#\s*include\s+"([^"]+)"', read(path), re.M):
        beside = os.path.normpath(f"{os.path.dirname(path)}/{name}")
        found.append(beside if os.path.exists(f"{ROOT}/{beside}") else
                     f"include/{name}" if os.path.exists(f"{ROOT}/include/{name}") else name)
    return found


def without_comments(text):
    """C without comments and without the insides of strings; lines stay where they are."""
    def blank(match):
        token = match.group(0)
        return re.sub(r"[^\n]", " ", token) if token.startswith("/") else '""' if token.startswith('"') else token

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)
