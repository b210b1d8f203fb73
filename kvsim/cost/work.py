"""The work of a step: exact counts of FLOPs and bytes, which do not depend on the card."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kvsim.attention.spec import kind_of_layer, number_of_layer
from kvsim.budget.layout import ROTARY_DIM
from kvsim.cost.experts import count_experts, touched_by_tokens
from kvsim.cost.gemms import count_gemms
from kvsim.cost.host_link import init_host_weights
from kvsim.cost.paged_experts import fetched_by_tokens
from kvsim.records.cost import ROOFLINE, Cost, Layers, Work
from kvsim.records.memory import Objects
from kvsim.rules.price import total_bytes, total_flops
from kvsim.rules.work import count_work

if TYPE_CHECKING:
    from kvsim.catalog.spec import AttentionLayer, ModelSpec
    from kvsim.cost.model import CostConfig
    from kvsim.records.memory import Memory
    from kvsim.records.record import Record
    from kvsim.sched.scheduler import StepPlan


#: Keys that an indexer chooses for a query: ``index_topk`` of DeepSeek-V3.2 and GLM-5.
INDEX_TOP = 2048


class LayerClass(NamedTuple):
    """Layers with attention over the same tokens: their total KV bytes and FLOPs."""

    kind: str
    window: int
    kv_bytes: int  # per token
    pair_flops: float  # per query-key pair of a decode
    prompt_pair_flops: float  # of a prompt


class WorkCounter:
    """Counts the work of steps of a configuration by the rules in :mod:`kvsim.rules.work`."""

    def __init__(self, config: CostConfig) -> None:
        #: Layers grouped by the tokens that they attend to.
        self.classes = layer_classes(config)
        #: True if all layers attend to the same tokens (all tokens, or one sliding window).
        self.one_class = len(self.classes) == 1 and kind_of_layer(self.classes[0].kind).is_linear
        record = Cost(price=ROOFLINE, has_samples=True)
        count_gemms(record, config)
        count_experts(record, config)
        init_host_weights(record, config)
        #: Experts of a layer that a step of m tokens uses, for m = 0, 1, ...
        self.touched_experts = touched_by_tokens(config)
        #: Of these, experts that it copies from host memory.
        self.fetched_experts = fetched_by_tokens(config)
        shares = config.decode_context_parallel_size
        record.kv_token_bytes = config.layout.bytes_per_token // shares
        record.splits_context = shares > 1
        # The layout holds one pipeline stage; a step passes through all stages.
        keeping = sum(mixer is not None for mixer in config.model.mixers)
        keeping -= config.model.num_kv_shared_layers
        own = [layer for layer in config.layout.layers if not layer.is_index]
        record.num_stages = keeping / len(own)
        self.record, self.num_shares = record, shares
        self.init_state(record, Objects())

    def init_state(self, record: Cost, memory: Memory) -> None:
        record.num_layers = len(self.classes)
        record.layers = memory.records(Layers, len(self.classes))
        for layers, given in zip(record.layers, self.classes, strict=True):
            layers.kind, layers.window = number_of_layer(given.kind), given.window
            layers.kv_bytes = given.kv_bytes // self.num_shares
            layers.pair_flops = given.pair_flops
            layers.prompt_pair_flops = given.prompt_pair_flops
        record.host.ready = memory.floats(self.record.host.num_buffers)
        record.experts.touched = memory.list_of(self.touched_experts)
        record.experts.fetched = memory.list_of(self.fetched_experts)

    def init_price(self, record: Cost, memory: Memory) -> None:
        """Fill an empty record with the constants and tables of this one."""
        copy_numbers(self.record, record)
        for name in ("wide", "narrow", "experts", "host"):
            copy_numbers(getattr(self.record, name), getattr(record, name))
        self.init_state(record, memory)

    def count(self, plan: StepPlan) -> Work:
        """Return the work of a step. Does not mutate."""
        count_work(self.record, plan.state.requests, plan.batch)
        pairs = zip(plan.ends, plan.num_tokens, strict=True)
        chunks = [(end - n, end) for end, n in pairs if n > 1]
        beside = {"swapped_bytes": plan.swapped_bytes, "num_adapters": plan.num_adapters}
        return replace(self.record.work, chunks=chunks, **beside)

    def totals(self, work: Work) -> tuple[float, float]:
        """Return (FLOPs, bytes) of a step on one GPU of one stage, KV writes included."""
        return total_flops(work) / self.record.num_stages, total_bytes(self.record, work)


def copy_numbers(given: Record, to: Record) -> None:
    """Copy the numbers of a record, but not its lists and embedded records."""
    for name, kind in given.kinds().items():
        if kind in (int, float, bool):
            setattr(to, name, getattr(given, name))


def num_pairs(kind: str, window: int, num_tokens: int) -> int:
    """Return the query-key pairs of a sequence's first tokens under causal attention."""
    return kind_of_layer(kind).num_pairs(window, num_tokens)


def num_keys(kind: str, window: int, num_computed: int, num_new: int) -> int:
    """Return the distinct keys that ``num_new`` tokens after ``num_computed`` ones attend to."""
    return kind_of_layer(kind).num_keys(window, num_computed, num_new)


def layer_classes(config: CostConfig) -> list[LayerClass]:
    """Group the model's layers by the tokens that they attend to, over all pipeline stages."""
    model, tp = config.model, config.tensor_parallel_size
    if model.compress_ratios:
        raise ValueError(
            f"the roofline has no step times for the compressed attention of {model.name}; give "
            "cost_model constant+seconds=S, seconds of a step"
        )
    # The layout holds one stage; layers of other stages are assumed to equal one of its layers.
    placed = [kv for kv in config.layout.layers if not kv.is_state and not kv.is_index]
    places = {layer: kv for kv, layer in zip(placed, model.layers, strict=False)}
    classes: dict[tuple[str, int], LayerClass] = {}
    for index, layer in enumerate(model.layers):
        kv = places.get(layer) or placed[index % len(placed)]
        heads = model.num_query_heads(layer)
        decode, prompt = (2.0 * dims * heads / tp for dims in _pair_dims(config, layer))
        key = (kv.kind, kv.window or 0)
        if is_sparse(model):  # attends to INDEX_TOP keys, as in a window, in the absorbed form
            key, prompt = ("sliding", INDEX_TOP), decode
        old = classes.get(key, LayerClass(*key, 0, 0.0, 0.0))
        classes[key] = LayerClass(
            *key,
            old.kv_bytes + kv.bytes_per_token,
            old.pair_flops + decode,
            old.prompt_pair_flops + prompt,
        )
    if is_sparse(model):
        classes["full", 0] = index_class(config)
    return list(classes.values())


def is_sparse(model: ModelSpec) -> bool:
    """Return True if an indexer selects the keys of latent attention."""
    return model.is_mla and model.num_index_layers > 0


def index_class(config: CostConfig) -> LayerClass:
    """Return the class of the indexers, which read the keys of all tokens on every rank."""
    model, kept = config.model, [layer for layer in config.layout.layers if layer.is_index]
    pair = 2.0 * model.index_num_heads * model.index_head_dim * model.num_index_layers
    num_bytes = sum(layer.bytes_per_token for layer in kept) // max(len(kept), 1)
    return LayerClass("full", 0, num_bytes * model.num_index_layers, pair, pair)


def _pair_dims(config: CostConfig, layer: AttentionLayer) -> tuple[float, float]:
    """Return the multiply-adds per query-key pair and head of a decode and of a prompt.

    Decodes use MLA's latent directly as key and value of every head (the absorbed form of
    DeepSeek-V2, arXiv 2405.04434). Prompts use the keys and values computed from it.
    """
    model, latent = config.model, config.layout.kv_lora_rank
    if model.is_mla:
        prompt = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
        return (
            layer.head_dim + model.kv_lora_rank if config.layout.keeps_latent else prompt
        ), prompt
    prompt = 2 * layer.head_dim
    return (2 * latent + ROTARY_DIM, prompt + ROTARY_DIM) if latent else (prompt, prompt)
