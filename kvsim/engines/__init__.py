"""The engines that kvsim simulates, a folder each, with rooms like the package's own."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def room_paths(room: str) -> list[Path]:
    """Return the folders named ``room`` in the engines' folders, sorted."""
    return sorted(path for path in HERE.glob(f"*/{room}") if (path / "__init__.py").exists())


def packages(room: str) -> list[str]:
    """Return the packages named ``room`` in the engines' folders, sorted."""
    return [f"{__name__}.{path.parent.name}.{room}" for path in room_paths(room)]
