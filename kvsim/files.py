"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill; what is in it then appears in ``folder``, or nothing at all.

    Entries of the same name are replaced, others stay.

    Raises
    ------
    OSError
        If the folder cannot be made or written.
    """
    existed = folder.exists()
    temporary = folder / f".{os.getpid()}.tmp"
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for entry in sorted(temporary.iterdir()):
            target = folder / entry.name
            if target.is_dir():
                shutil.rmtree(target)
            entry.replace(target)
        temporary.rmdir()
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        if not existed:
            shutil.rmtree(folder, ignore_errors=True)
        raise
