"""Memory of training a dense transformer: a closed form per GPU, no simulation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from kvsim.budget.budget import GIB
from kvsim.catalog import get_gpu
from kvsim.display import Displayed
from kvsim.training.activations import extra_compute, layer_pieces
from kvsim.training.offload import Traffic, add, optimizer_traffic, transfer_seconds
from kvsim.training.shape import TrainingShape, training_shape
from kvsim.training.stage import Stage, stage_of
from kvsim.training.states import communication_bytes, share, trained_bytes

if TYPE_CHECKING:
    from kvsim.catalog.spec import GpuSpec
    from kvsim.training.config import TrainingConfig
    from kvsim.training.remedies import Remedy


@dataclass(frozen=True, repr=False)
class TrainingMemory(Displayed):
    """Bytes of training on one GPU, for the pipeline stage that needs the most.

    Attributes
    ----------
    weights_bytes, gradients_bytes, optimizer_bytes, activations_bytes, workspace_bytes,
    total_bytes : bytes on the GPU, without offloaded parts; optimizer_bytes has master weights
    gpu_memory_bytes : memory that CUDA reports
    fits : the total fits in this memory, and the offloaded parts in ``offload_space``
    num_params, num_trained_params : all and trained parameters of the model, adapters included
    activations : bytes stored, recomputed, of embedding and of output, before offloading
    layer_activation_bytes : activation bytes of one layer and micro-batch, by kind
    offloaded_bytes : bytes by part, on this GPU's host or drive
    traffic_bytes : bytes per step to and from host or drive
    transfer_seconds : seconds of this traffic per step, if no transfers overlap
    communication_bytes : bytes that the GPU sends to data-parallel peers per step
    extra_compute : recomputation, as a share of a step's FLOPs
    global_batch_size : sequences per step
    assumptions : defaults used, and memory that is not modelled
    remedies : changes that make the job fit, each added to those before; none if it fits
    """

    shown_by: ClassVar[str] = "kvsim.report.training.training_table"

    model: str
    gpu: str
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    workspace_bytes: int
    total_bytes: int
    gpu_memory_bytes: int
    fits: bool
    num_params: int
    num_trained_params: int
    num_gpus: int
    data_parallel_size: int
    global_batch_size: int
    activations: dict[str, int]
    layer_activation_bytes: dict[str, int]
    offloaded_bytes: dict[str, int]
    traffic_bytes: dict[str, int]
    transfer_seconds: float
    communication_bytes: int
    extra_compute: float
    assumptions: tuple[str, ...]
    remedies: tuple[Remedy, ...] = ()

    @property
    def states_bytes(self) -> int:
        """Bytes of weights, gradients and optimizer states."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        given = {"remedies": [remedy._asdict() for remedy in self.remedies]}
        return {**asdict(self), **given, "assumptions": list(self.assumptions)}


def training_memory(config: TrainingConfig) -> TrainingMemory:
    """Compute the training memory of a validated configuration.

    Raises
    ------
    ValueError
        For unknown names, and sizes that the parallelism cannot split evenly.
    """
    gpu, shape = get_gpu(config.gpu), training_shape(config)
    stages = {0, config.pipeline_parallel_size - 1}
    found = [
        _on_gpu(stage_of(shape, config, stage), shape, config, gpu) for stage in sorted(stages)
    ]
    return max(found, key=lambda one: one.total_bytes)


def _on_gpu(
    stage: Stage, shape: TrainingShape, config: TrainingConfig, gpu: GpuSpec
) -> TrainingMemory:
    """Return the memory of one stage's GPU without offloaded parts, and their transfers."""
    weights, gradients, optimizer = stage.states
    activations = stage.activations.total
    away: dict[str, int] = {}
    traffic = []
    weight, gradient = trained_bytes(config)
    if config.offloads("optimizer"):
        sharded = config.data_parallel_size if config.zero_stage else 1
        mine = share(stage.num_trained, sharded)
        traffic.append(
            optimizer_traffic(
                config, gradients=gradient * mine, weights=weight * mine, states=optimizer
            )
        )
        away |= {"optimizer": optimizer, "gradients": gradient * mine}
        gradients = optimizer = 0
    if config.offloads("weights"):
        # Fetched for each forward and each backward pass.
        traffic.append(Traffic(to_gpu=2 * weights * config.num_micro_batches))
        away["weights"] = weights
        weights = 0
    if config.offloads("activations"):
        stored, one = stage.activations.stored, stage.stored_per_micro_batch
        kept = min(stored, 2 * stage.stored_per_layer)  # the current layer's, and those in transfer
        size = one * config.num_micro_batches
        traffic.append(Traffic(to_gpu=size, from_gpu=size))
        away["activations"] = stored - kept
        activations -= stored - kept
    total = weights + gradients + optimizer + activations + stage.workspace
    if config.offload == "paged":
        paged = min(optimizer, max(0, total - gpu.memory_bytes))
        traffic.append(Traffic(to_gpu=paged, from_gpu=paged))
        away["optimizer"] = paged
        optimizer -= paged
        total -= paged
    moved = add(traffic)
    room = config.offload_space is None or sum(away.values()) <= config.offload_space * GIB
    adapters = shape.lora_params(config.lora_rank) if config.lora_rank else 0
    replicas = config.data_parallel_size
    return TrainingMemory(
        model=shape.name,
        gpu=gpu.name,
        weights_bytes=weights,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        activations_bytes=activations,
        workspace_bytes=stage.workspace,
        total_bytes=total,
        gpu_memory_bytes=gpu.memory_bytes,
        fits=total <= gpu.memory_bytes and room,
        num_params=shape.num_params + adapters,
        num_trained_params=adapters or shape.num_params,
        num_gpus=replicas * config.tensor_parallel_size * config.pipeline_parallel_size,
        data_parallel_size=replicas,
        global_batch_size=config.batch_size * config.num_micro_batches * replicas,
        activations=stage.activations._asdict(),
        layer_activation_bytes=layer_pieces(shape, config),
        offloaded_bytes=away,
        traffic_bytes=moved._asdict(),
        transfer_seconds=transfer_seconds(moved, config, gpu),
        communication_bytes=communication_bytes(
            stage.whole.weights,
            stage.whole.gradients,
            config,
            num_trained_bytes=weight * stage.num_trained,
        ),
        extra_compute=extra_compute(shape, config),
        assumptions=_assumptions(config, shape, gpu),
    )


def _assumptions(config: TrainingConfig, shape: TrainingShape, gpu: GpuSpec) -> tuple[str, ...]:
    """Return sentences on the assumptions, and on memory that is not counted."""
    notes = []
    if not shape.vocab_size:
        notes.append("embeddings and logits not counted (no vocab_size)")
    if config.gradient_accumulation_steps is None and config.num_micro_batches > 1:
        notes.append(f"{config.num_micro_batches} micro-batches per step, one per stage")
    if config.zero_stage and config.data_parallel_size == 1:
        notes.append("ZeRO has one replica, so nothing to shard over")
    if config.lora_rank is not None:
        notes.append("frozen layers keep all their activations (an upper bound)")
    if config.precision == "fp8" and not gpu.fp8_flops_per_s:
        notes.append(f"{gpu.name} has no FP8 unit")
    if config.offload != "none":
        if config.offload_space is None:
            notes.append("host memory without a limit")
        notes.append("transfers do not overlap with compute")
    if "memory_bytes" in gpu.unverified:
        notes.append(f"the memory that CUDA reports on {gpu.name} is unverified")
    notes.append("dropout masks counted, as published")
    return tuple(notes)
