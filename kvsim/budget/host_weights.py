"""Weights in host memory: kernels read them there, or they are copied before their layer runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.budget.budget import GIB
from kvsim.budget.padding import padded_experts
from kvsim.budget.replicated import replicated_bytes
from kvsim.budget.settings import expert_parallel_size, expert_replicas, ranks_per_expert
from kvsim.budget.weights import DTYPE_BYTES, num_end_params, weight_bytes
from kvsim.engines.registry import get_engine
from kvsim.errors import FieldError

if TYPE_CHECKING:
    from kvsim.catalog.spec import GpuSpec, ModelSpec
    from kvsim.config import Config


class HostWeights(NamedTuple):
    """Weights of layers that a GPU lacks, on the stage with most layers.

    Parameters
    ----------
    saved : bytes that they free on the GPU, less those of buffers
    share : share of the layers' weights that kernels read in host memory
    layer_bytes : bytes of a layer that is copied ahead of its use, 0 if none is
    num_layers : of the stage; of each ``group_size`` the last ``num_in_group`` are copied
    num_buffers : copied layers for which the GPU has room at once
    copied : bytes that every step copies while nothing else runs
    """

    saved: int = 0
    share: float = 0.0
    layer_bytes: float = 0.0
    num_layers: int = 0
    group_size: int = 1
    num_in_group: int = 0
    num_buffers: int = 1
    copied: int = 0


NO_HOST_WEIGHTS = HostWeights()


def host_weights(config: Config, model: ModelSpec, layer_bytes: int) -> HostWeights:
    """Place weights of layers in host memory as a configuration says.

    Parameters
    ----------
    layer_bytes : weights of all layers on one GPU. The layers are taken to be alike, and the last
        tensor that exceeds ``cpu_offload_gb`` to be cut.

    Raises
    ------
    ValueError
        For groups with fewer layers than are offloaded, and for engines without these rules.
    """
    group, number = config.offload_group_size, config.offload_num_in_group
    if not group and not config.cpu_offload_gb:
        return NO_HOST_WEIGHTS
    way = get_engine(config.engine).offloads_weights
    if way is None or (group and way == "copied"):
        name = "offload_group_size" if group else "cpu_offload_gb"
        wrong = f"is {getattr(config, name)}: engine {config.engine} does not support it"
        raise FieldError(name, wrong)
    if not group:
        moved = min(config.cpu_offload_gb * GIB, layer_bytes)
        if way == "copied":
            return HostWeights(int(moved), copied=int(moved))
        return HostWeights(int(moved), moved / layer_bytes)
    if number > group:
        raise FieldError(
            "offload_num_in_group", f"is {number}: must be at most offload_group_size, {group}"
        )
    layers, buffers = (
        -(-model.num_layers // config.pipeline_parallel_size),
        config.offload_prefetch_step,
    )
    moved_layers = sum(place % group >= group - number for place in range(layers))
    one = layer_bytes / layers
    if not moved_layers:
        return NO_HOST_WEIGHTS
    saved = int((moved_layers - buffers) * one)
    used = min(buffers, moved_layers)
    return HostWeights(saved, 0.0, one, layers, group, number, used)


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
    on_host = host_weights(config, model, weights - ends)
    return weights - on_host.saved, on_host
