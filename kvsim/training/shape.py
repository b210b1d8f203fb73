"""The shape of a model to train, from the catalogue or from a few numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.budget.layout import heads_per_rank
from kvsim.catalog import get_model
from kvsim.errors import FieldError

if TYPE_CHECKING:
    from kvsim.training.config import TrainingConfig


class TrainingShape(NamedTuple):
    """The sizes of a model that determine training memory; widths are in elements.

    ``num_embedding_params``, ``num_lm_head_params`` and ``vocab_size`` are 0 if only the layers are
    known. With a tied head, ``num_lm_head_params`` is 0.
    """

    name: str
    num_params: int
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    gated_mlp: bool
    norms_per_layer: int
    qk_norm: bool
    vocab_size: int
    num_embedding_params: int
    num_lm_head_params: int

    @property
    def q_width(self) -> int:
        """Elements of a token's queries over all heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of a token's keys over all heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_layer_params(self) -> int:
        return self.num_params - self.num_embedding_params - self.num_lm_head_params

    def lora_params(self, rank: int) -> int:
        """Return the parameters of LoRA adapters on q, k, v, o of every layer (arXiv 2106.09685).

        Raises
        ------
        ValueError
            For a rank above the smallest width of these matrices.
        """
        widths = [self.q_width, self.kv_width, self.kv_width, self.q_width]
        most = min(self.hidden_size, *widths)
        if rank > most:
            raise FieldError("lora_rank", f"is {rank}: must be at most {most}, the smallest width")
        return self.num_layers * sum(rank * (self.hidden_size + width) for width in widths)


def training_shape(config: TrainingConfig) -> TrainingShape:
    """Resolve a configuration's model and check it against the parallelism.

    Raises
    ------
    ValueError
        For an unknown model, numbers that are missing or conflict with a model, MLA and mixtures of
        experts (their activations are not modelled), and sizes that the parallelism cannot split
        evenly.
    """
    shape = _from_numbers(config) if config.model is None else _from_model(config)
    tp, pp = config.tensor_parallel_size, config.pipeline_parallel_size
    if shape.num_heads % tp:
        raise FieldError(
            "tensor_parallel_size", f"is {tp}: must divide the {shape.num_heads} heads"
        )
    heads_per_rank(shape.num_kv_heads, tp)
    if pp > shape.num_layers:
        raise FieldError(
            "pipeline_parallel_size", f"is {pp}: must be at most the {shape.num_layers} layers"
        )
    return shape


_SIZES = ("params", "num_layers", "hidden_size", "num_heads")
_OPTIONAL = ("num_kv_heads", "intermediate_size", "vocab_size")


def _from_model(config: TrainingConfig) -> TrainingShape:
    beside = [name for name in (*_SIZES, *_OPTIONAL) if getattr(config, name) is not None]
    if beside:
        raise FieldError(beside[0], "conflicts with model, which has its own")
    assert config.model is not None
    model = get_model(config.model)
    if model.is_moe or model.is_mla:
        what = "a mixture of experts" if model.is_moe else "latent attention (MLA)"
        raise FieldError("model", f"{model.name} has {what}: must be a dense model with K and V")
    if model.num_state_layers:
        raise FieldError(
            "model",
            f"{model.name} has Mamba or linear-attention layers: only the memory of "
            "attention is known",
        )
    return TrainingShape(*(getattr(model, name) for name in TrainingShape._fields))


def _from_numbers(config: TrainingConfig) -> TrainingShape:
    missing = [name for name in _SIZES if getattr(config, name) is None]
    if len(missing) == len(_SIZES):
        sizes = "params, num_layers, hidden_size and num_heads"
        raise FieldError("model", f"is missing: give a model, or {sizes}")
    if missing:
        raise FieldError(
            missing[0], "is missing: params needs num_layers, hidden_size and num_heads"
        )
    params, layers, hidden, heads = (getattr(config, name) for name in _SIZES)
    kv_heads = config.num_kv_heads or heads
    if hidden % heads:
        raise FieldError("num_heads", f"is {heads}: must divide the hidden size {hidden}")
    if heads % kv_heads:
        raise FieldError("num_kv_heads", f"is {kv_heads}: must divide the {heads} heads")
    vocab = config.vocab_size or 0
    if 2 * vocab * hidden >= params:
        raise FieldError(
            "vocab_size", f"is {vocab}: embedding and LM head alone would exceed {params} params"
        )
    return TrainingShape(
        name=f"{params / 1e9:g}B parameters",
        num_params=params,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=config.intermediate_size or 4 * hidden,
        gated_mlp=False,
        norms_per_layer=2,
        qk_norm=False,
        vocab_size=vocab,
        num_embedding_params=vocab * hidden,
        num_lm_head_params=vocab * hidden,
    )
