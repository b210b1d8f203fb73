"""Tables of the reference, made from the configuration, the registries and the catalogue."""

from __future__ import annotations

import ast
import inspect
import typing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kvsim.report.listing import REGISTRIES, kv_bytes, registry_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import BaseModel


Rows = list[tuple[str, ...]]
GIB = 2**30


def markdown(rows: Rows) -> str:
    """Write rows, the heading first, as a Markdown table."""
    head, *body = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# -- configuration --------------------------------------------------------------------------------


def _fields(model: type[BaseModel], names: Sequence[str]) -> Rows:
    rows: Rows = [("field", "values", "default", "meaning")]
    for name in names:
        field = model.model_fields[name]
        if not field.description:
            raise ValueError(f"{name}: this option has no help text")
        default = "" if field.default is None else f"`{field.default}`"
        rows.append((f"`{name}`", _values(field), default, _prose(field.description)))
    return rows


def _values(field: Any) -> str:
    """Say in words what a field takes: the types in its annotation, and their bounds."""
    found = [_kind(part) for part in _parts(field.annotation)]
    bounds = [
        f"{sign} {getattr(item, key):g}"
        for item in _metadata(field)
        for key, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
        if getattr(item, key, None) is not None
    ]
    kinds = ", ".join(dict.fromkeys(kind for kind in found if kind))
    return f"{kinds} {' and '.join(dict.fromkeys(bounds))}".strip()


def _metadata(field: Any) -> list[Any]:
    """Return the constraints on a field, which stand in it or in a part of its annotation."""
    parts: list[Any] = list(field.metadata)
    for part in (field.annotation, *typing.get_args(field.annotation)):
        if typing.get_origin(part) is typing.Annotated:
            parts += typing.get_args(part)[1:]
    return [inner for part in parts for inner in (part, *getattr(part, "metadata", ()))]


def _parts(annotation: Any) -> list[Any]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _parts(typing.get_args(annotation)[0])
    if origin is Literal or origin is dict:
        return [annotation]
    inner = typing.get_args(annotation)
    return [one for part in inner for one in _parts(part)] if inner else [annotation]


def _kind(annotation: Any) -> str:
    if typing.get_origin(annotation) is Literal:
        return " \\| ".join(f"`{choice}`" for choice in typing.get_args(annotation))
    if typing.get_origin(annotation) is dict:
        return "names with numbers"
    words = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    if annotation in (type(None), Ellipsis):
        return ""
    return words.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _config(section: str) -> Rows:
    from kvsim.cli.options import SECTIONS
    from kvsim.config import RunConfig

    return _fields(RunConfig, SECTIONS[section.replace("-", " ")])


def _config_rest() -> Rows:
    from kvsim.cli.options import SECTIONS
    from kvsim.config import RunConfig

    told = {name for names in SECTIONS.values() for name in names}
    return _fields(RunConfig, [name for name in RunConfig.model_fields if name not in told])


def _training(section: str) -> Rows:
    from kvsim.cli.options import TRAINING_SECTIONS
    from kvsim.training.config import TrainingConfig

    return _fields(TrainingConfig, TRAINING_SECTIONS[section.replace("-", " ")])


# -- the catalogue --------------------------------------------------------------------------------


def _models() -> Rows:
    from kvsim.catalog import get_model, model_names

    rows: Rows = [("name", "Hugging Face id", "10⁹ parameters", "KV KiB/token", "longest")]
    for name in model_names():
        model = get_model(name)
        kv = kv_bytes(model) / 1024
        size, longest = model.num_params / 1e9, model.max_position_embeddings
        rows.append((f"`{name}`", model.hf_id, f"{size:,.2f}", f"{kv:g}", f"{longest:,}"))
    return rows


def _model_sources() -> Rows:
    from kvsim.catalog import get_model, model_names

    rows: Rows = [("name", "where its numbers come from")]
    return rows + [(f"`{name}`", _prose(get_model(name).source)) for name in model_names()]


def _gpus() -> Rows:
    from kvsim.catalog import get_gpu, gpu_names

    rows: Rows = [("name", "memory GiB", "HBM GB/s", "16-bit TFLOP/s", "FP8 TFLOP/s", "SMs")]
    for name in gpu_names():
        gpu = get_gpu(name)
        numbers = (
            f"{gpu.memory_bytes / GIB:.1f}",
            f"{gpu.memory_bandwidth_bytes_per_s / 1e9:,.0f}",
            f"{gpu.bf16_flops_per_s / 1e12:,.0f}",
            f"{gpu.fp8_flops_per_s / 1e12:,.0f}" if gpu.fp8_flops_per_s else "",
            f"{gpu.num_sms}",
        )
        rows.append((f"`{name}`", *numbers))
    return rows


def _gpu_sources() -> Rows:
    from kvsim.catalog import get_gpu, gpu_names

    rows: Rows = [("name", "where its numbers come from", "not read again")]
    for name in gpu_names():
        gpu = get_gpu(name)
        doubtful = ", ".join(field.replace("_", " ") for field in gpu.unverified)
        rows.append((f"`{name}`", _prose(gpu.source), doubtful))
    return rows


# -- the registries -------------------------------------------------------------------------------


#: Parameters that all workloads have; the page tells them once.
OF_EVERY_WORKLOAD = ("num_requests", "request_rate", "seed", "arrival")


def _registered(kind: str) -> Rows:
    registry = registry_of(kind)
    told_once = OF_EVERY_WORKLOAD if kind == "workloads" else ()
    rows: Rows = [("name", "does", "parameters and defaults")]
    for name in registry.names():
        factory = registry.get(name)
        signature = inspect.signature(factory).parameters
        own = [key for key in registry.parameters(name) if key not in told_once]
        parameters = [_parameter(signature[key]) for key in own]
        rows.append((f"`{name}`", _summary(factory), ", ".join(parameters)))
    return rows


def _sources(kind: str) -> Rows:
    """Return where the rule of each part of a kind comes from, as its docstring has it."""
    registry = registry_of(kind)
    rows: Rows = [("name", "source", "parameters and defaults")]
    for name in registry.names():
        factory = registry.get(name)
        paragraphs = (inspect.getdoc(factory) or "").split("\n\n")
        told = [text for text in paragraphs if text.startswith("Source: ")]
        signature = inspect.signature(factory).parameters
        parameters = [_parameter(signature[key]) for key in registry.parameters(name)]
        source = "".join(told).removeprefix("Source: ").replace("``", "`")
        rows.append((f"`{name}`", source, ", ".join(parameters)))
    return rows


def _parameter(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is None else f"={parameter.default}"
    return f"`{parameter.name.replace('_', '-')}{default}`"


def _prose(text: str) -> str:
    """Return text whose characters mean themselves in Markdown."""
    return text.replace("[", "\\[").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _summary(part: Any) -> str:
    """Return the first paragraph of a docstring, as Markdown."""
    text = (inspect.getdoc(part) or "").split("\n\n")[0]
    pieces = text.split("``")  # every second piece is code
    return "".join(f"`{p}`" if i % 2 else _prose(p) for i, p in enumerate(pieces))


# -- the rest -------------------------------------------------------------------------------------


def _formats() -> Rows:
    from workloads.readers import formats
    from workloads.readers.formats import _FORMATS

    rows: Rows = [("format", "columns it is known by", "further columns", "options")]
    for name in formats():
        form = _FORMATS[name]
        options = [
            _parameter(p).replace("-", "_")
            for p in inspect.signature(form.read).parameters.values()
            if p.default is not p.empty
        ]
        columns = [", ".join(f"`{c}`" for c in cs) for cs in (form.required, form.optional)]
        rows.append((f"`{name}`", *columns, ", ".join(options)))
    return rows


def _server_flags(server: str, *kinds: str) -> Rows:
    from kvsim.cli.server_flags import flags_of

    said = {"nothing": "no effect", "time": "of steps, which stay as they are without it"}
    rows: Rows = [("flag", "what kvsim does")]
    for flag in dict.fromkeys(flags_of(server).values()):
        if flag.does in kinds:
            names = ", ".join(f"`{name}`" for name in flag.names)
            rows.append((names, _prose(flag.about or said[flag.does])))
    return rows


def _unused_flags() -> Rows:
    return _server_flags("vllm", "nothing", "time")


def _assumed_flags() -> Rows:
    return _server_flags("vllm", "assumed")


def _refused_flags() -> Rows:
    return _server_flags("vllm", "refused")


def _unused_sglang_flags() -> Rows:
    return _server_flags("sglang", "nothing", "time")


def _assumed_sglang_flags() -> Rows:
    return _server_flags("sglang", "assumed")


def _refused_sglang_flags() -> Rows:
    return _server_flags("sglang", "refused")


def _experiments() -> Rows:
    rows: Rows = [("module", "asks")]
    for file in sorted((Path(__file__).parents[2] / "experiments").glob("[a-z]*.py")):
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        first = text.split("\n\n")[0].replace("\n", " ")
        rows.append((f"`experiments.{file.stem}`", _prose(first.replace("``", ""))))
    return rows


#: By the name that a page uses.
TABLES: dict[str, Callable[..., Rows]] = {
    "config": _config,
    "config-rest": _config_rest,
    "training-config": _training,
    "models": _models,
    "model-sources": _model_sources,
    "gpus": _gpus,
    "gpu-sources": _gpu_sources,
    **{kind: partial(_registered, kind) for kind in REGISTRIES},
    "sources": _sources,
    "trace-formats": _formats,
    "unused-flags": _unused_flags,
    "assumed-flags": _assumed_flags,
    "refused-flags": _refused_flags,
    "unused-sglang-flags": _unused_sglang_flags,
    "assumed-sglang-flags": _assumed_sglang_flags,
    "refused-sglang-flags": _refused_sglang_flags,
    "experiments": _experiments,
}
