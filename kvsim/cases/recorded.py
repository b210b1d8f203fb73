"""Reading recorded cases, whichever engine they were recorded from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

from pydantic import ValidationError

from kvsim.cases.case import Case
from kvsim.cases.radix import RadixCase
from kvsim.cases.sglang import SglangCase
from kvsim.files import read_bytes

#: A schedule of vLLM or of SGLang, or operations on SGLang's tree.
Recorded: TypeAlias = Case | SglangCase | RadixCase


def read_case(path: str | Path) -> Recorded:
    """Read and check a case file, ``.json`` or ``.json.gz``.

    Raises
    ------
    ValueError
        One line: the file, the place in it and what is wrong there.
    """
    try:
        content = json.loads(read_bytes(Path(path)))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a JSON file: {error}") from None
    kind: type[Recorded] = Case
    if isinstance(content, dict) and "sglang" in content:
        kind = RadixCase if "ops" in content else SglangCase
    try:
        return kind.model_validate(content, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "case"
        reason = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{path}: {place}: {reason}") from None
