"""Rules of which each kind of attention has a version; the number of the kind chooses it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class ByKind:
    """A rule of :class:`kvsim.attention.spec.AttentionSpec`; its first argument is the number.

    Compiled, it is a chain of comparisons, or the version itself if the number is a constant.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._versions: list[Any] = []
        self._kinds: Any = None

    def __call__(self, kind: int, *given: Any) -> Any:
        if self._kinds is not KINDS.found:
            self._versions, self._kinds = self.versions(), KINDS.found
        return self._versions[kind](*given)

    def versions(self) -> list[Any]:
        """Return the version of each kind, by number."""
        return [getattr(kind, self.name) for kind in KINDS.all()]


class Kinds:
    """The classes of the kinds of attention, by number."""

    def __init__(self) -> None:
        self.found: tuple[Any, ...] | None = None

    def all(self) -> tuple[Any, ...]:
        """Return the classes; full attention is the first one."""
        if self.found is None:
            self.found = import_module("kvsim.attention.spec").find_kinds()
        return self.found


KINDS = Kinds()
