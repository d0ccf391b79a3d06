# SPDX-License-Identifier: Apache-2.0
"""Locks of the package's own tables, which a forked child may need, too."""

from __future__ import annotations

import os
import threading
from typing import Any


def table_lock(place: dict[str, Any], name: str) -> Any:
    """A lock for a module's global of that name. A forked child has another there, which nobody has: who had the parent's is not there to
    give it back. The same thread may take it again, as in a finalizer."""
    def renew() -> None:
        place[name] = threading.RLock()

    renew()
    os.register_at_fork(after_in_child=renew)
    return place[name]
