"""``kvsim/options.py``: the types of all options, made from the fields of the configuration."""

from __future__ import annotations

import textwrap
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.config import Config, RunConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

FILE = Path(__file__).resolve().parents[2] / "kvsim" / "options.py"

#: Types that a validator also takes, where the annotation names only what it makes of them.
ALSO = {
    **dict.fromkeys(("max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes"), "str"),
    **dict.fromkeys(("hf_overrides", "compilation_config"), "Mapping[str, Any]"),
    "speculative_config": "Mapping[str, Any] | str",
    "kv_transfer_config": "Mapping[str, Any] | str",
    "kv_events_config": "Mapping[str, Any] | str",
    "cudagraph_capture_sizes": "Sequence[int] | str",
    "pool": "Sequence[Mapping[str, Any]]",
}

#: Options that name a part, and take it as an object, too.
OF_PARTS = frozenset(
    (
        *("allocator", "scheduler", "router", "prefill_router", "flow_control", "cost_model"),
        *("disaggregation", "kv_store", "autoscaler", "migration"),
    )
)

#: Columns of a line, as ``ruff format`` has them.
WIDTH = 100

HEAD = '''"""Types of a run's options for editors and checkers, made by ``docs/generate.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

{imports}


class Options(TypedDict, total=False):
    """The options of :func:`kvsim.simulate` and similar functions: fields of :class:`kvsim.Config`.

    ``def study(**options: Unpack[kvsim.Options])`` passes them on with their types. None lets
    the engine choose for the model and GPU. An option that is not given has its default.
    """

    eviction: PartLike
    """eviction policy of the prefix cache, a parameter of the allocator [lru]."""
'''

RUN = '''

class RunOptions(Options, total=False):
    """The options of :func:`kvsim.sweep` and :func:`kvsim.search`: also those of their requests."""
'''


def options_file() -> str:
    """Return the text of ``kvsim/options.py``."""
    imports: dict[str, set[str]] = {}
    own = Config.model_fields
    of_requests = {k: v for k, v in RunConfig.model_fields.items() if k not in own}
    body = _fields(own, imports) + RUN + _fields(of_requests, imports)
    lines = "\n".join(
        f"    from {module} import {', '.join(sorted(names))}"
        for module, names in sorted(imports.items())
    )
    return HEAD.replace("{imports}", lines) + body


def _fields(fields: Mapping[str, FieldInfo], imports: dict[str, set[str]]) -> str:
    return "".join(_field(name, field, imports) for name, field in fields.items())


def _field(name: str, field: FieldInfo, imports: dict[str, set[str]]) -> str:
    """Return an option with its type, and its help as the text that an editor shows."""
    parts = _types(field.annotation, imports)
    if name in OF_PARTS:
        imports.setdefault("kvsim.parametric", set()).add("PartLike")
        parts[parts.index("str")] = "PartLike"
    if name in ALSO:
        parts.insert(-1 if parts[-1] == "None" else len(parts), ALSO[name])
    said = str(field.description).removesuffix(".") + "."
    text = textwrap.wrap(said, WIDTH - len('    """"""'), break_on_hyphens=False)
    end = "\n    " if len(text) > 1 else ""
    joined = "\n    ".join(text)
    line = f"    {name}: {' | '.join(parts)}"
    if len(line) > WIDTH:  # one long Literal
        line = line.replace("[", "[\n        ").replace("]", "\n    ]")
    return f'\n{line}\n    """{joined}{end}"""\n'


def _types(kind: Any, imports: dict[str, set[str]]) -> list[str]:
    """Return the types of an annotation as Python writes them, without bounds, None at the end."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _types(inner[0], imports)
    if origin in (typing.Union, types.UnionType):
        found = [text for part in inner for text in _types(part, imports)]
        return sorted(dict.fromkeys(found), key=lambda text: text == "None")
    if origin is typing.Literal:
        values = ", ".join(f'"{value}"' for value in inner)
        return [f"Literal[{values}]"]
    if origin is dict:
        key, value = (" | ".join(_types(part, imports)) for part in inner)
        return [f"Mapping[{key}, {value}]"]
    if origin is tuple:
        return [f"tuple[{_types(inner[0], imports)[0]}, ...]"]
    if kind is types.NoneType:
        return ["None"]
    if kind is Any:
        return ["Any"]
    if kind.__module__ != "builtins":
        imports.setdefault(kind.__module__, set()).add(kind.__name__)
    return [str(kind.__name__)]
