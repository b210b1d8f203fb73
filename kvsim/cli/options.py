"""Flags, made from the fields of the configuration, so that flags and fields cannot differ (D1)."""

from __future__ import annotations

import types
import typing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from kvsim.api.requests import REQUESTS
from kvsim.cli.pairs import PAIRS, flag
from kvsim.client_options import ClientOptions
from kvsim.config import RunConfig
from kvsim.engines.registry import all_engines
from kvsim.features.feature import sections
from kvsim.lora import LORA_FLAGS
from kvsim.results.cost import RULE
from kvsim.speculation import SPECULATION_FLAGS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from kvsim.config import Validated

#: The option ``engine``, and options that only one engine has, by section: the engine's title.
ENGINE_SECTIONS = {
    "Engine": ("engine",),
    **{one.title: one.options for one in all_engines().values() if one.options},
}

#: Fields by section of the help.
SECTIONS = {
    "Requests": (
        *("workload", "trace", "tokenizer", "request_rate", "num_requests", "max_concurrency"),
        *(*ClientOptions.model_fields, "seed"),
    ),
    "Model and GPU": (
        "model",
        "hf_config_path",
        "hf_overrides",
        "gpu",
        "dtype",
        "quantization",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "decode_context_parallel_size",
        "cpu_offload_gb",
        "offload_group_size",
        "offload_num_in_group",
        "offload_prefetch_step",
        "enable_expert_parallel",
        "language_model_only",
        "gpu_memory_utilization",
        "enforce_eager",
        "max_cudagraph_capture_size",
        "cudagraph_capture_sizes",
        "compilation_config",
        "optimization_level",
        "performance_mode",
        "attention_backend",
        "mm_ipc_gpu_memory_gb",
        "vllm_version",
    ),
    "KV memory": (
        "allocator",
        "kv_cache_memory_bytes",
        "logged",
        "num_gpu_blocks_override",
        "block_size",
        "kv_cache_dtype",
        "enable_prefix_caching",
        "watermark",
        "swap_space",
        "kv_offloading_size",
        "kv_offloading_backend",
        "kv_transfer_config",
        "disable_hybrid_kv_cache_manager",
        "kv_cache_layout",
        "prefix_cache_retention_interval",
        "mamba_cache_mode",
        "mamba_ssm_cache_dtype",
        "mamba_cache_dtype",
        "mamba_shared_prefix_checkpoint",
        "prefix_match_unit",
        "encoder_cache_size",
    ),
    "Scheduler limits": (
        "max_model_len",
        "disable_sliding_window",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
        "enable_chunked_prefill",
        "async_scheduling",
        "disable_chunked_mm_input",
    ),
    "Speculation and adapters": (*SPECULATION_FLAGS, *LORA_FLAGS),
    "Scheduling": (
        "scheduler",
        "scheduling_policy",
        "dlpm_quantum",
        "tenant_weights",
        "preemption_mode",
        "num_samples",
        "ends_by",
        "use_beam_search",
        "beam_switch",
        "long_prefill_token_threshold",
        "long_prefill_token_threshold_adaptive",
        "max_num_active_seqs",
        "scheduler_reserve_full_isl",
        "cost_model",
        "backend",
        "horizon",
    ),
    **ENGINE_SECTIONS,
    "Fleet": (
        "router",
        "num_prefill_workers",
        "num_decode_workers",
        "prefill_router",
        "disaggregation",
        "kv_transfer_protocol",
        "kv_transfer_fabric",
        "kv_store",
        "flow_control",
        "kv_recompute_threshold",
        "first_token_from",
        "proxy_latency",
        "session_policy",
        "session_think_time",
        "autoscaler",
        "cold_start",
        "failures",
        "migration",
    ),
    "Records": (
        "front_end_latency",
        "front_end_latency_per_token",
        "goodput",
        "kv_events_config",
        "record_steps",
        "record_memory_map",
        "record_block_events",
        "check_invariants",
    ),
}

for _title, _names in sections().items():
    SECTIONS[_title] = (*SECTIONS.get(_title, ()), *_names)

#: Fields of the training budget by section; the help of ``kvsim train-memory``.
TRAINING_SECTIONS = {
    "Model and GPU": (
        "model",
        "params",
        "num_layers",
        "hidden_size",
        "num_heads",
        "num_kv_heads",
        "intermediate_size",
        "vocab_size",
        "gpu",
    ),
    "Training": (
        "batch_size",
        "seq_len",
        "gradient_accumulation_steps",
        "precision",
        "optimizer",
        "master_weights",
        "lora_rank",
        "base_precision",
        "attention",
        "activation_checkpointing",
    ),
    "Parallelism and offloading": (
        "num_gpus",
        "zero_stage",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "sequence_parallel",
        "offload",
        "offload_parts",
        "offload_space",
    ),
}

#: vLLM's short forms and other names.
SHORT_FLAGS = {
    "num_requests": "--num-prompts",
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "data_parallel_size": "-dp",
    "decode_context_parallel_size": "-dcp",
}


#: Prices of GPUs, for the commands that compute the cost of a run.
PRICE = click.option(
    *("--price", "--gpu-price", "price"),
    multiple=True,
    metavar="GPU=DOLLARS ...",
    help=f"dollars per GPU-hour, for the cost of the run; {RULE}",
)


class _Switch(click.Option):
    """A switch that is off by default; the help omits its negative form."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        found = super().get_help_record(ctx)
        return None if found is None else (found[0].split(" / ")[0], found[1])


class SectionedCommand(click.Command):
    """A command with help that lists the options by section."""

    sections: Mapping[str, Sequence[str]] = SECTIONS

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options first, then a heading per section."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        section_of = {name: title for title, names in self.sections.items() for name in names}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and record[1]:
                title = section_of.get(parameter.name or "", "Options")
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class TrainingCommand(SectionedCommand):
    """A command with help that lists the fields of the training budget by section."""

    sections = TRAINING_SECTIONS


def config_options(
    *,
    only: Collection[str] = tuple(SECTIONS),
    leave_out: Collection[str] = (),
    lists: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the flags of sections; with ``lists``, switches take values."""
    names = [n for title in only for n in SECTIONS[title] if n not in leave_out]
    return _with_options(RunConfig, names, lists=lists)


def training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the fields of the training budget to a command, as flags."""
    from kvsim.training.config import TrainingConfig

    names = [name for section in TRAINING_SECTIONS.values() for name in section]
    return _with_options(TrainingConfig, names)(command)


def _with_options(
    config: type[Validated], names: Sequence[str], *, lists: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    options = [option for name in names for option in _options(config, name, lists=lists)]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = click.option(cls=lambda *_, made=option: made)(command)  # type: ignore[arg-type]
        return command

    return decorate


@cache
def _options(config: type[Validated], name: str, *, lists: bool) -> tuple[click.Option, ...]:
    """Make the flags of a field; values stay texts, which the configuration converts and checks.

    Commands share the flags: making them anew per command takes a third of the time of ``--help``.
    """
    field = config.model_fields[name]
    shown = ""
    if field.default is not None and not isinstance(field.default, bool):
        shown = f" [{field.default}]"
    help_text = (field.description or "") + shown
    if bool in _types(field.annotation):
        if lists:
            return _switches(name, help_text, negated=field.default is not False)
        pair = f"{flag(name)}/--no-{flag(name)[2:]}"
        shown_as = _Switch if field.default is False else click.Option
        return (shown_as([pair], default=None, help=help_text),)
    if name in PAIRS:
        metavar = f"{PAIRS[name].partition(',')[0]} ..."
        return (click.Option([flag(name)], multiple=True, metavar=metavar, help=help_text),)
    short = [SHORT_FLAGS[name]] if name in SHORT_FLAGS else []
    choices = tuple(all_engines()) if name == "engine" else _choices(field.annotation)
    metavar = "|".join(choices) if choices else _metavar(field.annotation)
    spellings = [*short, flag(name), name]
    return (click.Option(spellings, default=None, metavar=metavar, help=help_text),)


def _switches(name: str, help_text: str, *, negated: bool) -> tuple[click.Option, ...]:
    """Make a switch that also takes true, false or a list; ``negated`` adds a --no-... form."""
    on = click.Option(
        [flag(name), name],
        is_flag=False,
        flag_value="true",
        metavar="[true,false]",
        help=help_text,
    )
    if not negated:
        return (on,)
    return on, click.Option([f"--no-{flag(name)[2:]}", name], flag_value="false", hidden=True)


def _types(annotation: Any) -> set[Any]:
    """Return the plain types in an annotation, through unions and Annotated."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _types(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return {t for part in typing.get_args(annotation) for t in _types(part)}
    return {annotation}


def _choices(annotation: Any) -> tuple[str, ...]:
    for part in _types(annotation):
        if typing.get_origin(part) is Literal:
            return typing.get_args(part)
    return ()


def _metavar(annotation: Any) -> str:
    kinds = _types(annotation)
    return "N" if int in kinds else "X" if float in kinds else "NAME"


def take_own(options: dict[str, Any]) -> dict[str, Any]:
    """Take a command's own options, which are no fields of the configuration. Mutates."""
    return {name: options.pop(name) for name in options.keys() - RunConfig.model_fields.keys()}


def options_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the user gave, with KEY:NUMBER pairs as dicts.

    Raises
    ------
    ValueError
        For a pair that is not KEY:NUMBER, or a duplicate key.
    """
    given = {name: value for name, value in options.items() if value not in (None, ())}
    for name in PAIRS.keys() & given.keys():
        if name == "logged" and any(text.endswith(".toml") for text in given[name]):
            given[name] = _logged_of(given[name])
            continue
        pairs = [_pair(name, text) for text in given[name]]
        given[name] = dict(pairs)
        if len(given[name]) < len(pairs):
            raise ValueError(f"{flag(name)}: a key is given twice")
    return given


def _logged_of(texts: Sequence[str]) -> dict[str, Any]:
    """Read the ``[logged]`` table of a file that ``kvsim calibrate`` wrote."""
    if len(texts) > 1:
        raise ValueError(f"--logged {' '.join(texts)}: give one file, or pairs")
    from kvsim.cost.efficiency import read_table

    table = read_table(Path(texts[0])).get("logged")
    if not isinstance(table, dict):
        raise ValueError(f"--logged {texts[0]}: has no table [logged]")
    return table


def _pair(name: str, text: str) -> tuple[str, str]:
    key, colon, value = text.partition(":")
    if not colon or not value:
        raise ValueError(f"{flag(name)} {text}: must be {PAIRS[name]}")
    return key.replace("-", "_"), value


def with_beginning(what: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Add the options of a file, or a model, to those of the flags; flags take precedence.

    Raises
    ------
    ValueError
        If the file is wrong, or a second model is given.
    """
    if what is not None and what.lower().endswith(".toml"):
        RunConfig.from_toml(what)  # errors name the file
        saved = RunConfig.read_toml(what)
        if REQUESTS & given.keys():  # other requests than the saved ones
            saved.pop("trace_digest", None)
        return saved | given
    return with_model(what, given)


def with_model(what: str | None, given: dict[str, Any]) -> dict[str, Any]:
    if what is not None and given.setdefault("model", what) != what:
        raise ValueError(f"{what}: conflicts with --model {given['model']}")
    return given
