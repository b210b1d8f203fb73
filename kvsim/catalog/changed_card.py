"""GPUs given as a catalogue card with changes: ``h200-sxm+memory=96GiB+name=h20``."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.catalog.spec import GpuSpec

#: Keys, and the fields that they set; the key ``memory`` sets the nominal memory.
FIELDS = {
    "visible_memory": "memory_bytes",
    "bandwidth": "memory_bandwidth_bytes_per_s",
    "flops": "bf16_flops_per_s",
    "fp8_flops": "fp8_flops_per_s",
    "int8_ops": "int8_ops_per_s",
    "fp4_flops": "fp4_flops_per_s",
    "nvlink": "nvlink_bytes_per_s",
    "pcie": "pcie_bytes_per_s",
    "l2": "l2_bytes",
    "sms": "num_sms",
}
KEYS = ("name", "memory", *FIELDS)
_UNITS = {"": 1, "K": 1000, **{letter: 1000 ** (n + 1) for n, letter in enumerate("kMGTP")}}
_UNITS |= {f"{letter}i": 1024 ** (n + 1) for n, letter in enumerate("KMGTP")}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)([kKMGTP]i?)?(B|B/s|FLOP/s|FLOPS|OP/s)?")


def changed(base: GpuSpec, changes: Mapping[str, str | None], text: str) -> GpuSpec:
    """Return a card with some figures replaced.

    ``memory`` is the nominal memory; CUDA reports the same share of it as on the base card.

    Raises
    ------
    ValueError
        For an unknown key, and for a value that is not a number.
    """
    fields: dict[str, Any] = {}
    for key, value in changes.items():
        if key not in KEYS:
            known = ", ".join(one.replace("_", "-") for one in KEYS)
            said = key.replace("_", "-")
            raise ValueError(f"GPU {text!r}: no key {said!r} (its keys: {known})")
        if value is None:
            raise ValueError(f"GPU {text!r}: {key.replace('_', '-')} needs a value")
        if key == "name":
            continue
        number = _number(key, value, text)
        if key == "memory":
            share = base.memory_bytes / base.nominal_memory_bytes
            fields |= {"nominal_memory_bytes": int(number), "memory_bytes": int(number * share)}
        else:
            name = FIELDS[key]
            fields[name] = number if name.endswith("_per_s") else int(number)
    if "visible_memory" in changes:  # overrides the share of the base card
        fields["memory_bytes"] = int(
            _number("visible_memory", str(changes["visible_memory"]), text)
        )
    told = set(fields)
    unverified = tuple(name for name in base.unverified if name not in told)
    name = changes.get("name") or text
    source = f"as {base.name}, with the user's changes"
    return replace(base, name=name, source=source, aliases=(), unverified=unverified, **fields)


def _number(key: str, value: str, text: str) -> float:
    found = _NUMBER.fullmatch(value)
    number = 0.0 if found is None else float(found[1]) * _UNITS.get(found[2] or "", 0)
    if number <= 0:
        said = key.replace("_", "-")
        raise ValueError(f"GPU {text!r}: {said}={value}: must be a number, such as 96GiB or 4TB/s")
    return number
