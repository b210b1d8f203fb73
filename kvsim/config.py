"""Configuration of a run: validated, immutable, TOML in and out, with a digest.

Field names are ``vllm serve``'s flags with underscores wherever vLLM has one.
"""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from kvsim.allowed import field_error, is_optional, takes_whole_numbers, whole_number
from kvsim.catalog.spec import GpuSpec, ModelSpec
from kvsim.client_options import ClientOptions, check_start, with_benchmark
from kvsim.engines.options import EngineOptions
from kvsim.errors import FieldError, unknown_name
from kvsim.features.options import FeatureOptions
from kvsim.kv_events import KVEventsConfig
from kvsim.kv_transfer import KVTransferConfig
from kvsim.lora import LoRAOptions
from kvsim.parametric import with_names
from kvsim.pool_config import PoolConfig
from kvsim.records.samples import MAX_SAMPLES, EndsBy
from kvsim.server_options import Length, ServerOptions
from kvsim.speculation import Lookahead, SpeculativeConfig

#: Latency targets of ``--goodput``, as in ``vllm bench serve``.
GOODPUT_METRICS = ("ttft", "tpot", "e2el")

#: Parts of the memory budget that ``--logged`` accepts: those that a start-up log may report.
LOGGED_PARTS = ("memory", "weights", "activations", "non_torch", "cuda_graphs", "kv_cache")

#: Text that stands for None in TOML and in flags, for options whose default is another value.
NONE = "none"

#: Share of the beams that continue another beam, per step. It is fitted to one value of the
#: PagedAttention paper's Fig. 15 (37.56 % of blocks saved, width 2, Alpaca); five other values of
#: that figure test it.
BEAM_SWITCH = 0.2

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Parallel = Annotated[int, Field(ge=1, le=4096)]


class Validated(BaseModel, defer_build=True):
    """Immutable, validated options; an error in a field is reported in one line."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _words(cls, value: object, info: ValidationInfo) -> object:
        """Read ``none`` as None where None is allowed, and 1e3 as a whole number."""
        field = cls.model_fields[str(info.field_name)]
        if not isinstance(value, str):
            return value
        if value == NONE and is_optional(field.annotation):
            return None
        return whole_number(value) if takes_whole_numbers(field.annotation) else value

    @classmethod
    def build(cls, **values: Any) -> Self:
        """Return the options with these values, validated.

        Raises
        ------
        ValueError
            One line that names the field, its value and what is allowed.
        """
        values = with_names(with_benchmark(values))
        for name, value in values.items():
            if name not in cls.model_fields:
                raise unknown_name("option", name, cls.model_fields)
            if isinstance(value, bool) and "bool" not in str(cls.model_fields[name].annotation):
                raise FieldError(name, f"is {value}: must be a number or a text, not true or false")
        try:
            config = cls(**values)
        except ValidationError as error:
            raise field_error(error, cls) from None
        config._check()
        return config

    def _check(self) -> None:
        """Raise ValueError for conflicts between fields."""


class Config(
    Validated,
    FeatureOptions,
    LoRAOptions,
    Lookahead,
    EngineOptions,
    ServerOptions,
    ClientOptions,
):
    """One simulated deployment: model, GPU, KV-cache manager, scheduler, and how to run it.

    A field of None takes the value that the engine chooses for this model and GPU.
    """

    model: str | ModelSpec = Field(
        "opt-13b", description="catalogue name, Hugging Face id, or path to a config.json"
    )
    hf_config_path: str | None = Field(
        None, description="config.json of a model not in the catalogue, or the name of its base"
    )
    gpu: str | GpuSpec = Field("a100-40gb", description="catalogue name of the GPU")
    dtype: str = Field("auto", description="data type of weights: auto, bfloat16, float16, float32")
    quantization: str | None = Field(
        None,
        description="weights: fp8, fp8-block, int8, int4, awq, gptq, bitsandbytes, mxfp4, nvfp4",
    )
    tensor_parallel_size: Parallel = Field(1, description="number of GPUs that split each layer")
    pipeline_parallel_size: Parallel = Field(1, description="number of pipeline stages")
    data_parallel_size: Parallel = Field(1, description="number of replicas behind the router")
    enable_expert_parallel: bool = Field(
        False, description="place whole experts on GPUs, over all tensor- and data-parallel ranks"
    )
    language_model_only: bool = Field(False, description="do not load vision and audio encoders")
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="fraction of GPU memory to use [vLLM's default: 0.92]"
    )
    kv_cache_memory_bytes: Count | None = Field(
        None, description="bytes of KV cache per GPU, instead of computing them"
    )
    logged: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = Field(
        None,
        description="GiB that a start-up log reports, instead of estimates: memory (as CUDA shows "
        "it), weights, activations, non_torch, cuda_graphs or kv_cache",
    )
    num_gpu_blocks_override: Count | None = Field(
        None, description="number of KV blocks, instead of computing it; e.g. from a vLLM log"
    )
    block_size: Count | None = Field(
        None, description="tokens per KV block [vLLM's for the model and GPU, mostly 16]"
    )
    max_model_len: Length | None = Field(
        None,
        description="maximum tokens of prompt and output; -1, auto: all that fit [the model's]",
    )
    max_num_seqs: Count | None = Field(
        None, description="maximum number of running requests [vLLM's for the GPU]"
    )
    max_num_batched_tokens: Count | None = Field(
        None, description="maximum number of tokens per step [vLLM's for the GPU]"
    )
    kv_cache_dtype: str = Field(
        "auto", description="data type of the KV cache: auto, bf16, fp16, fp32, fp8, int8, int4"
    )
    enable_prefix_caching: bool | None = Field(
        None, description="reuse the KV blocks of common prefixes [on when paged]"
    )
    max_num_scheduled_tokens: Count | None = Field(
        None, description="maximum number of tokens to schedule per step [max-num-batched-tokens]"
    )
    speculative_config: SpeculativeConfig | None = Field(
        None, description="speculative decoding, as vLLM's JSON object"
    )
    enable_chunked_prefill: bool = Field(True, description="split long prompts over several steps")
    async_scheduling: bool | None = Field(
        None, description="schedule a step while the previous step runs [on under vllm]"
    )
    long_prefill_token_threshold: Annotated[int, Field(ge=0)] = Field(
        0, description="maximum tokens of one prompt per step; 0: no limit"
    )
    scheduling_policy: Literal["fcfs", "priority", "vtc", "dlpm"] = Field(
        "fcfs", description="order of the waiting queue; vtc, dlpm: fair between tenants"
    )
    dlpm_quantum: Count = Field(
        4096, description="dlpm: tokens that refill the used-up credit of a tenant"
    )
    tenant_weights: str | None = Field(
        None, description="vtc: weights of tenants, NAME=WEIGHT,...; all others have 1"
    )
    watermark: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        None, description="fraction of blocks that admission leaves free [0; vllm-v0: 0.01]"
    )
    preemption_mode: Literal["recompute", "swap"] = Field(
        "recompute", description="vllm-v0: recompute or swap the KV of a preempted request"
    )
    swap_space: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        4.0, description="GiB of host memory per GPU for swapping; only vllm-v0 swaps"
    )
    kv_offloading_size: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="GiB of host memory for evicted prefix blocks, all tensor-parallel ranks "
        "together; turns the allocator paged into tiered",
    )
    kv_offloading_backend: Literal["native"] | None = Field(
        None, description="native: vLLM's connector, which stores chunks of prompts when computed"
    )
    kv_transfer_config: KVTransferConfig | None = Field(
        None, description="KV connector, as vLLM's JSON object"
    )
    num_samples: Annotated[int, Field(gt=0, le=MAX_SAMPLES)] | None = Field(
        None, description="number of sequences per request, instead of the trace's"
    )
    ends_by: EndsBy | None = Field(
        None, description="end of outputs: length, which the scheduler knows, or eos [the trace's]"
    )
    use_beam_search: bool = Field(
        False, description="decode with beam search: the sequences of a request are beams"
    )
    beam_switch: Annotated[float, Field(ge=0, le=1)] = Field(
        BEAM_SWITCH, description="fraction of beams that continue another beam, per step"
    )
    max_num_active_seqs: Count | None = Field(
        None, description="maximum number of admitted requests [max-num-seqs]"
    )
    scheduler_reserve_full_isl: bool = Field(
        True, description="admit a request only if its full prompt fits"
    )
    prefix_cache_retention_interval: Annotated[int, Field(ge=0)] | None = Field(
        0, description="tokens between the windows that stay cached; 0: only the last; none: all"
    )
    disable_hybrid_kv_cache_manager: bool = Field(
        False, description="treat sliding-window and chunked-attention layers as full attention"
    )
    kv_cache_layout: Literal["LBNHC", "BLNHC"] = Field(
        "LBNHC", description="KV tensors of hybrid models: layer (LBNHC) or block (BLNHC) outermost"
    )
    mamba_cache_mode: Literal["none", "align"] | None = Field(
        None, description="Mamba states to cache [align with prefix caching, else none]"
    )
    mamba_ssm_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto", description="data type of Mamba and linear-attention states; auto: as the weights"
    )
    encoder_cache_size: Annotated[int, Field(ge=0)] = Field(
        0, description="tokens of image or audio encoder outputs to cache on the GPU"
    )
    disable_chunked_mm_input: bool = Field(False, description="do not split images over steps")
    enforce_eager: bool = Field(
        False, description="capture no CUDA graphs, and use their memory for the KV cache"
    )
    max_cudagraph_capture_size: Annotated[int, Field(ge=0)] | None = Field(
        None, description="maximum tokens of a step in a CUDA graph [2 x max_num_seqs, at most 512]"
    )
    vllm_version: str = Field("0.33", description="vLLM version, for its memory accounting")

    allocator: str = Field(
        "paged", description="KV-cache manager: BASE[+KEY[=VALUE]]..., see kvsim list allocators"
    )
    scheduler: str | None = Field(
        None, description="NAME[+KEY=VALUE]... [orca for contiguous-* and dynamic, else vllm]"
    )
    router: str = Field("round-robin", description="routing policy: NAME[+KEY=VALUE]...")
    flow_control: str | None = Field(
        None, description="policy of the queue before the router: NAME[+KEY=VALUE]..."
    )
    num_prefill_workers: Parallel | None = Field(
        None, description="number of prefill workers, for disaggregated prefill"
    )
    num_decode_workers: Parallel | None = Field(
        None, description="number of decode workers, for disaggregated prefill"
    )
    prefill_router: str | None = Field(
        None, description="routing policy of the prefill workers [that of --router]"
    )
    disaggregation: str = Field(
        "always", description="which prompts prefill workers compute: NAME[+KEY=VALUE]..."
    )
    kv_transfer_protocol: Literal["pull", "push"] = Field(
        "pull", description="pull: decode workers read KV (vLLM); push: prefill workers write KV"
    )
    kv_transfer_fabric: str = Field("400g-ib", description="network of KV transfers")
    kv_store: str | None = Field(
        None, description="store that replicas read missing prefixes from: NAME[+KEY=VALUE]..."
    )
    kv_recompute_threshold: Annotated[int, Field(ge=0)] = Field(
        0, description="recompute prefixes shorter than this many tokens instead of reading them"
    )
    first_token_from: Literal["decode", "prefill"] = Field(
        "decode", description="worker that sends the first token of a disaggregated request"
    )
    proxy_latency: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="seconds that the proxy takes between the prefill and the decode worker"
    )
    session_policy: str = Field(
        "none", description="eviction by sessions: ttl=S, program=S, hints, pin[=SHARE] or none"
    )
    session_think_time: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None,
        description="seconds between an answer and the next turn of its session, which never "
        "starts before its planned time [turns start as planned, answered or not]",
    )
    autoscaler: str | None = Field(None, description="autoscaler: NAME[+max=N][+KEY=VALUE]...")
    cold_start: Annotated[float, Field(ge=0, allow_inf_nan=False)] | str = Field(
        60.0,
        union_mode="left_to_right",
        description="seconds until a new replica takes requests, or parts[+KEY=VALUE]...",
    )
    migration: str | None = Field(
        None, description="policy that moves running requests: NAME[+KEY=VALUE]..."
    )
    failures: str | None = Field(
        None, description="failures of replicas, rate or at: NAME[+KEY=VALUE]..."
    )
    pool: tuple[PoolConfig, ...] | None = Field(
        None, description="pools of replicas with options of their own; only in a TOML file"
    )
    cost_model: str = Field("roofline", description="model of the step time: NAME[+KEY=VALUE]...")
    backend: Literal["auto", "python", "compiled"] = Field(
        "auto", description="engine that runs the simulation; auto: compiled if possible"
    )
    max_concurrency: Count | None = Field(
        None, description="maximum number of requests in flight, as in vllm bench serve"
    )
    horizon: Annotated[float, Field(gt=0, allow_inf_nan=True)] = Field(
        math.inf, description="schedule no more steps this many seconds after the first arrival"
    )
    front_end_latency: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="seconds of client, HTTP and tokenizer, added to TTFT and E2E latency"
    )
    front_end_latency_per_token: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="seconds per prompt token of a serial tokenizer before the engine"
    )
    goodput: dict[str, Positive] | None = Field(
        None, description="latency targets in ms, e.g. ttft:500 tpot:50"
    )
    kv_events_config: KVEventsConfig | None = Field(
        None, description="KV cache events, as vLLM's JSON object with the path of a file"
    )
    seed: Annotated[int, Field(ge=0)] = Field(0, description="seed of generated workloads")
    record_steps: bool = Field(False, description="record a row per step")
    record_memory_map: bool = Field(False, description="record the use of addresses over time")
    record_block_events: bool = Field(False, description="record every event of every KV block")
    check_invariants: bool = Field(False, description="recount all memory after every step")

    @field_validator("speculative_config", "kv_transfer_config", "kv_events_config", mode="before")
    @classmethod
    def _objects(cls, value: object, info: ValidationInfo) -> object:
        kind = get_args(cls.model_fields[str(info.field_name)].annotation)[0]
        return None if value in (None, NONE) else kind.of(value)

    @field_validator("pool", mode="before")
    @classmethod
    def _pools(cls, value: object) -> object:
        if value is None or value == NONE:
            return None
        if not isinstance(value, list | tuple):
            raise ValueError("must be tables: [[pool]] with role, replicas and options")
        return tuple(PoolConfig.of(one) for one in value)

    @field_validator(
        "max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes", mode="before"
    )
    @classmethod
    def _suffixed(cls, value: object) -> object:
        """Read numbers with vLLM's suffixes, such as 8k and 10G."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", str(value))
        if found is None or (found[2].isupper() and "." in found[1]):
            return value
        power = "kmgt".index(found[2].lower()) + 1
        return int(float(found[1]) * (1024 if found[2].isupper() else 1000) ** power)

    def _check(self) -> None:
        for metric in self.goodput or {}:
            if metric not in GOODPUT_METRICS:
                raise unknown_name("goodput metric", metric, GOODPUT_METRICS)
        for part in self.logged or {}:
            if part not in LOGGED_PARTS:
                raise unknown_name("logged part", part, LOGGED_PARTS)
        if self.lanes is not None and self.max_concurrency is not None:
            raise FieldError("lanes", "conflicts with max_concurrency: give one of them")
        check_start(self)

    def to_toml(self) -> str:
        """Return the fields that differ from their defaults, as TOML."""
        values: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value is None and field.default is not None:
                values[name] = NONE
            elif value != field.default and value is not None:
                values[name] = _non_defaults(value) if is_dataclass(value) else _tables(value)
        return tomli_w.dumps(values)

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Read a TOML file of flat keys.

        Raises
        ------
        ValueError
            If the file cannot be read, is not TOML, or holds a wrong key or value.
        """
        values = cls.read_toml(path)
        try:
            return cls.build(**values)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def read_toml(cls, path: str | Path) -> dict[str, Any]:
        """Read a TOML file's keys, with dashes or underscores; values are not validated yet.

        Raises
        ------
        ValueError
            If the file cannot be read or is not TOML, or a number is in quotes.
        """
        try:
            with Path(path).open("rb") as file:
                values = tomllib.load(file)
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: not a TOML file: {error}") from None
        values = {key.replace("-", "_"): value for key, value in values.items()}
        for key, value in values.items():
            cls.check_toml_type(path, key, value)
        return values

    @classmethod
    def check_toml_type(cls, path: str | Path, key: str, value: object) -> None:
        """Refuse a text where a number belongs; on the command line everything is text.

        Raises
        ------
        ValueError
            One line that begins with the file's name.
        """
        field = cls.model_fields.get(key)
        texts = ("str", "Literal", "dict")
        if field is None or not isinstance(value, str) or value in (NONE, "inf"):
            return
        if key == "max_model_len" and value.lower() == "auto":
            return
        if not any(text in str(field.annotation) for text in texts):
            raise ValueError(f"{path}: {key} = {value!r}: must be a number, without quotes")

    @property
    def digest(self) -> str:
        """Sixteen hex digits that identify the configuration."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()[:16]


class RunConfig(Config):
    """A configuration and the requests to serve, as ``kvsim run`` reads them."""

    workload: str = Field("sharegpt", description="workload to generate: NAME[+KEY=VALUE]...")
    trace: str | None = Field(
        None, description="trace file instead of a workload: FILE[+KEY=VALUE]..., by its format"
    )
    tokenizer: str | None = Field(
        None, description="tokenizer.json to count the tokens of a trace's texts"
    )
    request_rate: Annotated[float, Field(gt=0)] | None = Field(
        None, description="requests per second; rescales a trace; inf: all arrive at once"
    )
    num_requests: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        None, description="number of requests, or of rows to read from the trace"
    )
    trace_digest: str | None = Field(
        None, description="digest of the requests that a saved run served; others are refused"
    )

    def _check(self) -> None:
        super()._check()
        if self.trace is not None and "workload" in self.model_fields_set:
            raise FieldError("workload", f"is {self.workload!r} with a trace: give one of them")
        if self.lanes is not None and self.request_rate is not None:
            raise FieldError("lanes", "conflicts with request_rate: lanes begin the sessions")


def _non_defaults(spec: Any) -> dict[str, Any]:
    """Return the fields of a model or GPU that differ from their defaults, as TOML values."""
    values = {
        f.name: getattr(spec, f.name) for f in fields(spec) if getattr(spec, f.name) != f.default
    }
    return {k: _plain(v) for k, v in values.items() if v is not None}


def _tables(value: Any) -> Any:
    """Return pools as the tables that TOML has, and other tuples as lists."""
    if not isinstance(value, tuple):
        return value
    return [one.to_toml() if isinstance(one, PoolConfig) else one for one in value]


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return _non_defaults(value)
    return list(value) if isinstance(value, tuple) else value
