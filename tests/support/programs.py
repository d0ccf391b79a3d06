# SPDX-License-Identifier: Apache-2.0
"""The example programs against a daemon, as one runs them. Standard library only."""

import os
import subprocess
import types

from books import BooksTest
from daemon import EXAMPLES


class ProgramsTest(BooksTest):
    """A program that start() began is ended with the test."""

    def programs_environment(self):
        return {**os.environ, "GPUIPC_SOCKET": self.daemon.socket}

    def start(self, program, *arguments):
        process = subprocess.Popen([f"{EXAMPLES}/{program}", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=self.programs_environment())
        self.owned(types.SimpleNamespace(end=lambda: self.finish(process)))
        return process

    def finish(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
