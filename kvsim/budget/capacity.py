"""Number of KV blocks and requests that fit: a closed form, no simulation."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from kvsim.budget.budget import GIB, Budget, inference_budget
from kvsim.budget.compressed import check_compressed
from kvsim.budget.drafter import drafter_bytes, own_model, with_drafter
from kvsim.budget.encoder import encoder_profile
from kvsim.budget.exchange import exchange_bytes
from kvsim.budget.graphs import graph_bytes, graphs_of
from kvsim.budget.host_weights import HostWeights, weights_of
from kvsim.budget.interval import kv_cache_interval
from kvsim.budget.kernels import USUAL, default_block_size, unsupported
from kvsim.budget.length import longest_that_fits, num_blocks_of, steps_in_flight
from kvsim.budget.limits import Limits, check_context_parallel, length_by_memory, limits_of
from kvsim.budget.lora import lora_bytes
from kvsim.budget.pages import aligned_block_size
from kvsim.budget.planner import KVPlan, plan_groups
from kvsim.budget.settings import (
    expert_parallel_size,
    expert_replicas,
    ignored_overrides,
    keeps_groups,
    layout_of,
    model_of,
    state_cache,
)
from kvsim.budget.tuning import more_buffers, tuned_in_vain
from kvsim.budget.versions import GRAPHS_COUNTED, precedes
from kvsim.budget.weights import DTYPE_BYTES, check_quantization, weight_dtype
from kvsim.catalog import get_gpu
from kvsim.display import Displayed
from kvsim.server_options import AUTO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.budget.layout import KVLayout
    from kvsim.catalog.spec import GpuSpec, ModelSpec
    from kvsim.config import Config

#: Shortest request length that ``Capacity.max_concurrency`` lists; each next length is twice it.
SHORTEST = 256
#: Defaults of max_num_seqs and max_num_batched_tokens over vLLM's versions and GPUs.
DEFAULT_SEQS, DEFAULT_TOKENS = (128, 256, 1024), (2048, 8192, 16384)
#: If KV has less than this share of the budget, a relative error in the overheads is several times
#: as large in KV.
SCARCE = 0.25


class Memory(NamedTuple):
    """A configuration's memory on one GPU, all names and defaults resolved.

    ``num_gpu_blocks`` includes the null block, as vLLM logs it; ``block_size`` is that of
    attention, raised if a page must be as large as a state.
    """

    model: ModelSpec
    gpu: GpuSpec
    limits: Limits
    dtype: str
    quantization: str | None
    layout: KVLayout
    plan: KVPlan
    budget: Budget
    num_gpu_blocks: int
    block_size: int
    host_weights: HostWeights


def resolve_memory(config: Config, **what_if: int | None) -> Memory:
    """Resolve names, limits, KV layout and memory budget.

    Parameters
    ----------
    **what_if : overrides of the model's attention, as for :func:`kvsim.budget.layout.kv_layout`

    Raises
    ------
    ValueError
        For unknown names, impossible shapes, and models that leave no room for a KV block.
    """
    model, gpu = model_of(config), get_gpu(config.gpu)
    limits = limits_of(config, model, gpu)
    check_context_parallel(config, model)
    check_compressed(config, model)
    dtype = weight_dtype(config.dtype)
    quantization = config.quantization or model.quantization
    check_quantization(quantization)
    tp, spec = config.tensor_parallel_size, config.speculative_config
    layout = layout_of(config, model, dtype, **what_if)
    layout = with_drafter(layout, model, spec, tensor_parallel_size=tp)
    asked = config.block_size or default_block_size(
        model, gpu.name, layout.dtype, config.vllm_version, config.attention_backend
    )
    plan_for = partial(
        plan_groups,
        layout,
        asked,
        hybrid=keeps_groups(config),
        packed=config.kv_cache_layout == "BLNHC",
        state=state_cache(config, model),
        num_shares=config.decode_context_parallel_size,
    )
    weights, on_host = weights_of(config, model, gpu, dtype, quantization)
    budget = inference_budget(
        config,
        model,
        gpu,
        limits,
        weights=weights,
        **_beside(config, model, dtype, quantization),
        encoder=encoder_profile(config, model, limits, DTYPE_BYTES[dtype]),
        exchange=exchange_bytes(config, model, limits, gpu.name, quantization),
        cuda_graphs=graph_bytes(
            -(-model.num_layers // config.pipeline_parallel_size),
            graphs_of(config, limits, gpu).num_graphs,
            num_ranks=tp,
            narrow_kv=layout.dtype.name == "fp8",
        ),
    )
    plan = plan_for(max_model_len=limits.max_model_len)
    num_gpu_blocks = num_blocks_of(config, plan, budget.kv_cache)
    if num_gpu_blocks < 1:
        raise ValueError(_no_room(config, model, gpu, budget, plan))
    if config.max_model_len == AUTO:
        longest = longest_that_fits(config, limits, budget.kv_cache, plan_for)
        limits, plan = replace(limits, max_model_len=longest), plan_for(max_model_len=longest)
        num_gpu_blocks = num_blocks_of(config, plan, budget.kv_cache)
    block_size = aligned_block_size(layout.layers, asked)
    return Memory(
        *(model, gpu, limits, dtype, quantization, layout, plan, budget, num_gpu_blocks),
        *(block_size, on_host),
    )


def _beside(
    config: Config, model: ModelSpec, dtype: str, quantization: str | None
) -> dict[str, int]:
    """Return the bytes of the optional parts on one GPU."""
    tp, spec, found = config.tensor_parallel_size, config.speculative_config, {}
    if config.lora is not None:
        found["adapters"] = lora_bytes(
            model,
            config.lora,
            dtype=dtype,
            tensor_parallel_size=tp,
            pipeline_parallel_size=config.pipeline_parallel_size,
        )
    if spec is not None:
        found["drafter"] = drafter_bytes(
            model,
            spec,
            dtype=dtype,
            quantization=quantization,
            tensor_parallel_size=tp,
            expert_replicas=expert_replicas(config),
        )
    found["encoder_cache"] = config.encoder_cache_size * model.hidden_size * DTYPE_BYTES[dtype]
    return found


def _no_room(config: Config, model: ModelSpec, gpu: GpuSpec, budget: Budget, plan: KVPlan) -> str:
    if "kv_cache" in (config.logged or {}):
        return (
            f"logged kv_cache is {budget.kv_cache} bytes: must be at least one block, "
            f"{plan.bytes_per_block} bytes"
        )
    if config.kv_cache_memory_bytes is not None:
        return (
            f"kv_cache_memory_bytes is {config.kv_cache_memory_bytes}: must be at least "
            f"one block, {plan.bytes_per_block} bytes"
        )
    if budget.kv_cache > 0:
        return (
            f"block_size: a block takes {plan.bytes_per_block / GIB:.2f} GiB, "
            f"more than the {budget.kv_cache / GIB:.2f} GiB of KV memory"
        )
    overhead = budget.activations + budget.non_torch + budget.cuda_graphs
    return (
        f"{model.name} does not fit: weights {budget.weights / GIB:.1f} GiB and overheads "
        f"{overhead / GIB:.1f} GiB leave no KV block in the {budget.total / GIB:.1f} GiB of each "
        f"{gpu.name}; use a larger tensor_parallel_size, quantization, or another GPU"
    )


@dataclass(frozen=True, repr=False)
class Capacity(Displayed):
    """KV capacity of one GPU of a deployment.

    Attributes
    ----------
    bytes_per_token : KV of one token on one GPU, scales included
    num_gpu_blocks, bytes_per_block, block_size : number of blocks, null block included; bytes and
        tokens of one block
    num_tokens, logged_concurrency : as vLLM logs them ("GPU KV cache size", "Maximum concurrency").
        The concurrency is the number of blocks over the blocks of a request of max_model_len.
        num_tokens is the concurrency times max_model_len; up to vLLM 0.20 it is the blocks of one
        group times the tokens of the smallest block
    max_concurrency : number of requests that fit at once, by their length in tokens, if all are at
        the peak of their prefill, as vLLM counts; a sliding-window layer then also holds the tokens
        in flight
    max_concurrency_decoding : the same if all requests decode, the most that a run can reach
    budget_bytes : parts of ``total`` (utilisation times memory); ``kv_cache`` may be pinned
    kv_cache_bytes_interval : lower and upper bound of the KV memory of one GPU, bytes, from the
        deviations of comparable start-up logs; None if the KV memory is pinned or taken from a log
    num_gpu_blocks_range : fewest and most blocks over common values of max_num_seqs and
        max_num_batched_tokens, if one of them was not given; else None
    fits : True if one request of max_model_len fits
    states : of Mamba and linear-attention layers on one GPU: number of layers, bytes of one state
        in all of them, bytes of padding in their pages, blocks per request; None without them
    assumptions : values that were not given, and how they were filled in
    engine : name of the simulated engine
    """

    shown_by: ClassVar[str] = "kvsim.report.capacity.capacity_table"

    model: str
    gpu: str
    kv_cache_dtype: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    max_model_len: int
    bytes_per_token: int
    scale_bytes_per_token: int
    block_size: int
    bytes_per_block: int
    num_gpu_blocks: int
    num_tokens: int
    logged_concurrency: float
    max_concurrency: dict[str, int]
    max_concurrency_decoding: dict[str, int]
    budget_bytes: dict[str, int]
    kv_cache_bytes_interval: tuple[int, int] | None
    num_gpu_blocks_range: tuple[int, int] | None
    fits: bool
    assumptions: tuple[str, ...]
    states: dict[str, int] | None = None
    engine: str = "vllm"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types; ``states`` only for models that have states."""
        pairs = ("kv_cache_bytes_interval", "num_gpu_blocks_range")
        given = {name: list(pair) if (pair := getattr(self, name)) else None for name in pairs}
        fields = {**asdict(self), **given, "assumptions": list(self.assumptions)}
        if self.states is None:
            del fields["states"]
        return fields

    @property
    def scarce(self) -> bool:
        """Return True if KV is so small that errors of other parts dominate it."""
        return self.budget_bytes["kv_cache"] < SCARCE * self.budget_bytes["total"]


def capacity_of(config: Config, **what_if: int | None) -> Capacity:
    """Compute the capacity of a validated configuration.

    Parameters
    ----------
    **what_if : overrides of the model's attention, as for :func:`kvsim.budget.layout.kv_layout`
    """
    memory = resolve_memory(config, **what_if)
    limits, plan, blocks = memory.limits, memory.plan, memory.num_gpu_blocks
    longest = limits.max_model_len
    num_steps = steps_in_flight(config)
    in_flight = num_steps * limits.max_num_batched_tokens
    reserved = plan.reserved_blocks(in_flight, longest)

    def blocks_for(num_tokens: int, in_flight: int = in_flight) -> int:
        if num_tokens == longest and in_flight > num_steps:
            return reserved
        return plan.blocks_for(num_tokens, in_flight, longest)

    def at_once(num_blocks: int) -> int:
        """Return the number of requests that fit at once as vLLM counts, null block included."""
        return blocks // num_blocks if num_blocks < blocks else 0

    lengths = lengths_to(longest)
    concurrency = blocks / reserved
    return Capacity(
        **deployment_fields(config, memory),
        block_size=memory.block_size,
        bytes_per_block=plan.bytes_per_block,
        num_gpu_blocks=blocks,
        num_tokens=logged_tokens(config, plan, blocks, concurrency * longest),
        logged_concurrency=concurrency,
        max_concurrency={str(length): at_once(blocks_for(length)) for length in lengths},
        max_concurrency_decoding={
            str(length): at_once(blocks_for(length, num_steps)) for length in lengths
        },
        budget_bytes=memory.budget.parts,
        kv_cache_bytes_interval=kv_cache_interval(config, memory),
        num_gpu_blocks_range=_range(config, memory, what_if),
        fits=reserved <= blocks - 1,
        assumptions=_assumptions(config, memory),
        states=_states(plan),
    )


def lengths_to(longest: int) -> list[int]:
    """Return the lengths of requests that :class:`Capacity` lists."""
    return [SHORTEST << i for i in range(64) if SHORTEST << i < longest] + [longest]


def deployment_fields(config: Config, memory: Memory) -> dict[str, Any]:
    """Return the fields of :class:`Capacity` that describe the deployment."""
    return {
        "model": memory.model.name,
        "gpu": memory.gpu.name,
        "kv_cache_dtype": memory.layout.dtype.name,
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
        "max_model_len": memory.limits.max_model_len,
        "bytes_per_token": memory.layout.bytes_per_token,
        "scale_bytes_per_token": memory.layout.scale_bytes_per_token,
    }


def logged_tokens(config: Config, plan: KVPlan, num_blocks: int, num_tokens: float) -> int:
    """Return the KV tokens in vLLM's log, given the tokens of the requests that fit at once."""
    if not precedes(config.vllm_version, GRAPHS_COUNTED):
        return int(num_tokens)
    return num_blocks // len(plan.groups) * min(group.block_tokens for group in plan.groups)


def blocks_of_tokens(config: Config, memory: Memory, num_tokens: int) -> int:
    """Return the fewest blocks that hold ``num_tokens`` tokens according to vLLM's log."""
    plan, longest = memory.plan, memory.limits.max_model_len
    if precedes(config.vllm_version, GRAPHS_COUNTED):
        smallest = min(group.block_tokens for group in plan.groups)
        return num_tokens // smallest * len(plan.groups)
    in_flight = steps_in_flight(config) * memory.limits.max_num_batched_tokens
    return -(-num_tokens * plan.reserved_blocks(in_flight, longest) // longest)


def _states(plan: KVPlan) -> dict[str, int] | None:
    groups = [(group, group.state) for group in plan.groups if group.state is not None]
    if not groups:
        return None
    used = sum(group.used_bytes for group, _ in groups)
    return {
        "num_layers": sum(group.num_layers for group, _ in groups),
        "bytes_per_state": used,
        "padding_bytes": sum(group.page_bytes for group, _ in groups) - used,
        "blocks_per_request": sum(state.num_blocks for _, state in groups),
    }


def _range(
    config: Config, memory: Memory, what_if: dict[str, int | None]
) -> tuple[int, int] | None:
    """Return the fewest and most blocks over the defaults of vLLM's versions and GPUs."""
    logged = config.logged or {}
    pinned = config.num_gpu_blocks_override or config.kv_cache_memory_bytes
    pinned = pinned or "kv_cache" in logged or "activations" in logged
    if pinned or (config.max_num_seqs and config.max_num_batched_tokens):
        return None
    found = [memory.num_gpu_blocks]
    if config.max_model_len == AUTO:
        config = config.model_copy(update={"max_model_len": memory.limits.max_model_len})
    seqs = (config.max_num_seqs,) if config.max_num_seqs else DEFAULT_SEQS
    tokens = config.max_num_batched_tokens
    for most, batch in product(seqs, (tokens,) if tokens else DEFAULT_TOKENS):
        one = config.model_copy(update={"max_num_seqs": most, "max_num_batched_tokens": batch})
        if batch >= most:
            with suppress(ValueError):  # no KV memory is left, or no whole prompt fits into a step
                found.append(resolve_memory(one, **what_if).num_gpu_blocks)
    return min(found), max(found)


def _assumptions(config: Config, memory: Memory) -> tuple[str, ...]:
    """List the assumptions for options that were not given, most important first."""
    parts = (_of_budget, _of_blocks, _of_weights, _of_experts, _of_lengths)
    return tuple(note for part in parts for note in part(config, memory))


def _of_budget(config: Config, memory: Memory) -> Iterator[str]:
    limits, logged = memory.limits, config.logged or {}
    if config.num_gpu_blocks_override or config.kv_cache_memory_bytes or "kv_cache" in logged:
        return
    if "activations" not in logged:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(config, name) is None:
                yield f"{name} {getattr(limits, name)} (vLLM's default for this GPU)"
    if config.gpu_memory_utilization is None:
        yield f"gpu_memory_utilization {limits.gpu_memory_utilization}"
    yield from _of_estimates(config, memory)


def _of_estimates(config: Config, memory: Memory) -> Iterator[str]:
    logged = config.logged or {}
    estimated = [p for p in ("activations", "non_torch", "cuda_graphs") if p not in logged]
    if estimated:
        names = ", ".join(part.replace("_", " ") for part in estimated)
        yield f"{names} of vLLM {config.vllm_version}, estimated"
    towers = memory.model.num_tower_params and not config.language_model_only
    if towers and not memory.model.tower_hidden_size and "activations" not in logged:
        yield "nothing for the profile run of image or audio encoders, which is not estimated"
    if "memory_bytes" in memory.gpu.unverified and "memory" not in logged:
        yield f"the memory that CUDA reports on {memory.gpu.name} is unverified"


def _of_weights(config: Config, memory: Memory) -> Iterator[str]:
    if memory.budget.adapters:
        yield "adapters of every linear layer, estimated: max_lora_rank x (in + out) each"
    spec = config.speculative_config
    if memory.budget.drafter and spec is not None and own_model(spec) is None:
        yield f"the drafter ({spec.method}) has layers of the model's own shape"
    if config.hf_config_path is not None and config.quantization is None:
        stored = (
            memory.quantization or f"{memory.dtype}: neither the name nor the base names a format"
        )
        yield f"weights in {stored}"
    if memory.quantization == "nvfp4" and not memory.model.quantized_parts:
        yield "every linear layer in nvfp4; a checkpoint may leave parts in 16 bits"
    yield from ignored_overrides(config)
    yield from more_buffers(config, memory)
    yield from tuned_in_vain(config, memory)
    if memory.model.kv_cache_dtype and config.kv_cache_dtype == "auto":
        why = "as in the checkpoint's config"
        if memory.model.compress_ratios:
            why = "which vLLM's kernels for this model store; pages as read in its code"
        yield f"KV in {memory.model.kv_cache_dtype}, {why}"


def _of_experts(config: Config, memory: Memory) -> Iterator[str]:
    if not memory.model.is_moe:
        return
    if ranks := expert_parallel_size(config):
        most = -(-memory.model.num_experts // ranks)
        yield f"{most} of {memory.model.num_experts} experts on each of {ranks} GPUs"
    elif expert_replicas(config) > 1:
        ranks = expert_replicas(config) * config.tensor_parallel_size
        yield f"1/{ranks} of every routed expert on each of {ranks} GPUs"


def _of_lengths(config: Config, memory: Memory) -> Iterator[str]:
    if config.max_model_len is None:
        yield f"max_model_len {memory.limits.max_model_len} (the model's)"
    if chosen := length_by_memory(config, memory.model, memory.limits):
        yield chosen
    if memory.layout.scale_bytes_per_token:
        yield f"{memory.layout.scale_bytes_per_token} bytes of scales per token"


def _of_blocks(config: Config, memory: Memory) -> Iterator[str]:
    model, asked = memory.model, config.block_size
    if asked is None:
        dtype = memory.layout.dtype
        asked = default_block_size(
            model, memory.gpu.name, dtype, config.vllm_version, config.attention_backend
        )
        if asked != USUAL:
            yield f"block_size {asked} (of vLLM's attention kernels for this model and GPU)"
    elif refused := unsupported(model, asked):
        yield refused
    if (shares := config.decode_context_parallel_size) > 1:
        yield f"{memory.block_size} tokens of a block on each of {shares} GPUs"
    if memory.block_size != asked:
        yield (
            f"block_size {memory.block_size}, raised from {asked} so that an attention "
            "page is as large as a state"
        )
