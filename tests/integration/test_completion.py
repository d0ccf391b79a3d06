# SPDX-License-Identifier: Apache-2.0
"""The completions in a real bash and a real zsh: every verb, every option, and what the daemon has."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from daemon import BUILD, GPUIPCCTL, GPUIPCD, Daemon  # noqa: E402

COMPLETIONS = f"{BUILD}/completions"
WAIT_S = 20


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True).stdout


def verbs():
    text = output(GPUIPCCTL, "help")
    return re.findall(r"^  ([a-z]+)\b", text[text.index("Verbs:"):text.index("Options of every verb")], re.M)


def options(text):
    return set(re.findall(r"^  (?:-\w,|   ) (--[a-z][a-z-]*)", text[text.index("\nOptions:"):], re.M))


class Bash(unittest.TestCase):
    def complete(self, *words, program="gpuipcctl", environment=None):
        """What is offered for the last word."""
        script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _%s; printf "%%s\\n" "${COMPREPLY[@]}"' % program)
        done = subprocess.run(["bash", "-c", script, "bash", f"{COMPLETIONS}/bash/{program}", program, *words], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, check=True,
                              env={"PATH": f"{BUILD}:{os.environ['PATH']}", **(environment or {})})
        return set(done.stdout.split("\n")) - {""}

    def test_verbs(self):
        self.assertEqual(self.complete(""), set(verbs()))
        self.assertEqual(self.complete("he"), {"help"})
        self.assertEqual(self.complete("help", "ver"), {"version"})
        self.assertEqual(self.complete("-"), {"--socket", "--help", "--version"})

    def test_options_of_each_verb(self):
        for verb in verbs():
            with self.subTest(verb):
                self.assertEqual(self.complete(verb, "--"), options(output(GPUIPCCTL, "help", verb)))

    def test_values(self):
        self.assertEqual(self.complete("alloc", "--handle", ""), {"auto", "memfd", "cuda-fd", "cuda-ipc"})
        self.assertEqual(self.complete("alloc", "--handle", "=", "cuda"), {"cuda-fd", "cuda-ipc"})
        self.assertIn("root", self.complete("list", "--uid", "ro"))
        self.assertIn("root", self.complete("list", "-u", "ro"))
        self.assertIn("/etc/passwd", self.complete("put", "name", "/etc/pass"))
        self.assertIn("G101", self.complete("doctor", "G1"))
        self.assertEqual(self.complete("put", ""), set())

    def test_a_letter_means_what_the_verb_says(self):
        """-w takes a time with get and nothing with list."""
        self.assertEqual(self.complete("get", "-w", ""), set())
        self.assertIn("--bytes", self.complete("list", "-w", "--by"))

    def test_a_command_of_ones_own(self):
        self.assertIn("env", self.complete("hold", "name", "--", "en"))
        self.assertIn("/etc/passwd", self.complete("hold", "name", "--", "cat", "/etc/pass"))

    def test_what_the_daemon_has(self):
        with Daemon() as daemon, daemon.client() as client:
            client.call("Allocate", {"size": 4096, "name": "models/weights"})
            environment = {"GPUIPC_SOCKET": daemon.socket}
            self.assertEqual(self.complete("get", "mod", environment=environment), {"models/weights"})
            self.assertEqual(self.complete("free", "", environment=environment), {"models/weights"})
            self.assertEqual(self.complete("list", "--name", "", environment=environment), {"models/weights"})
            self.assertEqual(len(self.complete("kick", "", environment=environment)), 1)
            self.assertEqual(self.complete("alloc", "--device", "ho", environment=environment), {"host"})

    def test_the_daemon_s_options(self):
        told = set(re.findall(r"^  (--[a-z-]+)", output(GPUIPCD, "--help"), re.M))
        self.assertGreater(len(told), 20)
        self.assertEqual(self.complete("--", program="gpuipcd"), told)
        self.assertEqual(self.complete("--backend", "=", "", program="gpuipcd"), {"auto", "host", "cuda"})
        self.assertEqual(self.complete("--trust-release", "", program="gpuipcd"), {"yes", "no"})
        self.assertIn("root", self.complete("--allow-users", "roo", program="gpuipcd"))


@unittest.skipUnless(shutil.which("zsh"), "there is no zsh")
class Zsh(unittest.TestCase):
    """One shell at a terminal, asked as a person does."""

    @classmethod
    def setUpClass(cls):
        cls.pid, cls.terminal = pty.fork()
        if cls.pid == 0:
            os.execvpe("zsh", ["zsh", "-f", "-i"], {"PATH": f"{BUILD}:{os.environ['PATH']}", "TERM": "dumb", "LC_ALL": "C.UTF-8", "COLUMNS": "200",
                                                    "LINES": "200", "HOME": os.environ.get("TMPDIR", "/tmp")})
        cls.addClassCleanup(cls.end)
        cls.say("PROMPT='ready$'; setopt no_beep no_always_last_prompt; LISTMAX=0; stty cols 200 rows 200\n")
        cls.say(f"fpath=({COMPLETIONS}/zsh $fpath); autoload -Uz compinit; compinit -u -D; zstyle ':completion:*' list-prompt ''; echo do''ne\n")
        cls.hear(r"(?s)\bdone\b.*ready\$")

    @classmethod
    def end(cls):
        os.kill(cls.pid, 9)
        os.waitpid(cls.pid, 0)
        os.close(cls.terminal)

    @classmethod
    def say(cls, text):
        os.write(cls.terminal, text.encode())

    @classmethod
    def hear(cls, wanted):
        """What the terminal shows until the pattern fits."""
        text, deadline = "", time.monotonic() + WAIT_S
        while not re.search(wanted, text):
            ready, _, _ = select.select([cls.terminal], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise AssertionError(f"not within {WAIT_S} s: {wanted!r} in {text!r}")
            text += os.read(cls.terminal, 65536).decode(errors="replace")
        return text

    def complete(self, line):
        """The words listed for a line, or what it was completed to."""
        # Control-D lists, control-U takes the line away; the terminal is the shell's own only once it has prompted.
        self.say(f"{line}\x04\x15echo the''re\n")
        return self.hear(r"(?s)\nthere\r.*ready\$")

    def test_verbs(self):
        shown = self.complete("gpuipcctl ")
        for verb in verbs():
            self.assertRegex(shown, rf"\b{verb}\b +-- ")

    def test_options_of_each_verb(self):
        for verb in verbs():
            with self.subTest(verb):
                shown = self.complete(f"gpuipcctl {verb} --")
                for option in options(output(GPUIPCCTL, "help", verb)):
                    self.assertRegex(shown, rf"{option}\b")

    def test_values(self):
        shown = self.complete("gpuipcctl alloc --handle ")
        for kind in ("auto", "memfd", "cuda-fd", "cuda-ipc"):
            self.assertIn(kind, shown)

    def test_the_daemon_s_options(self):
        shown = self.complete("gpuipcd --")
        for option in re.findall(r"^  (--[a-z-]+)", output(GPUIPCD, "--help"), re.M):
            self.assertIn(option, shown)
        self.assertRegex(self.complete("gpuipcd --backend="), r"auto +cuda +host|auto +host +cuda")


if __name__ == "__main__":
    unittest.main()
