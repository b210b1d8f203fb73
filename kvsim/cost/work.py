"""The work in a step: FLOPs and bytes, counted exactly, whatever a card makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kvsim.budget.layout import ROTARY_DIM
from kvsim.budget.weights import DTYPE_BYTES, QUANTIZED_BYTES, quantized_params
from kvsim.cost.traffic import gemm_activation_bytes
from kvsim.records.cost import ROOFLINE, Cost, Layers, Work
from kvsim.records.memory import Objects
from kvsim.records.paged import CHUNKED, FULL, SLIDING
from kvsim.rules import work as rules
from kvsim.rules.price import total_bytes, total_flops
from kvsim.rules.work import count_work

if TYPE_CHECKING:
    from kvsim.catalog.spec import AttentionLayer, ModelSpec
    from kvsim.cost.model import CostConfig
    from kvsim.records.memory import Memory
    from kvsim.sched.scheduler import StepPlan


#: Kinds of attention in the catalogue's words.
ATTENTION = {"full": FULL, "sliding": SLIDING, "chunked": CHUNKED}


class LayerClass(NamedTuple):
    """Layers whose attention sees the same tokens: their KV bytes and FLOPs, all together."""

    kind: str
    window: int
    kv_bytes: int  # per token
    pair_flops: float  # per query-key pair of a decode
    prompt_pair_flops: float  # of a prompt


class WorkCounter:
    """Counts the work in steps of one model on one layout, by the rules in :mod:`kvsim.rules`."""

    def __init__(self, config: CostConfig) -> None:
        #: Layers by what they see.
        self.classes = layer_classes(config)
        #: All layers see the same tokens, all of them or those in a sliding window.
        self.one_class = len(self.classes) == 1 and self.classes[0].kind != "chunked"
        self.weight_bytes_by_tokens, head_bytes = streamed_bytes(config)
        record = Cost(price=ROOFLINE, has_samples=True, head_bytes=head_bytes)
        record.body_flops, record.head_flops = gemm_flops(config.model, config.tensor_parallel_size)
        #: Activations that GEMMs read and write per token, and the LM head per sampled one.
        record.token_bytes, record.logit_bytes = gemm_activation_bytes(config)
        record.kv_token_bytes = config.layout.bytes_per_token
        # The layout holds one pipeline stage; a step passes through all of them.
        keeping = sum(mixer is not None for mixer in config.model.mixers)
        keeping -= config.model.num_kv_shared_layers
        own = [layer for layer in config.layout.layers if not layer.is_index]
        record.num_stages = keeping / len(own)
        self.record = record
        self.lay_out(record, Objects())

    def lay_out(self, record: Cost, memory: Memory) -> None:
        """Lay out the tables of a record."""
        record.num_layers = len(self.classes)
        record.layers = memory.records(Layers, len(self.classes))
        for layers, given in zip(record.layers, self.classes, strict=True):
            layers.kind, layers.window = ATTENTION[given.kind], given.window
            layers.kv_bytes, layers.pair_flops = given.kv_bytes, given.pair_flops
            layers.prompt_pair_flops = given.prompt_pair_flops
        record.weight_bytes = memory.list_of(self.weight_bytes_by_tokens)
        record.last_weight = len(self.weight_bytes_by_tokens) - 1

    def count(self, plan: StepPlan) -> Work:
        """Count a step. Does not mutate."""
        count_work(self.record, plan.state.requests, plan.batch)
        pairs = zip(plan.ends, plan.num_tokens, strict=True)
        chunks = [(end - n, end) for end, n in pairs if n > 1]
        return replace(self.record.work, chunks=chunks, swapped_bytes=plan.swapped_bytes)

    def totals(self, work: Work) -> tuple[float, float]:
        """FLOPs and bytes of a step on one GPU of one stage, KV writes included."""
        return total_flops(work) / self.record.num_stages, total_bytes(self.record, work)


def num_pairs(kind: str, window: int, num_tokens: int) -> int:
    """Query-key pairs of the first ``num_tokens`` tokens of a sequence under causal attention."""
    return rules.num_pairs(ATTENTION[kind], window, num_tokens)


def num_keys(kind: str, window: int, num_computed: int, num_new: int) -> int:
    """Distinct keys that the ``num_new`` tokens after ``num_computed`` ones look at."""
    return rules.num_keys(ATTENTION[kind], window, num_computed, num_new)


def layer_classes(config: CostConfig) -> list[LayerClass]:
    """Collect the model's layers by what their attention sees, all pipeline stages together."""
    model, tp = config.model, config.tensor_parallel_size
    # The layout holds one stage; layers of the others are like one of these, or taken to be.
    placed = [kv for kv in config.layout.layers if kv.kind != "mamba" and not kv.is_index]
    places = {layer: kv for kv, layer in zip(placed, model.layers, strict=False)}
    classes: dict[tuple[str, int], LayerClass] = {}
    for index, layer in enumerate(model.layers):
        kv = places.get(layer) or placed[index % len(placed)]
        heads = model.num_query_heads(layer)
        decode, prompt = (2.0 * dims * heads / tp for dims in _pair_dims(config, layer))
        key = (kv.kind, kv.window or 0)
        old = classes.get(key, LayerClass(*key, 0, 0.0, 0.0))
        classes[key] = LayerClass(
            *key,
            old.kv_bytes + kv.bytes_per_token,
            old.pair_flops + decode,
            old.prompt_pair_flops + prompt,
        )
    return list(classes.values())


def state_traffic(config: CostConfig) -> float:
    """Bytes of states that a request reads and writes in a step, all stages together."""
    layers = config.layout.layers
    kept = [layer.state_bytes for layer in layers if layer.kind == "mamba"]
    return 2.0 * sum(kept) / max(len(kept), 1) * config.model.num_state_layers


def _pair_dims(config: CostConfig, layer: AttentionLayer) -> tuple[float, float]:
    """Multiply-adds of a query-key pair and head, of a decode and of a prompt.

    Decodes multiply with MLA's latent itself, as key and as value of every head (the absorbed form
    of DeepSeek-V2, arXiv 2405.04434); prompts with the keys and values made of it.
    """
    model, latent = config.model, config.layout.kv_lora_rank
    if model.is_mla:
        prompt = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
        return layer.head_dim + model.kv_lora_rank, prompt
    prompt = 2 * layer.head_dim
    return (2 * latent + ROTARY_DIM, prompt + ROTARY_DIM) if latent else (prompt, prompt)


def gemm_flops(model: ModelSpec, tp: int) -> tuple[float, float]:
    """FLOPs per token in the layers, and per sampled token in the LM head, on one GPU."""
    head = model.vocab_size * model.hidden_size
    return 2.0 * (model.num_active_params - head) / tp, 2.0 * head / tp


def streamed_bytes(config: CostConfig) -> tuple[list[float], float]:
    """Weight bytes read by a step of m tokens, m = 0, 1, ..., and those of the LM head.

    Of E experts of which every token picks k at random, m tokens touch E (1 - (1 - k/E)^m) on
    average; the table ends where nearly all are touched.
    """
    model, tp = config.model, config.tensor_parallel_size
    element = float(DTYPE_BYTES[config.dtype])
    narrow = QUANTIZED_BYTES.get(config.quantization or "", element)
    touched, others = quantized_params(model, config.quantization)
    head = model.vocab_size * model.hidden_size
    experts = model.num_routed_expert_params
    quantized = narrow if touched else element
    body = model.num_params - model.num_embedding_params - model.num_lm_head_params - experts
    dense = ((body - others) * element + others * narrow) / tp
    table = [dense, dense]
    if experts:
        untouched, table = 1.0, [dense]
        while untouched > 1e-3 and len(table) <= config.max_num_batched_tokens:
            untouched *= 1.0 - model.num_experts_per_token / model.num_experts
            table.append(dense + experts * quantized * (1.0 - untouched) / tp)
        table.append(dense + experts * quantized / tp)
    return table, head * element / tp
