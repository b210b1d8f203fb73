"""Reading the recorded cases of every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kvsim.cases.case import Case
from kvsim.engines.registry import all_engines
from kvsim.errors import must_be
from kvsim.files import read_bytes

if TYPE_CHECKING:
    from kvsim.cases.part import RecordedCase


def read_case(path: str | Path) -> RecordedCase:
    """Read and check a case file, ``.json`` or ``.json.gz``.

    Raises
    ------
    ValueError
        In one line: the file, the wrong field, and what is wrong with it.
    """
    try:
        content = json.loads(read_bytes(Path(path)))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a JSON file: {error}") from None
    kind = _kind_of(content) if isinstance(content, dict) else Case
    try:
        return kind.model_validate(content, strict=False)
    except ValidationError as error:
        raise ValueError(f"{path}: {_wrong(error, kind)}") from None


def _kind_of(content: dict[str, Any]) -> type[RecordedCase]:
    """Return the class of a case: an engine's own, or vLLM's."""
    kinds = (engine.case_kind(content) for engine in all_engines().values())
    return next(filter(None, kinds), Case)


def _wrong(error: ValidationError, kind: type[RecordedCase]) -> str:
    """Return the field and the description of the first mistake, or all missing fields."""
    errors = error.errors()
    first = errors[0]
    needed = [name for name, field in kind.model_fields.items() if field.is_required()]
    if not first["loc"] and first["type"] != "value_error":
        return f"case: must be an object with {', '.join(needed)}"
    *inside, last = map(str, first["loc"]) if first["loc"] else ("case",)
    if first["type"] == "missing":
        beside = [e["loc"] for e in errors if e["type"] == "missing"]
        lacking = [str(loc[-1]) for loc in beside if loc[:-1] == first["loc"][:-1]]
        return f"{'.'.join(inside) or 'case'}: lacks {', '.join(lacking)}"
    return f"{'.'.join([*inside, last])}: {must_be(first)}"
