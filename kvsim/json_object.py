"""vLLM's JSON flags: an object with the fields of a class as keys."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from kvsim.errors import unknown_name

if TYPE_CHECKING:
    from collections.abc import Collection


def parsed(given: object, example: str) -> dict[str, Any]:
    """Return a JSON object given as a dict or as text.

    Raises
    ------
    ValueError
        For a value that is not an object; the message contains ``example``.
    """
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError(f"must be an object such as {example}")
    return given


def read_object(
    given: object, kind: type[Any], what: str, example: str, ignored: Collection[str] = ()
) -> dict[str, Any]:
    """Read a JSON object, a text or a dict, as values by field of ``kind``; nulls are left out.

    Parameters
    ----------
    kind : a dataclass
    what : name of a key in errors, such as ``setting of a connector``
    example : the beginning of a valid object, for errors
    ignored : keys of vLLM's object that have no effect here

    Raises
    ------
    ValueError
        If the object is malformed or has unknown keys.
    """
    given = parsed(given, example)
    known = {f.name for f in fields(kind)}
    for key in given:
        if key not in known and key not in ignored:
            raise unknown_name(what, str(key), sorted(known))
    return {k: v for k, v in given.items() if k in known and v is not None}
