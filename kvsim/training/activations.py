"""Activations that training stores for the backward pass: bytes on one GPU.

Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv
2205.05198, section 4): a layer of 16-bit activations keeps

    s b h (34 + 5 a s / h)                          on one GPU,
    s b h (10 + 24 / t + 5 a s / (h t))             with tensor parallelism,
    s b h / t (34 + 5 a s / h)                      with sequence parallelism, too,

with s tokens, b sequences, width h, a heads and t GPUs. Here each activation is counted by itself,
which also covers fewer KV heads, more norms, a gated MLP, FP32 and FP8 (D35).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.budget.layout import heads_per_rank
from kvsim.training.states import share

if TYPE_CHECKING:
    from kvsim.training.config import TrainingConfig
    from kvsim.training.shape import TrainingShape

#: Bytes per element of an activation, and of an activation stored as the input of a matrix
#: multiplication, which Transformer Engine stores in FP8.
ACTIVATION_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}
GEMM_INPUT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}

#: Activations that selective recomputation drops (section 5 of the paper).
CORE_ATTENTION = ("scores",)


def layer_pieces(shape: TrainingShape, config: TrainingConfig) -> dict[str, int]:
    """Return the activations that one layer stores for one micro-batch, by kind.

    Returns
    -------
    dict
        Bytes on one GPU. ``scores`` is the 5 a s² b of standard attention (softmax, its dropout
        mask and the dropout's output), or flash attention's softmax statistics (one FP32 number
        per head and token; Dao et al., arXiv 2205.14135).
    """
    tokens = config.batch_size * config.seq_len
    element, gemm = ACTIVATION_BYTES[config.precision], GEMM_INPUT_BYTES[config.precision]
    t = config.tensor_parallel_size
    outside = t if config.sequence_parallel else 1
    kv_width = heads_per_rank(shape.num_kv_heads, t) * shape.head_dim
    hidden = tokens * shape.hidden_size
    queries, mlp = tokens * share(shape.q_width, t), tokens * share(shape.intermediate_size, t)
    per_head = tokens * shape.num_heads // t
    flash = config.attention == "flash"
    pieces = {
        "norm_inputs": share(shape.norms_per_layer * element * hidden, outside),
        "qkv_input": share(gemm * hidden, outside),
        "queries": element * queries,
        "keys_and_values": 2 * element * tokens * kv_width,
        "scores": per_head * (4 if flash else (2 * element + 1) * config.seq_len),
        "projection_input": gemm * queries,
        "mlp_input": share(gemm * hidden, outside),
        # A gated MLP stores both first outputs; their product is the input of the second matrix.
        "mlp_outputs": element * mlp * (2 if shape.gated_mlp else 1),
        "mlp_second_input": gemm * mlp,
        "dropout_masks": share(2 * hidden, outside),
    }
    if shape.qk_norm:
        pieces["qk_norm_inputs"] = element * (queries + tokens * kv_width)
    if config.lora_rank is not None:
        pieces["lora"] = 4 * element * tokens * config.lora_rank
    return pieces


class Checkpoints(NamedTuple):
    """A rule of activation checkpointing.

    ``segment`` layers are recomputed together from the input of the first of them; 0 recomputes no
    layer. ``selective`` recomputes only the core of attention.
    """

    segment: int
    selective: bool


def checkpoints(rule: str, num_layers: int) -> Checkpoints:
    """Parse ``none``, ``full``, ``selective``, ``sqrt`` or ``every-N``.

    ``full`` stores the input of every layer (``every-1``), ``sqrt`` that of every sqrt(L)-th layer
    (Chen et al., arXiv 1604.06174).

    Raises
    ------
    ValueError
        For any other text, and for an N below 1 or above the number of layers of a stage.
    """
    if rule in ("none", "selective"):
        return Checkpoints(0, rule == "selective")
    if rule == "sqrt":
        segment = 1
        while segment * segment < num_layers:
            segment += 1
        return Checkpoints(segment, False)
    every = "1" if rule == "full" else rule.removeprefix("every-")
    if every == rule or not every.isascii() or not every.isdigit():
        raise ValueError(
            f"activation_checkpointing {rule!r}: must be none, full, selective, sqrt or every-N"
        )
    if not 1 <= int(every) <= num_layers:
        raise ValueError(
            f"activation_checkpointing {rule!r}: N must be 1 to {num_layers}, the layers of a stage"
        )
    return Checkpoints(int(every), False)


class Activations(NamedTuple):
    """Bytes on one GPU of a pipeline stage.

    Attributes
    ----------
    stored : activations of every micro-batch in flight, stored until its backward pass
    recomputed : activations of one segment, alive while its backward pass runs
    embedding : dropout mask of the embedding
    output : inputs of the last norm and of the LM head, and FP32 logits
    """

    stored: int
    recomputed: int
    embedding: int
    output: int

    @property
    def total(self) -> int:
        """The sum of all parts: the peak."""
        return self.stored + self.recomputed + self.embedding + self.output


def stage_activations(
    shape: TrainingShape,
    config: TrainingConfig,
    *,
    num_layers: int,
    in_flight: int,
    first: bool,
    last: bool,
) -> Activations:
    """Return the activations of a pipeline stage.

    Parameters
    ----------
    num_layers : layers of the stage
    in_flight : micro-batches that await their backward pass: under 1F1B the number of stages from
        this one on (section 4.2.3 of the paper), or fewer if a step has fewer
    first : True if the stage has the embedding
    last : True if the stage has the LM head (section 4.3)
    """
    pieces = layer_pieces(shape, config)
    layer = sum(pieces.values())
    rule = checkpoints(config.activation_checkpointing, num_layers)
    recomputed = 0
    if rule.segment:
        stored = share(num_layers, rule.segment) * layer_input_bytes(shape, config)
        recomputed = rule.segment * layer
    elif rule.selective and config.attention == "standard":
        recomputed = sum(pieces[name] for name in CORE_ATTENTION)
        stored = num_layers * (layer - recomputed)
    else:
        stored = num_layers * layer
    embedding = output = 0
    if shape.vocab_size:
        tokens, t = config.batch_size * config.seq_len, config.tensor_parallel_size
        outside = t if config.sequence_parallel else 1
        hidden = tokens * shape.hidden_size
        if first:
            embedding = in_flight * share(hidden, outside)
        if last:
            element = ACTIVATION_BYTES[config.precision]
            logits = 4 * tokens * share(shape.vocab_size, t)
            output = share(2 * element * hidden, outside) + logits
    return Activations(in_flight * stored, recomputed, embedding, output)


def layer_input_bytes(shape: TrainingShape, config: TrainingConfig) -> int:
    """Return the bytes of a layer's input, which a checkpoint stores: the paper's 2 s b h."""
    hidden = config.batch_size * config.seq_len * shape.hidden_size
    outside = config.tensor_parallel_size if config.sequence_parallel else 1
    return share(ACTIVATION_BYTES[config.precision] * hidden, outside)


def extra_compute(shape: TrainingShape, config: TrainingConfig) -> float:
    """Return the FLOPs of recomputation as a share of a step without it (1/3 for all layers).

    A step is a forward pass and a backward pass of twice its FLOPs. A layer takes 2 P + 4 s w FLOPs
    per token, with P parameters, s tokens per sequence and w query elements.
    """
    rule = checkpoints(config.activation_checkpointing, shape.num_layers)
    context = 4 * config.seq_len * shape.q_width
    layer = 2 * shape.num_layer_params / shape.num_layers + context
    forward = shape.num_layers * layer + 2 * shape.vocab_size * shape.hidden_size
    if rule.segment:
        again = shape.num_layers * layer
    elif rule.selective and config.attention == "standard":
        again = float(shape.num_layers * context)
    else:
        again = 0.0
    return again / (3 * forward)
