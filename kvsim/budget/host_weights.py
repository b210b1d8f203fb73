"""Weights outside a GPU: kernels read them there, or they are copied before their layer runs.

They are in host memory, or parts of the routed experts are on other GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.budget.budget import GIB
from kvsim.budget.padding import padded_experts
from kvsim.budget.replicated import replicated_bytes
from kvsim.budget.settings import expert_parallel_size, expert_replicas, ranks_per_expert
from kvsim.budget.weights import (
    DTYPE_BYTES,
    expert_share,
    num_end_params,
    routed_bytes_of,
    weight_bytes,
)
from kvsim.engines.registry import get_engine
from kvsim.errors import FieldError

if TYPE_CHECKING:
    from kvsim.catalog.spec import GpuSpec, ModelSpec
    from kvsim.config import Config


#: What the server refuses beside experts on other GPUs.
BESIDE_DISTRIBUTED = (
    "speculative_algorithm",
    "enable_paged_experts",
    "cpu_offload_gb",
    "offload_group_size",
)
#: Formats whose experts have packed tensors under names of their own.
PACKED = ("int4", "awq", "gptq", "bitsandbytes", "mxfp4")


class HostWeights(NamedTuple):
    """Layer weights in host memory, for one GPU of the pipeline stage with the most layers.

    Parameters
    ----------
    saved : bytes that they free on the GPU, less the bytes of buffers
    share : share of the layers' weights that kernels read in host memory
    layer_bytes : bytes of a layer that is copied ahead of its use, 0 if none is
    num_layers : layers of the stage; in each group of ``group_size`` layers, the last
        ``num_in_group`` are copied
    num_buffers : number of copied layers that the GPU holds at once
    num_dense : number of first layers of the stage whose weights are not copied
    graph_copies : copies for which a decode step in a CUDA graph waits; 0: copies run ahead in
        graphs, too
    num_resident : routed experts of each layer that stay on the GPU; 0: all
    num_ranks : GPUs among which routed experts are divided and copied over their link
    copied : bytes that every step copies while nothing else runs
    """

    saved: int = 0
    share: float = 0.0
    layer_bytes: float = 0.0
    num_layers: int = 0
    group_size: int = 1
    num_in_group: int = 0
    num_buffers: int = 1
    num_dense: int = 0
    graph_copies: int = 0
    num_resident: int = 0
    num_ranks: int = 1
    copied: int = 0


NO_HOST_WEIGHTS = HostWeights()


def host_weights(
    config: Config,
    model: ModelSpec,
    layer_bytes: int,
    routed_bytes: float,
    quantization: str | None,
) -> HostWeights:
    """Place weights of layers in host memory as a configuration says.

    Parameters
    ----------
    layer_bytes : weights of all layers on one GPU. kvsim assumes equal layers, and offloads exactly
        ``cpu_offload_gb``, although vLLM offloads whole tensors.
    routed_bytes : the bytes of routed experts among ``layer_bytes``

    Raises
    ------
    ValueError
        For groups with fewer layers than are offloaded, and for engines without these rules.
    """
    engine, group = get_engine(config.engine), config.offload_group_size
    if config.dwdp_size > 1:
        return _distributed_experts(config, model, routed_bytes, quantization)
    if config.enable_paged_experts:
        return _paged_experts(config, model, routed_bytes)
    if config.cpu_offload_gb and not (group and engine.offloads_weights == "read"):
        return _host_bytes(config, layer_bytes)
    if not group:
        return NO_HOST_WEIGHTS
    what = engine.offloaded_in_groups(model)
    if what is None:
        wrong = f"is {group}: engine {config.engine} does not support it for {model.name}"
        raise FieldError("offload_group_size", wrong)
    if config.offload_num_in_group > group:
        raise FieldError(
            "offload_num_in_group",
            f"is {config.offload_num_in_group}: must be at most offload_group_size, {group}",
        )
    if what == "experts":
        return _host_experts(config, model, routed_bytes, quantization)
    return _host_layers(config, model, layer_bytes)


def _host_bytes(config: Config, layer_bytes: int) -> HostWeights:
    """Place the bytes of ``cpu_offload_gb`` in host memory."""
    moved = min(config.cpu_offload_gb * GIB, layer_bytes)
    way = get_engine(config.engine).offloads_weights
    if way is None:
        wrong = f"is {config.cpu_offload_gb}: engine {config.engine} does not support it"
        raise FieldError("cpu_offload_gb", wrong)
    if way == "copied":
        return HostWeights(int(moved), copied=int(moved))
    return HostWeights(int(moved), moved / layer_bytes)


def _in_groups(config: Config, num_layers: int) -> list[int]:
    """Return the layers of a stage that are offloaded: the last of each group."""
    group, number = config.offload_group_size, config.offload_num_in_group
    return [place for place in range(num_layers) if place % group >= group - number]


def _host_layers(config: Config, model: ModelSpec, layer_bytes: int) -> HostWeights:
    """Place whole layers in host memory, with static buffers on the GPU."""
    layers = -(-model.num_layers // config.pipeline_parallel_size)
    moved, buffers = len(_in_groups(config, layers)), config.offload_prefetch_step
    if not moved:
        return NO_HOST_WEIGHTS
    one = layer_bytes / layers
    groups = config.offload_group_size, config.offload_num_in_group
    return HostWeights(int((moved - buffers) * one), 0.0, one, layers, *groups, min(buffers, moved))


def _paged_experts(config: Config, model: ModelSpec, routed_bytes: float) -> HostWeights:
    """Place all routed experts in host memory, and the last used ones on the GPU, too."""
    kept, least, wrong = config.paged_experts_num_resident, model.num_experts_per_token, None
    beside = (
        *("tensor_parallel_size", "data_parallel_size", "speculative_algorithm"),
        *("cpu_offload_gb", "offload_group_size"),
    )
    given = [name for name in beside if getattr(config, name) not in (None, 0, 1)]
    if not model.is_moe:
        wrong = f"does not take {model.name}, which has no routed experts"
    elif given:
        wrong = f"excludes {given[0]} {getattr(config, given[0])}"
    elif kept is None or kept < least:
        wrong = f"needs paged_experts_num_resident of at least {least}, the experts of a token"
    if wrong is not None:
        raise FieldError("enable_paged_experts", wrong)
    assert kept is not None
    kept = min(kept, model.num_experts)
    return HostWeights(int(routed_bytes * (1 - kept / model.num_experts)), num_resident=kept)


def _distributed_experts(
    config: Config, model: ModelSpec, routed_bytes: float, quantization: str | None
) -> HostWeights:
    """Place a part of the routed experts on each GPU, with buffers for the others' parts.

    Two layers have a buffer each, in turn (read in the server's code, ``DwdpManager``).
    """
    ranks, wrong = config.dwdp_size, None
    given = [name for name in BESIDE_DISTRIBUTED if getattr(config, name)]
    sizes = config.data_parallel_size, config.tensor_parallel_size
    if not config.enable_dp_attention or sizes != (ranks, 1):
        wrong = f"needs enable_dp_attention, data_parallel_size {ranks} and tensor_parallel_size 1"
    elif not model.is_moe or model.num_moe_layers != model.num_layers - model.num_dense_layers:
        wrong = f"does not take {model.name}, whose layers have no routed experts in a row"
    elif model.num_experts % ranks:
        wrong = f"must divide the {model.num_experts} experts of {model.name}"
    elif given:
        wrong = f"excludes {given[0]}"
    elif quantization not in (None, "fp8"):
        wrong = f"is modelled for weights in 16 bits and fp8, not in {quantization}"
    if wrong is not None:
        raise FieldError("dwdp_size", f"is {ranks}: {wrong}")
    remote = routed_bytes * (ranks - 1) / model.num_moe_layers
    buffers = min(2, model.num_moe_layers)
    return HostWeights(
        -int(buffers * remote),
        layer_bytes=remote,
        num_layers=model.num_layers,
        num_in_group=1,
        num_buffers=buffers,
        num_dense=model.num_dense_layers,
        num_ranks=ranks,
    )


def _host_experts(
    config: Config, model: ModelSpec, routed_bytes: float, quantization: str | None
) -> HostWeights:
    """Place the routed experts of some layers in host memory; dense layers stay where they are.

    When the KV pool is sized, the experts of the first ``offload_prefetch_step`` offloaded layers
    are on the GPU. In a CUDA graph, copies alternate with layers, and the experts of these first
    layers are copied twice (read in the server's code, ``OffloaderV2``).
    """
    if quantization in PACKED:
        raise FieldError(
            "offload_group_size",
            f"is {config.offload_group_size}: weights in {quantization} have other tensors than "
            "those that the server moves; it would not start",
        )
    places, ahead = _in_groups(config, model.num_layers), config.offload_prefetch_step
    if ahead >= len(places):
        raise FieldError(
            "offload_prefetch_step",
            f"is {ahead}: must be less than the {len(places)} offloaded layers",
        )
    dense = model.num_dense_layers
    moved, first = (sum(k >= dense for k in ks) for ks in (places, places[:ahead]))
    one = routed_bytes / model.num_moe_layers
    return HostWeights(
        int((moved - first) * one),
        layer_bytes=one,
        num_layers=model.num_layers,
        group_size=config.offload_group_size,
        num_in_group=config.offload_num_in_group,
        num_buffers=ahead,
        num_dense=dense,
        graph_copies=moved + first,
    )


def weights_of(
    config: Config, model: ModelSpec, gpu: GpuSpec, dtype: str, quantization: str | None
) -> tuple[int, HostWeights]:
    """Return the bytes of weights on one GPU, and the weights that are in host memory instead."""
    tp, stages = config.tensor_parallel_size, config.pipeline_parallel_size
    shape: dict[str, Any] = {"tensor_parallel_size": tp, "pipeline_parallel_size": stages}
    shape |= {"dtype": dtype, "quantization": quantization}
    towers = not config.language_model_only
    weights = weight_bytes(
        model,
        expert_parallel_size=expert_parallel_size(config),
        expert_replicas=expert_replicas(config),
        expert_padding=padded_experts(
            model, gpu.name, quantization, ranks_per_expert=ranks_per_expert(config)
        ),
        towers=towers,
        **shape,
    ) + replicated_bytes(model, **shape)
    ends = num_end_params(model, stages, towers=towers) * DTYPE_BYTES[dtype] // tp
    routed = routed_bytes_of(model, dtype, quantization) * expert_share(
        model, tp * expert_replicas(config), expert_parallel_size=expert_parallel_size(config)
    )
    on_host = host_weights(config, model, weights - ends, routed, quantization)
    return weights - on_host.saved, on_host
