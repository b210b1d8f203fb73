"""Rules with a version for each kind of attention, or for each feature of the scheduler."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.records.part import Part


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


class Hook:
    """A method of :class:`kvsim.features.feature.Feature`; its first argument are the features.

    The features that are on are called in order, until one returns True.

    Parameters
    ----------
    name : name of the method
    passes : instead, each feature returns the last argument for the next one
    """

    def __init__(self, name: str, *, passes: bool = False) -> None:
        self.name, self.passes = name, passes

    def __call__(self, parts: list[Part], *given: Any) -> Any:
        for part in parts:
            if part.python is not None:
                found = getattr(part.python, self.name)(*given)
                if self.passes:
                    given = (*given[:-1], found)
                elif found:
                    return True
        return given[-1] if self.passes else False


class Found:
    """Classes that a function finds when they are first needed; those outside of kvsim come last.

    Parameters
    ----------
    module, function : the function that returns the classes
    """

    def __init__(self, module: str, function: str) -> None:
        self.module, self.function = module, function
        self.found: tuple[Any, ...] | None = None

    def all(self) -> tuple[Any, ...]:
        """Return the classes in their order."""
        if self.found is None:
            self.found = getattr(import_module(self.module), self.function)()
        return self.found

    def outside(self) -> list[Any]:
        """Return the classes that no file of kvsim defines."""
        return [one for one in self.all() if not one.__module__.startswith("kvsim.")]


#: The kinds of attention, by number, and the features of vLLM's scheduler, in the order of calls.
KINDS = Found("kvsim.attention.spec", "find_kinds")
FEATURES = Found("kvsim.features.feature", "find_features")
