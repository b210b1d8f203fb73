"""Digest of a cell: a hash of all inputs of its numbers."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.entry_points import kvsim_version
from kvsim.parametric import only_here, state_of
from kvsim.registry import current_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvsim.config import RunConfig

#: Options that select the requests. A cell's digest has the digest of the requests in their place,
#: so that a moved trace file, or a rate equal to the default, gives the same cell.
REQUESTS = {"workload", "trace", "tokenizer", "request_rate", "num_requests", "trace_digest"}

_PLUG_IN = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):[A-Za-z_]\w*")


def digest_of(ingredients: Mapping[str, Any]) -> str:
    """Return sixteen hex digits that identify a cell."""
    text = json.dumps(ingredients, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def ingredients_of(config: RunConfig, trace_digest: str) -> dict[str, Any]:
    """Return the inputs of a cell's numbers, as JSON types.

    Parameters
    ----------
    config : configuration with its defaults, so that a changed default gives another cell
    trace_digest : digest of the requests that are served
    """
    options = {
        name: _plain(getattr(config, name))
        for name in type(config).model_fields
        if name not in REQUESTS
    }
    return {
        "config": options,
        "seed": config.seed,
        "trace_digest": trace_digest,
        "input_files": {name: _hashed(path) for name, path in sorted(_inputs(options))}
        | {name: _digits(state_of(name)) for text in options.values() for name in only_here(text)},
        "kvsim_version": kvsim_version(),
        "physics_revision": physics_revision(),
    }


@cache
def physics_revision(package: Path = Path(__file__).parents[1]) -> str:
    """Return sixteen hex digits over the package's files, code and constants.

    An edit of any file gives new cells, without a version number to increment.
    """
    whole = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        inside = path.relative_to(package)
        hidden = any(part.startswith((".", "__pycache__")) for part in inside.parts)
        if path.is_file() and not hidden:
            whole.update(f"{inside.as_posix()} {_hashed(path)}\n".encode())
    return whole.hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Return a value in the types of JSON, which has no infinity."""
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _inputs(value: Any) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of each file that options name, plug-in modules included."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _inputs(one)
    elif isinstance(value, str):
        for part in re.split(r"[+=]", value):
            script = part.partition(".py:")[0] + ".py"
            for path in (Path(part), Path(part) / "config.json", Path(script)):
                if part and _is_file(path):
                    yield path.as_posix(), path
            plug_in = _PLUG_IN.match(part)
            source = _source(plug_in[1]) if plug_in else None
            if plug_in and source is not None:
                yield plug_in[1], source


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a JSON object is too long for a file's name
        return False


def _source(module: str) -> Path | None:
    """Return the file of a module, without running it."""
    try:
        with current_folder():
            spec = find_spec(module)
    except (ImportError, ValueError):  # the run of the cell raises the error
        return None
    return Path(spec.origin) if spec and spec.origin and _is_file(Path(spec.origin)) else None


def _hashed(path: Path) -> str:
    return _digits(path.read_bytes())


def _digits(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
