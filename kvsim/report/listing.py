"""``kvsim list``: what there is, by name."""

from __future__ import annotations

import inspect
import re
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from kvsim.errors import unknown_name
from kvsim.report.text import GIB, number

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kvsim.registry import Registry


#: References of reStructuredText, such as :class:`kvsim.Trace`.
_MARKUP = re.compile(r":\w+:`~?([^`]*)`")


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, heading in enumerate(headings):
        table.add_column(heading, no_wrap=i == 0, overflow="fold")
    return table


def _models() -> Table:
    from kvsim.budget.layout import kv_dtype, kv_layout
    from kvsim.catalog import get_model, model_names

    table = _table("model", "Hugging Face id", "billion params", "KV KiB/token", "max length")
    for name in model_names():
        model = get_model(name)
        kv = kv_layout(model, kv_dtype("bf16")).bytes_per_token / 1024
        size = number(model.num_params / 1e9, 2)
        table.add_row(name, model.hf_id, size, f"{kv:g}", number(model.max_position_embeddings))
    return table


def _gpus() -> Table:
    from kvsim.catalog import get_gpu, gpu_names

    table = _table("gpu", "memory GiB", "bandwidth GB/s", "BF16 TFLOP/s", "unverified")
    for name in gpu_names():
        gpu = get_gpu(name)
        table.add_row(
            name,
            number(gpu.memory_bytes / GIB, 1),
            number(gpu.memory_bandwidth_bytes_per_s / 1e9),
            number(gpu.bf16_flops_per_s / 1e12),
            ", ".join(gpu.unverified),
        )
    table.caption = (
        "unverified: values that are recalled or borrowed from a like card, without a source"
    )
    return table


#: Where the parts of a kind are registered.
REGISTRIES = {
    "allocators": "kvsim.kv.manager:ALLOCATORS",
    "schedulers": "kvsim.sched.scheduler:SCHEDULERS",
    "cost-models": "kvsim.cost.model:COST_MODELS",
    "routers": "kvsim.fleet.router:ROUTERS",
    "autoscalers": "kvsim.fleet.autoscaler:AUTOSCALERS",
    "failures": "kvsim.fleet.failures:FAILURES",
    "migrations": "kvsim.fleet.migration:MIGRATIONS",
    "flow-controls": "kvsim.fleet.flow_control:FLOW_CONTROLS",
    "kv-stores": "kvsim.fleet.store:STORES",
    "disaggregations": "kvsim.fleet.disaggregation:DISAGGREGATIONS",
    "eviction-policies": "kvsim.kv.eviction:EVICTION_POLICIES",
    "workloads": "workloads:WORKLOADS",
    "arrivals": "workloads.arrivals:ARRIVALS",
}


def registry_of(kind: str) -> Registry[Any]:
    """Return the registry of a kind, one of :data:`REGISTRIES`."""
    module, _, name = REGISTRIES[kind].partition(":")
    registry: Registry[Any] = getattr(import_module(module), name)
    return registry


def _parts(kind: str, leave_out: Collection[str] = ()) -> Table:
    registry = registry_of(kind)
    table = _table(registry.what, "does", "parameters")
    for name in registry.names():
        part = registry.get(name)
        table.add_row(name, _first_words(part), _parameters(part, leave_out))
    for name, reason in registry.problems().items():
        table.add_row(name, reason, "")
    return table


def _first_words(part: Callable[..., Any]) -> str:
    """Return a docstring's first paragraph as plain text."""
    doc = (inspect.getdoc(part) or "").split("\n\n")[0].replace("\n", " ")
    return _MARKUP.sub(r"\1", doc.replace("``", "")).strip(".")


def _parameters(part: Callable[..., Any], leave_out: Collection[str] = ()) -> str:
    """Return what a user may set, each with its default."""
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

    table = _table("format", "columns it is known by", "options")
    for form in known():
        table.add_row(form.name, ", ".join(form.required), _parameters(form.read))
    table.caption = "options: kvsim run --trace FILE+KEY=VALUE"
    return table


def _metrics() -> Table:
    from kvsim.study.slo import aggregates

    table = _table("metric")
    for name in aggregates():
        table.add_row(name)
    table.caption = 'of a summary, for kvsim search --slo "p99_ttft_ms<=1000"'
    return table


def _allocators() -> Table:
    table = _parts("allocators")
    table.add_section()
    table.add_row("+int8 +fp8 +int4", "modifiers: KV dtype, its scales counted", "")
    table.add_row("+window=N", "modifier: a sliding window of N tokens on every layer", "")
    table.add_row("+gqa=N +mqa", "modifiers: N or 1 KV heads", "")
    table.add_row("+mla=N", "modifier: a latent of N elements in place of keys and values", "")
    table.add_row("+swap", "modifier: preempted requests go to host memory (vllm-v0)", "")
    return table


def _workloads() -> Table:
    table = _parts("workloads", ("num_requests", "request_rate", "seed"))
    table.caption = "--num-requests, --request-rate and --seed are options of their own"
    return table


def _arrivals() -> Table:
    table = _parts("arrivals")
    table.caption = "of a workload: --workload sharegpt+arrival=gamma+cv=3"
    return table


def _experiments() -> Table:
    table = _table("experiment", "asks")
    for file in sorted(Path("experiments").glob("[a-z]*.py")):
        first = file.read_text(encoding="utf-8").strip().splitlines()[0]
        table.add_row(file.stem, first.strip('"').strip("."))
    table.caption = "run one from a checkout: python -m experiments.NAME [--quick]"
    return table


KINDS: dict[str, Callable[[], Table]] = {
    "models": _models,
    "gpus": _gpus,
    **{kind: partial(_parts, kind) for kind in REGISTRIES},
    "allocators": _allocators,
    "workloads": _workloads,
    "arrivals": _arrivals,
    "experiments": _experiments,
    "trace-formats": _trace_formats,
    "metrics": _metrics,
}


def listing(kind: str) -> Table:
    """Return the table of a kind.

    Raises
    ------
    ValueError
        Naming the kinds.
    """
    if kind not in KINDS:
        raise unknown_name("list", kind, KINDS)
    return KINDS[kind]()
