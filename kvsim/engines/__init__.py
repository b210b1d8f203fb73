"""The engines that kvsim simulates: one folder per engine, with subfolders named as in kvsim."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def room_paths(room: str) -> list[Path]:
    """Return the folders named ``room``: the common one, and one per engine that has it."""
    paths = [HERE / room, *sorted(HERE.glob(f"*/{room}"))]
    return [path for path in paths if (path / "__init__.py").exists()]


def packages(room: str) -> list[str]:
    """Return the packages of the folders named ``room``; see :func:`room_paths`."""
    names = [path.relative_to(HERE).parts for path in room_paths(room)]
    return [".".join((__name__, *parts)) for parts in names]
