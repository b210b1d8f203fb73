"""Reads benchmark files of all supported tools."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

from kvsim.calibration import aiperf, guidellm, inference_perf, request_log, vllm_bench
from kvsim.files import read_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.calibration.bench import Measured

#: Each returns None for a file of another tool.
READERS = (vllm_bench.runs, guidellm.runs, inference_perf.runs, aiperf.runs, request_log.runs)


def read_bench(path: Path, range_ratio: float = 0.0) -> list[Measured]:
    """Read the runs in a file of a benchmark tool, or in a log of requests.

    Raises
    ------
    ValueError
        If the file cannot be read, or has no known format.
    """
    try:
        text = read_bytes(path).decode("utf-8")
    except OSError as error:
        raise ValueError(f"--bench {path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"--bench {path}: no UTF-8 text") from None
    content = _parsed(text)
    try:
        for reader in READERS:
            found = reader(path.name, content, range_ratio)
            if found is not None:
                return found
    except ValueError as error:
        raise ValueError(f"--bench {path}: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        what = f"{type(error).__name__} {error}".strip()
        raise ValueError(f"--bench {path}: damaged, or of an unknown version ({what})") from None
    raise ValueError(
        f"--bench {path}: must be a result of vllm bench serve, GuideLLM, inference-perf "
        "or aiperf, or a log of requests with times"
    )


def _parsed(text: str) -> Any:
    """Return a JSON document, the objects of JSON lines, or the rows of a CSV table."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        return [json.loads(line) for line in lines]
    except ValueError:
        return list(csv.DictReader(lines)) if lines and "," in lines[0] else None
