"""Recorded cases as parameters of tests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"


def name_of(path: Path) -> str:
    return path.name.partition(".")[0]


def smallest(paths: list[Path], number: int = 3) -> list[Any]:
    """Return all files as parameters; all but the smallest of each folder are long tests."""
    seen: Counter[Path] = Counter()
    quick = set()
    for path in sorted(paths, key=lambda path: path.stat().st_size):
        seen[path.parent] += 1
        if seen[path.parent] <= number:
            quick.add(path)
    return [
        pytest.param(
            path,
            marks=[] if path in quick else [pytest.mark.long],
            id=f"{path.parent.name}-{name_of(path)}",
        )
        for path in paths
    ]
