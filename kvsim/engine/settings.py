"""Settings of a replica's parts, filled by field name from a configuration or a recorded case."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def by_name(settings: type[Any], given: object) -> dict[str, Any]:
    """Return the fields of a dataclass of settings that another object has under their names."""
    names = [f.name for f in fields(settings) if hasattr(given, f.name)]
    return {name: getattr(given, name) for name in names}
