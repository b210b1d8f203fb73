"""Parts (allocators, routers, ...) of installed packages: entry points in the groups ``kvsim.*``.

A package declares a part in its ``pyproject.toml``, and kvsim finds it by its name:

    [project.entry-points."kvsim.allocators"]
    half-paged = "my_package.allocators:HalfPaged"
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Offer(NamedTuple):
    """One entry point: the name of a part, its path (``module:object``), and its package."""

    name: str
    path: str
    package: str
    entry: EntryPoint

    def __str__(self) -> str:
        return f"{self.path} of the installed package {self.package}"

    def load(self, what: str) -> object:
        """Import the part.

        Raises
        ------
        ValueError
            For any exception of the package's code; the message names the package.
        """
        try:
            return self.entry.load()
        except Exception as error:  # a third-party module may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"cannot import {what} {self.name!r}: {self} ({reason})") from error

    def is_imported_as(self, part: object) -> bool:
        """Return True if the part is already imported. Imports nothing."""
        module = sys.modules.get(self.entry.module)
        return module is not None and getattr(module, self.entry.attr, None) is part


@cache
def _every_group() -> dict[str, list[EntryPoint]]:
    """Read the entry points of installed packages, once for all registries."""
    from importlib.metadata import entry_points

    found = entry_points()
    groups = [group for group in found.groups if group.startswith("kvsim.")]
    return {group: list(found.select(group=group)) for group in groups}


@cache
def kvsim_version() -> str:
    """Return the version of the installed package, "unknown" for a checkout alone."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kvsim")
    except PackageNotFoundError:
        return "unknown"


def offers(group: str) -> dict[str, list[Offer]]:
    """Return the offers of installed packages in a group, by name. Imports none of them."""
    found: dict[str, list[Offer]] = {}
    for entry in _every_group().get(group, []):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "without a name"
        found.setdefault(entry.name, []).append(Offer(entry.name, entry.value, package, entry))
    return found
