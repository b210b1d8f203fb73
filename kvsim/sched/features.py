"""The state of a replica's scheduler features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.dispatch import FEATURES
from kvsim.records.part import Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.features.feature import Feature
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory


def init_features(state: Replica, memory: Memory, chosen: Sequence[Feature]) -> None:
    """Lay out the features that are on; the parts of the others stay empty."""
    state.limits.has_features = bool(chosen)
    state.features = memory.records(Part, len(FEATURES.all()))
    for part, kind in zip(state.features, FEATURES.all(), strict=True):
        for feature in chosen:
            if type(feature) is kind:
                part.python = own = memory.one(kind)
                for name in kind.defaults():
                    setattr(own, name, getattr(feature, name))
                part.address = getattr(own, "address", 0)
