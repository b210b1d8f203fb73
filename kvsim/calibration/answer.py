"""The results of a calibration as JSON, and as a file of constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tomli_w

from kvsim.calibration.calibrate import mean_error
from kvsim.calibration.parameters import constants
from kvsim.catalog import get_gpu, get_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.calibration.calibrate import Calibration
    from kvsim.calibration.memory import Overhead
    from kvsim.calibration.server import Server
    from kvsim.calibration.startup import Startup


def answer_of(
    startup: Startup | None,
    server: Server,
    overhead: Overhead | None,
    found: Calibration | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    memory = None
    if overhead is not None:
        memory = {
            "overhead_gib": overhead.gib,
            "low": overhead.gib - overhead.half_width,
            "high": overhead.gib + overhead.half_width,
            "estimated_gib": overhead.estimated,
            "logged": overhead.parts,
        }
    return {
        "engine": None if startup is None else startup.engine,
        "version": None if startup is None else startup.version or None,
        "server": {k: v for k, v in server.options.items() if v is not None},
        "memory": memory,
        "constants": [] if found is None else [e._asdict() for e in found.estimates],
        "fitted": [] if found is None else [e._asdict() for e in found.errors],
        "held_out": [] if found is None else [e._asdict() for e in found.held_out],
        "error_percent": None if found is None else _means(found),
        "unmodelled": list(server.unmodelled),
        "notes": [*server.notes, *notes],
    }


def _means(found: Calibration) -> dict[str, float | None]:
    return {
        f"{kind}_{when}": mean_error(errors, after=when == "after")
        for kind, errors in (("fitted", found.errors), ("held_out", found.held_out))
        for when in ("before", "after")
    }


def constants_file(answer: Mapping[str, Any], values: Mapping[str, float]) -> str:
    """Return the TOML for ``--cost-model roofline+constants=FILE`` and ``--logged FILE``."""
    card = get_gpu(answer["server"]["gpu"]).name
    lines = ["# Made by kvsim calibrate. A factor multiplies constants of the GPU; 95 % intervals."]
    for one in answer["constants"]:
        told = f"{one['value']:.4g}"
        if one["reason"]:
            lines.append(f"# {one['name']}: not determined, stays {told}: {one['reason']}")
        else:
            lines.append(f"# {one['name']} {told}, {one['low']:.4g} to {one['high']:.4g}")
    means = answer["error_percent"] or {}
    if means.get("held_out_after") is not None:
        lines.append(
            f"# held-out runs: {means['held_out_before']:.1f} % off before, "
            f"{means['held_out_after']:.1f} % after"
        )
    if "front_end_latency" in values:
        lines.append(f"# also set --front-end-latency {values['front_end_latency']:.4g}")
    own = constants(card, values)
    model = None
    if "hf_config_path" not in answer["server"]:
        model = get_model(answer["server"]["model"])
    if model is not None and not model.is_moe:
        own.pop("experts", None)
    if model is not None and not (answer["server"].get("quantization") or model.quantization):
        own.pop("gemms", None)
    tables: dict[str, Any] = {card: _rounded(own)}
    if answer["memory"] is not None:
        tables["logged"] = answer["memory"]["logged"]
    return "\n".join(lines) + "\n\n" + tomli_w.dumps(tables)


def _rounded(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _rounded(value) if isinstance(value, dict) else float(f"{value:.4g}")
        for name, value in table.items()
    }


def undecided(answer: Mapping[str, Any], values: Mapping[str, float]) -> list[str]:
    """Return a note if the calibration changes no step time."""
    if values:
        return []
    why = "these runs determine no constant" if answer["constants"] else "no --bench is given"
    return [f"{why}: step times stay those of {answer['server']['gpu']}"]


def worse(answer: Mapping[str, Any]) -> list[str]:
    """Return a note if a fit predicts the held-out file worse than the defaults."""
    means = answer["error_percent"]
    if not means or means["held_out_after"] is None:
        return []
    if means["held_out_after"] <= means["held_out_before"]:
        return []
    return [
        "the fitted constants predict the held-out file worse than the defaults: keep the "
        "defaults, or fit on more runs"
    ]
