"""Reading a server's log, whichever engine wrote it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvsim.calibration import vllm_log
from kvsim.calibration.text import plain
from kvsim.engines.sglang import calibration as sglang_log
from kvsim.files import read_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.calibration.startup import Startup


def read_startup(path: Path) -> Startup:
    """Read the start-up log of vLLM or SGLang.

    Raises
    ------
    ValueError
        If the file cannot be read, or is no such log.
    """
    try:
        text = plain(read_bytes(path).decode("utf-8", errors="replace"))
    except OSError as error:
        raise ValueError(f"--log {path}: cannot be read: {error.strerror or error}") from None
    if re.search(sglang_log.MARK, text):
        return sglang_log.startup_of(text)
    if re.search(vllm_log.MARK, text):
        return vllm_log.startup_of(text)
    raise ValueError(f"--log {path}: must be a start-up log of vLLM or SGLang")
