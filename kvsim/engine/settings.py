"""Settings of a replica's parts, filled by field name from a configuration or a recorded case."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def by_name(settings: type[Any], *given: object) -> dict[str, Any]:
    """Return the fields of a dataclass that objects have; later objects override earlier ones."""
    names = [f.name for f in fields(settings)]
    return {name: getattr(one, name) for one in given for name in names if hasattr(one, name)}
