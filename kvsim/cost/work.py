"""The work in a step: FLOPs and bytes, counted exactly, whatever a card makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.cost.traffic import gemm_activation_bytes
from kvsim.memory.layout import ROTARY_DIM
from kvsim.memory.weights import DTYPE_BYTES, QUANTIZED_BYTES

if TYPE_CHECKING:
    from kvsim.catalog.spec import AttentionLayer, ModelSpec
    from kvsim.cost.model import CostConfig
    from kvsim.sched.scheduler import StepPlan


class LayerClass(NamedTuple):
    """Layers whose attention sees the same tokens: their KV bytes and FLOPs, all together."""

    kind: str
    window: int
    kv_bytes: int  # per token
    pair_flops: float  # per query-key pair of a decode
    prompt_pair_flops: float  # of a prompt


class Work(NamedTuple):
    """What a step holds, all pipeline stages together, on one GPU of each.

    Tokens and requests are counts; of the requests, ``num_sampled`` get a token and
    ``num_decodes`` compute one token. Bytes are reads: weights of the layers (``weight_bytes``) and
    of the LM head, KV by decodes and by prompts.
    """

    num_requests: int
    num_tokens: int
    num_sampled: int
    num_decodes: int
    weight_bytes: float
    gemm_flops: float
    head_bytes: float
    head_flops: float
    decode_bytes: float
    decode_flops: float
    prefill_bytes: float
    prefill_flops: float
    plan: StepPlan

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """First and past-the-end token of every prompt, or chunk of one, in the step."""
        plan = self.plan
        pairs = zip(plan.requests, plan.num_tokens, strict=True)
        return [(r.num_computed_tokens - n, r.num_computed_tokens) for r, n in pairs if n > 1]

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of prompts, or of chunks of them."""
        return self.num_tokens - self.num_decodes


class WorkCounter:
    """Counts the work in steps of one model on one layout."""

    def __init__(self, config: CostConfig) -> None:
        #: Layers by what they see.
        self.classes = layer_classes(config)
        #: All layers see the same tokens, all of them or those in a sliding window.
        self.one_class = len(self.classes) == 1 and self.classes[0].kind != "chunked"
        self._one_full_class = self.one_class and self.classes[0].kind == "full"
        self.body_flops, self.head_flops = gemm_flops(config.model, config.tensor_parallel_size)
        self.weight_bytes_by_tokens, self.head_bytes = streamed_bytes(config)
        #: Activations that GEMMs read and write per token, and the LM head per sampled one.
        self.token_bytes, self.logit_bytes = gemm_activation_bytes(config)
        self._kv_bytes = config.layout.bytes_per_token
        # The layout holds one pipeline stage; a step passes through all of them.
        self._num_stages = config.model.num_layers / len(config.layout.layers)

    def count(self, plan: StepPlan) -> Work:
        """Count a step that is not empty. Does not mutate."""
        num_requests = len(plan.requests)
        num_tokens = sum(plan.num_tokens)
        num_sampled = num_requests - len(plan.unfinished)
        num_decodes = plan.num_tokens.count(1)
        if plan.has_samples:
            num_requests, num_tokens, num_sampled, num_decodes = sample_counts(plan)
        last = len(self.weight_bytes_by_tokens) - 1
        return Work(
            num_requests,
            num_tokens,
            num_sampled,
            num_decodes,
            self.weight_bytes_by_tokens[min(num_tokens, last)],
            num_tokens * self.body_flops,
            self.head_bytes if num_sampled else 0.0,
            num_sampled * self.head_flops,
            *self._attention(plan),
            plan,
        )

    def _attention(self, plan: StepPlan) -> tuple[float, float, float, float]:
        """Return KV bytes and FLOPs of decodes, then of prompts."""
        decode_bytes = prefill_bytes = prefill_flops = decode_flops = 0.0
        for layers in self.classes:
            if self._one_full_class and not plan.has_samples:
                decode_keys, prefill_keys, prefill_pairs = full_attention(plan)
            else:
                decode_keys, prefill_keys, prefill_pairs = seen(plan, layers.kind, layers.window)
            decode_bytes += decode_keys * layers.kv_bytes
            prefill_bytes += prefill_keys * layers.kv_bytes
            prefill_flops += prefill_pairs * layers.prompt_pair_flops
            decode_flops += decode_keys * layers.pair_flops
        return decode_bytes, decode_flops, prefill_bytes, prefill_flops

    def totals(self, work: Work) -> tuple[float, float]:
        """FLOPs and bytes of a step on one GPU of one stage, KV writes included."""
        flops = work.gemm_flops + work.head_flops + work.prefill_flops + work.decode_flops
        weights = work.weight_bytes + work.head_bytes
        read = weights + work.decode_bytes + work.prefill_bytes
        written = work.num_tokens * self._kv_bytes
        return flops / self._num_stages, read / self._num_stages + written


def num_pairs(kind: str, window: int, num_tokens: int) -> int:
    """Query-key pairs of the first ``num_tokens`` tokens of a sequence under causal attention."""
    if kind == "full" or num_tokens <= window:
        return num_tokens * (num_tokens + 1) // 2
    if kind == "sliding":
        return window * (window + 1) // 2 + (num_tokens - window) * window
    chunks, rest = divmod(num_tokens, window)
    return chunks * (window * (window + 1) // 2) + rest * (rest + 1) // 2


def num_keys(kind: str, window: int, num_computed: int, num_new: int) -> int:
    """Distinct keys that the ``num_new`` tokens after ``num_computed`` ones look at."""
    if kind == "sliding":
        return min(num_computed, window - 1) + num_new
    if kind == "chunked":
        return num_computed % window + num_new
    return num_computed + num_new


def full_attention(plan: StepPlan) -> tuple[int, int, int]:
    """Keys seen by decodes, keys and pairs of prompts, when every token sees all before it."""
    decode_keys = prefill_keys = prefill_pairs = 0
    for request, num_new in zip(plan.requests, plan.num_tokens, strict=True):
        end = request.num_computed_tokens
        if num_new == 1:
            decode_keys += end
        else:
            prefill_keys += end
            prefill_pairs += num_new * (2 * end - num_new + 1) // 2
    return decode_keys, prefill_keys, prefill_pairs


def seen(plan: StepPlan, kind: str, window: int) -> tuple[int, int, int]:
    """Do the same for any kind of attention."""
    decode_keys = prefill_keys = prefill_pairs = 0
    for request, num_new in zip(plan.requests, plan.num_tokens, strict=True):
        end = request.num_computed_tokens
        start = end - num_new
        if num_new == 1:
            keys = num_keys(kind, window, start, 1)
            decode_keys += keys * (request.num_samples if start >= request.num_prompt_tokens else 1)
        else:
            prefill_keys += num_keys(kind, window, start, num_new)
            prefill_pairs += num_pairs(kind, window, end) - num_pairs(kind, window, start)
    return decode_keys, prefill_keys, prefill_pairs


def sample_counts(plan: StepPlan) -> tuple[int, int, int, int]:
    """Sequences in a step, their tokens, those that are sampled, and those that decode.

    A prompt is computed once for all sequences of a request.
    """
    sequences = tokens = sampled = decodes = 0
    for request, num_new in zip(plan.requests, plan.num_tokens, strict=True):
        start = request.num_computed_tokens - num_new
        own = max(request.num_computed_tokens - max(start, request.num_prompt_tokens), 0)
        sequences += request.num_samples if own else 1
        tokens += num_new - own + own * request.num_samples
        sampled += 0 if request.request_id in plan.unfinished else request.num_samples
        decodes += (request.num_samples if own else 1) if num_new == 1 else 0
    return sequences, tokens, sampled, decodes


def layer_classes(config: CostConfig) -> list[LayerClass]:
    """Collect the model's layers by what their attention sees, all pipeline stages together."""
    model, tp = config.model, config.tensor_parallel_size
    # The layout holds one stage; layers of the others are like one of these, or taken to be.
    places = {layer: kv for kv, layer in zip(config.layout.layers, model.layers, strict=False)}
    classes: dict[tuple[str, int], LayerClass] = {}
    for index, layer in enumerate(model.layers):
        kv = places.get(layer, config.layout.layers[index % len(config.layout.layers)])
        decode, prompt = (2.0 * dims * model.num_heads / tp for dims in _pair_dims(config, layer))
        key = (kv.kind, kv.window or 0)
        old = classes.get(key, LayerClass(*key, 0, 0.0, 0.0))
        classes[key] = LayerClass(
            *key,
            old.kv_bytes + kv.bytes_per_token,
            old.pair_flops + decode,
            old.prompt_pair_flops + prompt,
        )
    return list(classes.values())


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
    quantized = QUANTIZED_BYTES.get(config.quantization or "", element)
    head = model.vocab_size * model.hidden_size
    experts = model.num_routed_expert_params
    body = model.num_params - model.num_embedding_params - model.num_lm_head_params - experts
    dense = body * (element if config.quantization == "mxfp4" else quantized) / tp
    table = [dense, dense]
    if experts:
        untouched, table = 1.0, [dense]
        while untouched > 1e-3 and len(table) <= config.max_num_batched_tokens:
            untouched *= 1.0 - model.num_experts_per_token / model.num_experts
            table.append(dense + experts * quantized * (1.0 - untouched) / tp)
        table.append(dense + experts * quantized / tp)
    return table, head * element / tp
