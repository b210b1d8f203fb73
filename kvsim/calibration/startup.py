"""Contents of a server's start-up log: engine, version, model, options, memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Startup:
    """Facts of a start-up log.

    Parameters
    ----------
    engine : name of the engine
    version : e.g. ``0.19.0``; empty if not logged
    args : options by vLLM's names, as the server resolved them
    memory : GiB on one GPU by part of the budget, as in ``--logged``
    num_gpu_blocks, num_tokens : size of the KV cache; None if not logged
    device : the GPU's name in the driver; empty if not logged
    notes : remarks on the log for the user
    """

    engine: str
    version: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    num_gpu_blocks: int | None = None
    num_tokens: int | None = None
    device: str = ""
    notes: tuple[str, ...] = ()


def device_of(text: str) -> str:
    """Return the driver's name of the first GPU; empty if the log does not have it."""
    found = re.search(r"GPU 0: ([^\n(]+)", text) or re.search(r"\|\s+0\s+(NVIDIA .+?)\s{2,}", text)
    return found[1].strip() if found else ""
