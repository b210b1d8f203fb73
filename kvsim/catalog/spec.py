"""Models and GPUs: their shapes and rates, and the parameter counts that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from kvsim.catalog import compressed
from kvsim.catalog.sizes import check_sizes
from kvsim.catalog.state import STATE_FORMS, StateForm, StateLayer

if TYPE_CHECKING:
    from kvsim.attention.spec import AttentionSpec

#: Letters of ``ModelSpec.layer_pattern`` besides those of the kinds of attention: a state, only an
#: MLP, or only experts.
STATE_KINDS = {"M": "mamba", "P": "attention and mamba"}
OTHER_KINDS = {**STATE_KINDS, "-": "mlp", "E": "experts"}


class AttentionLayer(NamedTuple):
    """The KV shape of one layer: KV per token, and the number of tokens that attention sees."""

    kind: str  # ``layer`` of its kind of attention
    window: int | None  # tokens a sliding layer sees, or the chunk of a chunked-local layer
    num_kv_heads: int  # 1 for MLA, where all heads share the latent
    #: Elements of one K (or V) vector, the mean of both if they differ; for MLA, of the latent plus
    #: the rotary part.
    head_dim: int
    num_vectors: int  # 2 (K and V), or 1 for MLA's latent


def _attention() -> dict[str, type[AttentionSpec]]:
    """Return the kinds of attention by letter; their rules need NumPy, which loads slowly."""
    from kvsim.attention.spec import layers_by_letter

    return layers_by_letter()


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a decoder-only transformer (text backbone only).

    Parameters
    ----------
    name, hf_id, source
        The catalogue's short name, the Hugging Face id, and where the numbers come from.
    num_layers, hidden_size, num_heads, num_kv_heads, head_dim
        Attention shape. ``num_heads * head_dim`` need not be ``hidden_size``.
    intermediate_size
        Width of the dense MLP (of the dense layers, in a mixture of experts).
    vocab_size, max_position_embeddings
        Rows of the embedding, and the longest context in tokens.
    layer_pattern, window
        One letter per layer, repeated over the layers: F full, S sliding, C chunked-local and other
        kinds of :mod:`kvsim.attention`, M a Mamba or linear-attention layer, P full attention and
        such a state side by side, - only an MLP, E only experts. In a pattern with - or E, the
        other layers have no MLP. ``window`` is the sliding window, or the chunk, in tokens.
    full_num_kv_heads, full_head_dim, window_num_heads
        KV heads and head dimension of full-attention layers, and query heads of layers with a
        window, if they differ from those of the other layers.
    num_kv_shared_layers
        Number of last layers that read an earlier layer's KV and store none (Gemma 3n, YOCO).
    full_key_is_value
        Full layers project K once and use it as V too (Gemma 4); both are still cached.
    kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim, q_lora_rank
        Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434); ``kv_lora_rank = 0`` is none.
        Without MLA, ``v_head_dim`` is the width of V if it differs from K's (MiMo-V2).
    index_num_heads, index_head_dim, index_pattern
        Sparse attention's indexer (DeepSeek-V3.2), which stores its own key per token. The pattern,
        repeated, has I for a layer with an indexer and - for one without; empty means all have one.
    compress_ratios, output_groups, output_lora_rank, residual_streams, num_hash_layers
        DeepSeek-V4: tokens per compressed token of each layer (0: only the window), the grouped
        output projection, parallel residual streams, and layers with a table as their router.
    state_form, state_num_heads, state_head_dim, state_num_groups, state_size, conv_kernel
        Sizes of the layers M, see :class:`~kvsim.catalog.state.StateLayer`.
    state_dtype
        The dtype of states if it differs from that of the weights.
    state_chunk
        Tokens of a chunk in the kernels of layers M (mamba_chunk_size); the kernels pass the state
        from chunk to chunk.
    state_full_gate
        Kimi delta attention gates its output by one matrix instead of two narrow ones (Kimi K3).
    state_norm
        Mamba-2 normalises its gated output; the smallest Falcon-H1 does not.
    num_experts, num_experts_per_token, moe_intermediate_size
        Mixture of experts; ``num_experts = 0`` is none.
    num_shared_experts, num_dense_layers
        Number of experts that every token uses (a wider expert counts as several), and of layers
        with a dense MLP instead of experts.
    moe_latent_size
        Width of the routed experts' inputs, between two projections, if not ``hidden_size``.
    gated_mlp, tie_word_embeddings True if an MLP has three matrices instead of two; True if the LM
    head is the embedding.
    qkv_bias, output_bias, mlp_bias, router_bias, lm_head_bias, qk_norm, attention_sinks,
    shared_expert_gate
        True if the model has these small parameters.
    qk_norm_per_layer
        The norms of queries and keys span all heads (MiniMax-M2).
    attention_gate, head_gate
        The output of attention is gated, by a projection as wide as this output (Qwen3-Next), or by
        one number per head (Step).
    norms_per_layer, norm_bias, num_position_embeddings
        Number of norms per layer; True if norms have a bias; rows of learned position embeddings.
    quantization
        The weight format of the checkpoint if not 16-bit: fp8, fp8-block, nvfp4, mxfp4, int8, int4,
        awq, gptq.
    quantized_parts
        ``FORMAT:PART`` for every part that checkpoints in this format quantise: experts,
        shared_experts, mlp, attention, output (of attention), state, state_output. A format without
        an entry quantises all parts; mxfp4 only the experts.
    kv_cache_dtype
        The KV dtype that the checkpoint names, which ``kv_cache_dtype=auto`` uses.
    num_other_params
        Parameters of the text backbone that no other field gives: embeddings per layer, scales.
    num_tower_params
        Parameters of vision and audio towers and their projectors, loaded with the text backbone.
    patches_per_token
        Patches of the vision tower per prompt token; 2 x 2 in most mergers.
    tower_hidden_size
        Width of a vision tower with a known profile run at start-up (Qwen3-VL's); else 0.
    aliases
        Other names of the model in the catalogue, in lower case.

    Raises
    ------
    ValueError
        An impossible shape: an unknown layer letter, a window that is missing or not positive, KV
        heads that do not divide the heads, or a count that is not positive.
    """

    name: str
    hf_id: str
    source: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    layer_pattern: str = "F"
    window: int | None = None
    full_num_kv_heads: int | None = None
    full_head_dim: int | None = None
    full_key_is_value: bool = False
    window_num_heads: int | None = None
    num_kv_shared_layers: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    q_lora_rank: int = 0
    index_num_heads: int = 0
    index_head_dim: int = 0
    index_pattern: str = ""
    compress_ratios: tuple[int, ...] = ()
    output_groups: int = 0
    output_lora_rank: int = 0
    residual_streams: int = 0
    num_hash_layers: int = 0
    state_form: StateForm | None = None
    state_num_heads: int = 0
    state_head_dim: int = 0
    state_num_groups: int = 0
    state_size: int = 0
    conv_kernel: int = 0
    state_dtype: str | None = None
    state_chunk: int = 64
    state_full_gate: bool = False
    state_norm: bool = True
    num_experts: int = 0
    num_experts_per_token: int = 0
    moe_intermediate_size: int = 0
    num_shared_experts: int = 0
    num_dense_layers: int = 0
    moe_latent_size: int = 0
    gated_mlp: bool = True
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    router_bias: bool = False
    lm_head_bias: bool = False
    qk_norm: bool = False
    attention_sinks: bool = False
    qk_norm_per_layer: bool = False
    attention_gate: bool = False
    head_gate: bool = False
    shared_expert_gate: bool = False
    norms_per_layer: int = 2
    norm_bias: bool = False
    num_position_embeddings: int = 0
    quantization: str | None = None
    quantized_parts: tuple[str, ...] = ()
    kv_cache_dtype: str | None = None
    num_other_params: int = 0
    num_tower_params: int = 0
    patches_per_token: int = 4
    tower_hidden_size: int = 0
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_sizes(self)
        self._check_layers()

    def _check_layers(self) -> None:
        kinds, attention = set(self.layer_pattern), _attention()
        if not kinds or not kinds <= attention.keys() | OTHER_KINDS.keys():
            raise ValueError(
                f"model {self.name!r}: layer_pattern {self.layer_pattern!r} must be made of "
                f"{', '.join((*attention, *OTHER_KINDS))}"
            )
        windowed = any(attention[one].has_window for one in kinds & attention.keys())
        if windowed and (self.window is None or self.window <= 0):
            raise ValueError(
                f"model {self.name!r}: layers with a window need window > 0, not {self.window}"
            )
        if kinds & STATE_KINDS.keys() and (self.state is None or self.state_chunk < 1):
            raise ValueError(
                f"model {self.name!r}: layers M need state_form ({', '.join(STATE_FORMS)}) and "
                "positive state_num_heads, state_head_dim, state_size, state_chunk and conv_kernel"
            )

    @cached_property
    def mixers(self) -> tuple[AttentionLayer | StateLayer | None, ...]:
        """Token mixers by layer: attention or a state; None for a layer with only an MLP."""
        return self.mixers_of(self.num_layers)

    def mixers_of(self, num_layers: int) -> tuple[AttentionLayer | StateLayer | None, ...]:
        """Return the token mixers of the first layers; a layer with both kinds has two."""
        letters = (self.layer_pattern[i % len(self.layer_pattern)] for i in range(num_layers))
        kinds = "".join("FM" if letter == "P" else letter for letter in letters)
        return tuple(
            self.state if letter == "M" else None if letter in "-E" else self._layer(letter)
            for letter in kinds
        )

    @cached_property
    def layers(self) -> tuple[AttentionLayer, ...]:
        """The attention layers, in order."""
        return tuple(mixer for mixer in self.mixers if isinstance(mixer, AttentionLayer))

    @property
    def state(self) -> StateLayer | None:
        """The state of a layer M; None if the model has no such layers."""
        sizes = (self.state_num_heads, self.state_head_dim, self.state_size, self.conv_kernel)
        if self.state_form not in STATE_FORMS or min(sizes) <= 0:
            return None
        heads, dim, size, kernel = sizes
        return StateLayer(
            self.state_form,
            heads,
            dim,
            self.state_num_groups,
            size,
            kernel,
            self.state_dtype,
            self.state_full_gate,
            self.state_norm,
        )

    @property
    def num_state_layers(self) -> int:
        """Number of layers that keep a state per request."""
        return sum(isinstance(mixer, StateLayer) for mixer in self.mixers)

    @property
    def num_mlp_layers(self) -> int:
        """Number of layers with an MLP or experts: those without a mixer, if any, else all."""
        alone = sum(mixer is None for mixer in self.mixers)
        return alone or self.num_layers

    def _layer(self, letter: str) -> AttentionLayer:
        of_letter = _attention()[letter]
        kind, window = of_letter.layer, self.window if of_letter.has_window else None
        if self.is_mla:
            return AttentionLayer(kind, window, 1, self.kv_lora_rank + self.qk_rope_head_dim, 1)
        heads = self.num_kv_heads
        if kind == "full":
            heads = self.full_num_kv_heads or heads
        vectors = 1 if self.compress_ratios else 2
        return AttentionLayer(kind, window, heads, sum(self._head_dims(kind)) // 2, vectors)

    def _head_dims(self, kind: str) -> tuple[int, int]:
        """Return the elements of a key and of a value; not for MLA."""
        dim = (self.full_head_dim if kind == "full" else None) or self.head_dim
        return dim, self.v_head_dim or dim

    @cached_property
    def indexed(self) -> tuple[bool, ...]:
        """For each attention layer, in order, True if it has an indexer."""
        if not self.index_head_dim:
            return (False,) * len(self.layers)
        if self.compress_ratios:
            return tuple(ratio == compressed.INDEXED for ratio in self.compress_ratios)
        pattern = self.index_pattern or "I"
        places = [i for i, mixer in enumerate(self.mixers) if isinstance(mixer, AttentionLayer)]
        return tuple(pattern[i % len(pattern)] == "I" for i in places)

    @property
    def num_index_layers(self) -> int:
        """Number of layers that store an indexer's key per token."""
        return sum(self.indexed)

    @property
    def is_mla(self) -> bool:
        """Return True if the layers store one compressed latent per token instead of K and V."""
        return self.kv_lora_rank > 0

    @property
    def is_moe(self) -> bool:
        """Return True if the model has routed experts."""
        return self.num_experts > 0

    # -- parameter counts -----------------------------------------------------------------

    @property
    def num_embedding_params(self) -> int:
        """Parameters of token and learned position embeddings."""
        return (self.vocab_size + self.num_position_embeddings) * self.hidden_size

    @property
    def num_lm_head_params(self) -> int:
        """Parameters of the LM head, 0 if it is the embedding itself."""
        if self.tie_word_embeddings:
            return 0
        return self.vocab_size * (self.hidden_size + self.lm_head_bias)

    @property
    def num_moe_layers(self) -> int:
        """Number of layers with experts."""
        return self.num_mlp_layers - self.num_dense_layers if self.is_moe else 0

    @property
    def num_expert_params(self) -> int:
        """Parameters of one routed expert."""
        if not self.is_moe:
            return 0
        return self._mlp_params(self.moe_intermediate_size, self.moe_latent_size)

    @property
    def num_shared_expert_params(self) -> int:
        """Parameters of a shared expert, which every token uses."""
        return self._mlp_params(self.moe_intermediate_size) if self.is_moe else 0

    @property
    def num_latent_params(self) -> int:
        """Parameters of one layer that project tokens to the experts' width and back."""
        return 2 * self.hidden_size * self.moe_latent_size

    def _mlp_params(self, width: int, inner: int = 0) -> int:
        matrices, hidden = 3 if self.gated_mlp else 2, inner or self.hidden_size
        biases = (matrices - 1) * width + hidden if self.mlp_bias else 0
        return matrices * hidden * width + biases

    def num_attention_params(self, layer: AttentionLayer) -> int:
        """Return the parameters of one layer's attention: projections, biases, norms, gates."""
        h, n = self.hidden_size, self.num_heads
        if self.compress_ratios:
            return compressed.attention_params(self)
        if self.is_mla:
            qk = self.qk_nope_head_dim + self.qk_rope_head_dim
            if self.q_lora_rank:
                q = h * self.q_lora_rank + self.q_lora_rank + self.q_lora_rank * n * qk
            else:
                q = h * n * qk
            down = h * (self.kv_lora_rank + self.qk_rope_head_dim) + self.kv_lora_rank
            up = self.kv_lora_rank * n * (self.qk_nope_head_dim + self.v_head_dim)
            out = n * self.v_head_dim * h * (2 if self.attention_gate else 1)
            return q + down + up + out
        n = self.num_query_heads(layer)
        key, value = self._head_dims(layer.kind)
        q_width, k_width = n * key, layer.num_kv_heads * key
        qkv_width = q_width + k_width + layer.num_kv_heads * value
        if layer.kind == "full" and self.full_key_is_value:
            qkv_width -= k_width
        params = h * qkv_width + n * value * h * (2 if self.attention_gate else 1)
        params += qkv_width * self.qkv_bias + h * self.output_bias
        params += (q_width + k_width) * self.qk_norm_per_layer + h * n * self.head_gate
        params += 2 * key * self.qk_norm + n * self.attention_sinks
        return params

    def num_query_heads(self, layer: AttentionLayer) -> int:
        """Return the number of query heads of one layer."""
        return (self.window_num_heads if layer.window is not None else None) or self.num_heads

    def num_output_params(self, layer: AttentionLayer) -> int:
        """Return the parameters of the output projection of one layer's attention."""
        if self.compress_ratios:
            return compressed.output_params(self)
        width = self.v_head_dim if self.is_mla else self._head_dims(layer.kind)[1]
        return self.num_query_heads(layer) * width * self.hidden_size

    @property
    def num_dense_mlp_params(self) -> int:
        """Parameters of the MLPs of layers without experts."""
        return (self.num_mlp_layers - self.num_moe_layers) * self._mlp_params(
            self.intermediate_size
        )

    @property
    def num_indexer_params(self) -> int:
        """Parameters of one layer's indexer: queries, a key with its norm, weights of heads."""
        if self.compress_ratios:
            return compressed.indexer_params(self)
        heads, dim = self.index_num_heads, self.index_head_dim
        queries = (self.q_lora_rank or self.hidden_size) * heads * dim
        return queries + self.hidden_size * (dim + heads) + 2 * dim if dim else 0

    @cached_property
    def num_params(self) -> int:
        """All parameters of the text backbone, embeddings and LM head included."""
        norm = self.hidden_size * (2 if self.norm_bias else 1)
        total = self.num_embedding_params + self.num_lm_head_params + norm
        total += sum(self.num_attention_params(layer) for layer in self.layers)
        total += self.num_index_layers * self.num_indexer_params + self.num_other_params
        if self.compress_ratios:
            total += compressed.shared_params(self)
        if self.state is not None:
            total += self.num_state_layers * self.state.num_params(self.hidden_size)
        total += self.num_layers * self.norms_per_layer * norm
        total += self.num_dense_mlp_params
        experts = self.num_experts * self.num_expert_params
        experts += self.num_shared_experts * self.num_shared_expert_params + self.num_latent_params
        return total + self.num_moe_layers * (self.num_router_params + experts)

    @property
    def num_router_params(self) -> int:
        """Parameters of one layer's router, and of the gate of its shared expert."""
        if not self.is_moe:
            return 0
        router = self.hidden_size * self.num_experts + self.num_experts * self.router_bias
        return router + self.hidden_size * self.shared_expert_gate

    @property
    def num_routed_expert_params(self) -> int:
        """Parameters in the routed experts of all layers."""
        return self.num_moe_layers * self.num_experts * self.num_expert_params

    @property
    def num_active_params(self) -> int:
        """Parameters used per token, with the LM head and without the embedding lookup."""
        head = self.vocab_size * self.hidden_size
        body = self.num_params - self.num_embedding_params - self.num_lm_head_params
        idle = self.num_experts - self.num_experts_per_token
        return body + head - self.num_moe_layers * idle * self.num_expert_params


@dataclass(frozen=True)
class GpuSpec:
    """One accelerator. Rates are per second and dense; memory is in bytes.

    Parameters
    ----------
    memory_bytes
        Memory that CUDA reports (``torch.cuda.mem_get_info``), not the nominal memory.
    memory_bandwidth_bytes_per_s, bf16_flops_per_s
        Peak HBM bandwidth and peak dense 16-bit rate (FP16 if the card has no BF16).
    fp8_flops_per_s, int8_ops_per_s, fp4_flops_per_s
        Peak dense rates; 0 if the card has no such unit or its rate is unknown.
    nvlink_bytes_per_s, pcie_bytes_per_s
        Rates of one direction; ``nvlink_bytes_per_s`` is 0 if GPUs communicate over PCIe.
    num_links
        If GPUs are linked directly, without a switch: number of links of a GPU, each to another GPU
        and with an equal share of ``nvlink_bytes_per_s``; else 0.
    num_linked_gpus
        Largest number of GPUs in one NVLink domain; by default 8, those of a server.
    unverified
        Fields with values that were not checked against their source.
    """

    name: str
    source: str
    memory_bytes: int
    nominal_memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    bf16_flops_per_s: float
    fp8_flops_per_s: float
    int8_ops_per_s: float
    nvlink_bytes_per_s: float
    pcie_bytes_per_s: float
    l2_bytes: int
    num_sms: int
    num_links: int = 0
    num_linked_gpus: int = 8
    fp4_flops_per_s: float = 0.0
    aliases: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()

    def link_bytes_per_s(self, num_gpus: int) -> float:
        """Return a GPU's peak rate in one direction to the others of ``num_gpus``, bytes/s."""
        rate = self.nvlink_bytes_per_s or self.pcie_bytes_per_s
        if not self.num_links:
            return rate
        return rate * min(num_gpus - 1, self.num_links) / self.num_links
