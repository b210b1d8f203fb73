"""The syntax of allocators: ``BASE[+KEY[=VALUE]]...``; KEY is a modifier or a parameter of BASE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kvsim.budget.layout import KV_DTYPES
from kvsim.errors import unknown_name
from kvsim.kv.manager import ALLOCATORS
from kvsim.registry import parse_spec
from kvsim.speculation import SpeculativeConfig

if TYPE_CHECKING:
    from collections.abc import Mapping


class AllocatorSpec(NamedTuple):
    """An allocator's name with its modifiers.

    ``params`` are parameters of the allocator. The fields after ``params`` come from modifiers.
    Unless they are None or False, they override the model and the flags.
    """

    base: str
    params: dict[str, object]
    kv_cache_dtype: str | None = None
    num_kv_heads: int | None = None
    window: int | None = None
    kv_lora_rank: int | None = None
    swap: bool = False
    speculation: SpeculativeConfig | Literal["none"] | None = None

    @property
    def what_if(self) -> dict[str, int | None]:
        """Overrides of the model's attention by name; None for no override."""
        return {name: getattr(self, name) for name, _ in NUMBERED.values()}


#: Modifiers without a value: the field and the value that each sets.
WITHOUT_VALUE: dict[str, tuple[str, object]] = {
    **{name: ("kv_cache_dtype", name) for name in KV_DTYPES},
    "mqa": ("num_kv_heads", 1),
    "swap": ("swap", True),
}
#: Modifiers with a number: the field that each sets, and an example.
NUMBERED = {"window": ("window", 4096), "gqa": ("num_kv_heads", 8), "mla": ("kv_lora_rank", 512)}


def _positive(key: str, value: str | None) -> int:
    if value is None or not value.isdigit() or int(value) < 1:
        example = f"{key}={NUMBERED[key][1]}"
        raise ValueError(f"{key} needs a whole number of at least 1, e.g. {example}")
    return int(value)


def _speculation(value: str | None) -> SpeculativeConfig | Literal["none"]:
    """Parse METHOD:DRAFTS[:LENGTH]; LENGTH is the mean number of tokens per verification."""
    if value == "none":
        return "none"
    method, _, rest = (value or "").partition(":")
    drafts, _, length = rest.partition(":")
    if not drafts.isdigit():
        raise ValueError("spec needs METHOD:DRAFTS[:LENGTH], e.g. spec=eagle3:3:2.4, or none")
    given: dict[str, object] = {"method": method, "num_speculative_tokens": int(drafts)}
    if length:
        try:
            given["synthetic_acceptance_length"] = float(length)
        except ValueError:
            raise ValueError(f"spec: length is {length!r}, must be a number") from None
    return SpeculativeConfig.of(given)


def _modifier(key: str, value: str | None) -> tuple[str, object]:
    """Return (field, value) that a modifier sets; the field is empty for other keys."""
    if key in NUMBERED:
        return NUMBERED[key][0], _positive(key, value)
    if key == "spec":
        return "speculation", _speculation(value)
    if key in WITHOUT_VALUE and value is not None:
        raise ValueError(f"{key} takes no value")
    return WITHOUT_VALUE.get(key, ("", None))


def parse_allocator(text: str) -> AllocatorSpec:
    """Parse an allocator's name with its modifiers and parameters.

    Modifiers: ``int8``, ``fp8``, ``int4``, ``bf16``, ``fp16``, ``fp32`` (KV dtype), ``window=N`` (a
    sliding window of N tokens on every layer), ``gqa=N`` and ``mqa`` (N or 1 KV heads), ``mla=N``
    (a latent of N elements instead of keys and values), ``swap`` (preempted requests are swapped to
    host memory), ``spec=METHOD:DRAFTS[:LENGTH]`` (speculative decoding; ``spec=none``: without).

    Raises
    ------
    ValueError
        For an unknown base or key, a missing or wrong value, or contradictory modifiers.

    Examples
    --------
    >>> parse_allocator("paged+int8+block-size=32").params
    {'block_size': 32}
    """
    base, keys = parse_spec(text)
    ALLOCATORS.get(base)
    params: dict[str, object] = {}
    changes: dict[str, Any] = {}
    own = ALLOCATORS.parameters(base)
    for key, value in keys.items():
        try:
            field, setting = _modifier(key, value)
        except ValueError as error:
            raise ValueError(f"allocator {text!r}: {error}") from None
        if field:
            if field in changes:
                raise ValueError(f"allocator {text!r}: two modifiers set the same thing")
            changes[field] = setting
        elif key in own:
            if value is None:
                raise ValueError(f"allocator {text!r}: {key.replace('_', '-')} needs a value")
            params[key] = value
        else:
            known = [*KV_DTYPES, *NUMBERED, "mqa", "swap", "spec"]
            known += [p.replace("_", "-") for p in own]
            unknown = unknown_name("modifier", key.replace("_", "-"), known)
            raise ValueError(f"allocator {text!r}: {unknown}{_of_policy(keys, key)}")
    if "num_kv_heads" in changes and "kv_lora_rank" in changes:
        raise ValueError(f"allocator {text!r}: a latent has no KV heads; give mla, gqa or mqa")
    return AllocatorSpec(base, ALLOCATORS.check_params(base, params), **changes)


def _of_policy(keys: Mapping[str, str | None], key: str) -> str:
    """Return a hint if a key may be a parameter of the eviction policy, else an empty string."""
    policy = keys.get("eviction")
    if policy is None or list(keys).index("eviction") > list(keys).index(key):
        return ""
    setting = key.replace("_", "-") + ("" if keys[key] is None else f"={keys[key]}")
    return f"; a parameter of the eviction policy follows a colon: eviction={policy}:{setting}"
