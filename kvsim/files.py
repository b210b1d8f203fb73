"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Fill a file beside ``path``, then put it in its place in one step.

    A pipe or a device is written to as it is.

    Raises
    ------
    OSError
        If the folder cannot be written; nothing is left behind.
    """
    path = path.resolve()  # a link keeps pointing at what it names
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            write(device)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    file = temporary.open("xb")
    try:
        with file:
            write(file)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
