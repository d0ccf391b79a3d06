# SPDX-License-Identifier: Apache-2.0
"""The example programs against a daemon, as one runs them. Standard library only."""

import os
import subprocess

from books import BooksTest
from daemon import EXAMPLES


class ProgramsTest(BooksTest):
    """A program that start() began is ended with the test."""

    def programs_environment(self):
        return {**os.environ, "GPUIPC_SOCKET": self.daemon.socket}

    def start(self, program, *arguments):
        return self.owned_process(subprocess.Popen([f"{EXAMPLES}/{program}", *map(str, arguments)], stdout=subprocess.PIPE,
                                                   stderr=subprocess.PIPE, text=True, env=self.programs_environment()))
