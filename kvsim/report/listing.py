"""``kvsim list``: the available parts, by name."""

from __future__ import annotations

import inspect
import re
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import unknown_name
from kvsim.report.narrow import plain_table
from kvsim.report.text import GIB, number

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from rich.table import Table

    from kvsim.catalog.spec import ModelSpec
    from kvsim.registry import Registry

    Row = Sequence[str] | None


#: References of reStructuredText, such as :class:`kvsim.Trace`.
_MARKUP = re.compile(r":\w+:`~?([^`]*)`")


def _table(headings: Sequence[str], rows: Iterable[Row], caption: str | None = None) -> Table:
    return plain_table(headings, rows, "Ll", padding=(0, 1), overflow="fold", caption=caption)


def kv_bytes(model: ModelSpec) -> int:
    """Return the bytes of KV per token in 16 bits; compressed KV has only FP8."""
    from kvsim.budget.layout import kv_dtype, kv_layout

    return kv_layout(model, kv_dtype("fp8" if model.compress_ratios else "bf16")).bytes_per_token


def _models() -> Table:
    from kvsim.catalog import get_model, model_names

    headings = ("model", "Hugging Face id", "billion params", "KV KiB/token", "max length")
    rows = [
        (
            model.name,
            model.hf_id,
            number(model.num_params / 1e9, 2),
            f"{kv_bytes(model) / 1024:g}",
            number(model.max_position_embeddings),
        )
        for model in map(get_model, model_names())
    ]
    return _table(headings, rows)


def _gpus() -> Table:
    from kvsim.catalog import get_gpu, gpu_names

    rows = [
        (
            gpu.name,
            number(gpu.memory_bytes / GIB, 1),
            number(gpu.memory_bandwidth_bytes_per_s / 1e9),
            number(gpu.bf16_flops_per_s / 1e12),
            ", ".join(gpu.unverified),
        )
        for gpu in map(get_gpu, gpu_names())
    ]
    return _table(
        ("gpu", "memory GiB", "bandwidth GB/s", "BF16 TFLOP/s", "unverified"),
        rows,
        "unverified: values without a source, or from a similar GPU",
    )


#: Registry of each kind of part.
REGISTRIES = {
    "allocators": "kvsim.kv.manager:ALLOCATORS",
    "schedulers": "kvsim.sched.scheduler:SCHEDULERS",
    "cost-models": "kvsim.cost.model:COST_MODELS",
    "routers": "kvsim.fleet.routing.router:ROUTERS",
    "autoscalers": "kvsim.fleet.scaling.autoscaler:AUTOSCALERS",
    "failures": "kvsim.fleet.scaling.failures:FAILURES",
    "migrations": "kvsim.fleet.migration.policy:MIGRATIONS",
    "flow-controls": "kvsim.fleet.admission.flow_control:FLOW_CONTROLS",
    "kv-stores": "kvsim.fleet.kv_store.store:STORES",
    "disaggregations": "kvsim.fleet.disaggregation.policy:DISAGGREGATIONS",
    "eviction-policies": "kvsim.kv.eviction:EVICTION_POLICIES",
    "workloads": "workloads:WORKLOADS",
    "arrivals": "workloads.arrivals:ARRIVALS",
}


def registry_of(kind: str) -> Registry[Any]:
    """Return the registry of a kind, one of :data:`REGISTRIES`."""
    module, _, name = REGISTRIES[kind].partition(":")
    registry: Registry[Any] = getattr(import_module(module), name)
    return registry


#: Parameters of a workload that are options of their own.
OWN_OPTIONS = ("num_requests", "request_rate", "seed")
CAPTIONS = {
    "workloads": "--num-requests, --request-rate and --seed are options of their own",
    "arrivals": "of a workload: --workload sharegpt+arrival=gamma+cv=3",
}
MODIFIERS: tuple[Row, ...] = (
    None,
    ("+int8 +fp8 +int4", "modifiers: KV dtype, its scales counted", ""),
    ("+window=N", "modifier: a sliding window of N tokens on every layer", ""),
    ("+gqa=N +mqa", "modifiers: N or 1 KV heads", ""),
    ("+mla=N", "modifier: a latent of N elements in place of keys and values", ""),
    ("+swap", "modifier: preempted requests go to host memory (vllm-v0)", ""),
)


def _parts(kind: str) -> Table:
    registry = registry_of(kind)
    leave_out = OWN_OPTIONS if kind == "workloads" else ()
    rows: list[Row] = [
        (name, _first_words(registry.get(name)), _parameters(registry.get(name), leave_out))
        for name in registry.names()
    ]
    rows += [(name, reason, "") for name, reason in registry.problems().items()]
    rows += MODIFIERS if kind == "allocators" else ()
    return _table((registry.what, "does", "parameters"), rows, CAPTIONS.get(kind))


def _first_words(part: Callable[..., Any]) -> str:
    """Return a docstring's first paragraph as plain text."""
    doc = (inspect.getdoc(part) or "").split("\n\n")[0].replace("\n", " ")
    return _MARKUP.sub(r"\1", doc.replace("``", "")).strip(".")


def _parameters(part: Callable[..., Any], leave_out: Collection[str] = ()) -> str:
    found = []
    for one in inspect.signature(part).parameters.values():
        if one.default is not one.empty and one.name not in leave_out:
            default = "" if one.default in (None, "") else f"={_plain(one.default)}"
            found.append(one.name.replace("_", "-") + default)
    return ", ".join(found)


def _plain(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def _trace_formats() -> Table:
    from workloads.readers.formats import known

    rows = [(form.name, ", ".join(form.required), _parameters(form.read)) for form in known()]
    headings = ("format", "columns that identify it", "options")
    return _table(headings, rows, "options: kvsim run --trace FILE+KEY=VALUE")


def _metrics() -> Table:
    from kvsim.study.slo import aggregates

    caption = 'of a summary, for kvsim search --slo "p99_ttft_ms<=1000"'
    return _table(("metric",), ((name,) for name in aggregates()), caption)


def _experiments() -> Table:
    rows = []
    for file in sorted(Path("experiments").glob("[a-z]*.py")):
        first = file.read_text(encoding="utf-8").strip().splitlines()[0]
        rows.append((file.stem, first.strip('"').strip(".")))
    caption = "run one from a checkout: python -m experiments.NAME [--quick]"
    return _table(("experiment", "asks"), rows, caption)


KINDS: dict[str, Callable[[], Table]] = {
    "models": _models,
    "gpus": _gpus,
    **{kind: partial(_parts, kind) for kind in REGISTRIES},
    "experiments": _experiments,
    "trace-formats": _trace_formats,
    "metrics": _metrics,
}


def listing(kind: str) -> Table:
    if kind not in KINDS:
        raise unknown_name("list", kind, KINDS)
    return KINDS[kind]()
