"""Reads start-up logs of all engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.calibration.text import plain
from kvsim.engines.registry import all_engines
from kvsim.files import read_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.calibration.startup import Startup


def read_startup(path: Path) -> Startup:
    """Read a start-up log.

    Raises
    ------
    ValueError
        If the file cannot be read, or is no start-up log of a known engine.
    """
    try:
        text = plain(read_bytes(path).decode("utf-8", errors="replace"))
    except OSError as error:
        raise ValueError(f"--log {path}: cannot be read: {error.strerror or error}") from None
    for engine in reversed(all_engines().values()):  # vLLM last: its marks are the loosest
        if engine.is_log(text):
            return engine.startup_of(text)
    titles = " or ".join(one.title for one in all_engines().values() if one.log_mark is not None)
    raise ValueError(f"--log {path}: must be a start-up log of {titles}")
