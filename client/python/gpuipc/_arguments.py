# SPDX-License-Identifier: Apache-2.0
"""What programs give to more than one function, checked and put as the library has it."""

from __future__ import annotations

import os
import re
from typing import Any, Optional, Union

from . import _native, errors

ANYONE = -2
UID_MAX = (1 << 32) - 2
Owner = Union[int, str, None]


def owner_number(owner: Owner) -> int:
    """A uid; None: the caller's own buffers or root's; "any": whoever's."""
    if owner is None:
        return -1
    if owner == "any":
        return ANYONE
    if isinstance(owner, str):
        raise errors.InvalidParameterError(f'owner: {owner!r} is no uid. Give a number, None for one\'s own or root\'s, or "any".',
                                           subject="owner")
    return _native.integer(owner, "owner", most=UID_MAX)


def mode_text(mode: Union[int, str, None]) -> Optional[bytes]:
    """0o640 or "0640".

    Raises:
        InvalidParameterError: it is another's kind of mode.
    """
    text = f"{mode:04o}" if isinstance(mode, int) else mode
    if isinstance(text, str) and not re.fullmatch("0?[0246]{3}", text):
        raise errors.InvalidParameterError(f"mode: {mode!r} is none: three or four octal digits with r and w bits only are wanted, such as "
                                           '"0640" or 0o640.', subject="mode")
    return _native.encode(text, "mode")


def socket_path(socket: Union[str, os.PathLike[str], None]) -> Optional[bytes]:
    if socket is None:
        return None
    try:
        path = os.fsencode(socket)
    except TypeError:
        raise TypeError(f"socket: a path is wanted, not {type(socket).__name__}") from None
    if b"\0" in path:
        raise errors.InvalidParameterError("socket: a NUL character cannot be part of a path.", subject="socket")
    return path


def check_access(access: Any) -> None:
    """InvalidParameterError: it is neither "rw" nor "ro"."""
    if access not in ("rw", "ro"):
        raise errors.InvalidParameterError(f'access: {access!r} is neither "rw" nor "ro".', subject="access")
