"""One GPU of a pipeline stage in training, before anything is offloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.budget.budget import GIB, LATEST_VLLM, engine_of
from kvsim.training.activations import Activations, checkpoints, stage_activations
from kvsim.training.states import States, share, training_states

if TYPE_CHECKING:
    from kvsim.training.config import TrainingConfig
    from kvsim.training.shape import TrainingShape

#: Number of layers with complete weights at one time if weights are gathered or fetched: the layer
#: in use and the next one (PyTorch FSDP's ``limit_all_gathers`` allows two).
GATHERED_LAYERS = 2


class Stage(NamedTuple):
    """Bytes of one GPU by component.

    ``stored_per_micro_batch`` and ``stored_per_layer`` are the stored activations of one
    micro-batch, in all layers and in one layer (or checkpointed segment). ``whole`` has the states
    without ZeRO. ``num_trained`` is the number of trained parameters.
    """

    states: States
    whole: States
    activations: Activations
    workspace: int
    stored_per_micro_batch: int
    stored_per_layer: int
    num_trained: int


def stage_of(shape: TrainingShape, config: TrainingConfig, stage: int) -> Stage:
    """Return the bytes of one GPU of a stage, with the most layers that any stage has."""
    pp, tp = config.pipeline_parallel_size, config.tensor_parallel_size
    first, last = stage == 0, stage == pp - 1
    layers = share(shape.num_layers, pp)
    body = share(shape.num_layer_params * layers, shape.num_layers * tp)
    ends = shape.num_embedding_params * first + shape.num_lm_head_params * last
    if last and not first and not shape.num_lm_head_params:
        # A tied head is a copy in the last stage.
        ends += shape.vocab_size * shape.hidden_size
    ends = share(ends, tp)
    if config.lora_rank is None:
        trained, frozen, plain = body + ends, 0, 0
    else:
        adapters = shape.lora_params(config.lora_rank)
        trained = share(adapters * layers, shape.num_layers * tp)
        frozen, plain = body + ends, ends
    states = training_states(trained, frozen, plain, config)
    in_flight = min(pp - stage, config.num_micro_batches)
    activations = stage_activations(
        shape, config, num_layers=layers, in_flight=in_flight, first=first, last=last
    )
    unsharded = config.model_copy(update={"zero_stage": 0})
    whole = training_states(trained, frozen, plain, unsharded)
    stored = activations.stored // in_flight
    segment = checkpoints(config.activation_checkpointing, layers).segment or 1
    return Stage(
        states=states,
        whole=whole,
        activations=activations,
        workspace=_workspace(whole, layers, config),
        stored_per_micro_batch=stored,
        stored_per_layer=share(stored, share(layers, segment)),
        num_trained=trained,
    )


def _workspace(whole: States, num_layers: int, config: TrainingConfig) -> int:
    """Return the bytes of CUDA context and communicators, as in inference, and gathered layers."""
    engine = engine_of(LATEST_VLLM)
    several = (config.num_gpus or 1) * config.tensor_parallel_size > 1
    several |= config.pipeline_parallel_size > 1
    total = int((engine.base_gib + engine.nccl_gib * several) * GIB)
    sharded = config.data_parallel_size > 1
    if config.offloads("weights") or (sharded and config.zero_stage == 3):
        total += GATHERED_LAYERS * share(whole.weights, num_layers)
    if config.offloads("optimizer") or (sharded and config.zero_stage >= 2):
        total += share(whole.gradients, num_layers)  # of the layer in its backward pass
    return total
