"""Step time as a sum of rooflines: GEMMs, attention, communication and overhead follow each other.

Attention adds to the GEMMs instead of hiding behind them, because the kernels run one after another
(a single max over all work is up to 70 % off for decodes). Within the GEMMs, and within the
attention of prompts, the slower of memory and arithmetic counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field

from kvsim.cost.efficiency import efficiency_of
from kvsim.cost.model import COST_MODELS, CostConfig, StepCost
from kvsim.memory.weights import DTYPE_BYTES, QUANTIZED_BYTES

#: Of a small copy over PCIe, driver included; microbenchmarks of cudaMemcpyAsync show 5 to 10 us.
COPY_SECONDS = 1e-5

#: Prompt tokens in a step from which on its decodes read KV as slowly as in any mixed step.
MIXED_TOKENS = 512.0
#: QKV, output, up with gate, and down, per layer.
NUM_GEMMS = 4

Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]

if TYPE_CHECKING:
    from kvsim.catalog.spec import GpuSpec, ModelSpec
    from kvsim.sched.scheduler import StepPlan


class _LayerClass(NamedTuple):
    """Layers whose attention sees the same tokens: their KV bytes and FLOPs, all together."""

    kind: str
    window: int
    kv_bytes: int  # per token
    pair_flops: float  # per query-key pair


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


@COST_MODELS.register("roofline")
class RooflineCost:
    """Prices a step by the work in it and a card's peak rates times their efficiencies.

    Parameters
    ----------
    host_seconds : per step, of an engine that prepares a step while the GPU waits
    paged_overhead : by how much reading KV through a block table is slower, e.g. 0.23
        (PagedAttention paper, Fig. 18a: 20 to 26 % at its block size of 16); below 16 tokens a
        block gives a warp too little to do, and it grows as 16 / block size
    copy_seconds : of one copy between host and GPU beside its bytes; a swapped block takes one for
        the keys and one for the values of each layer
    """

    def __init__(
        self,
        config: CostConfig,
        *,
        host_seconds: Share = 0.0,
        paged_overhead: Share = 0.0,
        copy_seconds: Share = COPY_SECONDS,
    ) -> None:
        model, gpu, tp = config.model, config.gpu, config.tensor_parallel_size
        rate = efficiency_of(gpu.name)
        self._hidden = model.hidden_size
        self._classes = _layer_classes(config)
        #: All layers see the same tokens, all of them or those in a sliding window.
        self.one_class = len(self._classes) == 1 and self._classes[0].kind != "chunked"
        self._one_full_class = self.one_class and self._classes[0].kind == "full"
        self._kv_bytes = config.layout.bytes_per_token

        self._body_flops, self._head_flops = _gemm_flops(model, tp)
        self.weight_bytes_by_tokens, self._head_bytes = _streamed_bytes(config)

        # The layout holds one pipeline stage; a step passes through all of them.
        self._num_stages = model.num_layers / len(config.layout.layers)
        bandwidth = gpu.memory_bandwidth_bytes_per_s
        self._stream_rate = bandwidth * rate.weights
        self._gemm_rate = _peak_flops(gpu, config.quantization) * rate.gemm
        self._gemm_falloff = rate.gemm_falloff / 8192
        self._kv_rate = bandwidth * rate.decode_attention
        if config.block_size is not None:
            self._kv_rate /= 1.0 + paged_overhead * max(1.0, 16.0 / config.block_size)
        block_bytes = (config.block_size or 1) * config.layout.bytes_per_token
        self._copy_time_per_byte = 2 * len(config.layout.layers) * copy_seconds / block_bytes
        self._prefill_rate = gpu.bf16_flops_per_s * rate.prefill_attention
        layers = model.num_layers
        heads = model.num_heads / tp
        self._decode_time = layers * rate.decode_launch
        self._decode_time_per_request = layers * rate.decode_request * heads / 32
        self._prefill_time = layers * rate.prefill_launch
        self._prefill_time_per_token = (
            layers * _attention_io(config) / (bandwidth * rate.prefill_io)
        )
        self._mixed_decode = rate.mixed_decode
        self._pcie_rate = gpu.pcie_bytes_per_s
        launches = rate.layer_launch + NUM_GEMMS * rate.gemm_launch
        self._step_time = host_seconds + rate.step + layers * launches
        self._request_time = rate.request
        self._reduce_time = 0.0
        self._token_time = layers * _elementwise_io(config) / (bandwidth * rate.elementwise)
        if tp > 1:
            link = (gpu.nvlink_bytes_per_s or gpu.pcie_bytes_per_s) * rate.link
            reduces = 2 * model.num_layers  # after attention and after the MLP
            ring = 2 * (tp - 1) / tp * model.hidden_size * 2
            self._reduce_time = reduces * rate.all_reduce
            self._token_time += reduces * ring / link

    def constants(self) -> dict[str, float]:
        """Return what the compiled kernels price a step with, layers all alike."""
        layers = self._classes[0]
        return {
            "seen_window": layers.window,
            "step_time": self._step_time,
            "request_time": self._request_time,
            "stream_rate": self._stream_rate,
            "gemm_rate": self._gemm_rate,
            "gemm_falloff": self._gemm_falloff,
            "body_flops": self._body_flops,
            "head_flops": self._head_flops,
            "head_bytes": self._head_bytes,
            "kv_bytes": layers.kv_bytes,
            "pair_flops": layers.pair_flops,
            "kv_rate": self._kv_rate,
            "prefill_rate": self._prefill_rate,
            "decode_time": self._decode_time,
            "decode_time_per_request": self._decode_time_per_request,
            "mixed_decode": self._mixed_decode,
            "mixed_tokens": MIXED_TOKENS,
            "prefill_time": self._prefill_time,
            "prefill_time_per_token": self._prefill_time_per_token,
            "reduce_time": self._reduce_time,
            "token_time": self._token_time,
        }

    def step(self, plan: StepPlan) -> StepCost:  # noqa: D102 - see CostModel
        num_requests = len(plan.requests)
        if not num_requests:
            return StepCost(0.0, 0.0, 0.0)
        num_tokens = sum(plan.num_tokens)
        num_sampled = num_requests - len(plan.unfinished)
        num_decodes = plan.num_tokens.count(1)
        if plan.has_samples:
            num_requests, num_tokens, num_sampled, num_decodes = _sample_counts(plan)
        num_prefill_tokens = num_tokens - num_decodes

        gemm_flops = num_tokens * self._body_flops + num_sampled * self._head_flops
        weights = self.weight_bytes_by_tokens[min(num_tokens, len(self.weight_bytes_by_tokens) - 1)]
        if num_sampled:
            weights += self._head_bytes
        time = self._step_time + num_requests * self._request_time
        arithmetic = gemm_flops / self._gemm_rate * (1.0 + num_tokens * self._gemm_falloff)
        time += max(weights / self._stream_rate, arithmetic)

        if plan.swapped_bytes:
            time += plan.swapped_bytes / self._pcie_rate
            time += plan.swapped_bytes * self._copy_time_per_byte
        decode_bytes, prefill_bytes, prefill_flops, decode_flops = self._attention(plan)
        if num_decodes:
            time += self._decode_time + num_decodes * self._decode_time_per_request
            reading = decode_bytes / self._kv_rate
            mixed = min(num_prefill_tokens / MIXED_TOKENS, 1.0)
            time += reading * (1.0 + self._mixed_decode * mixed)
        if num_prefill_tokens:
            time += self._prefill_time + num_prefill_tokens * self._prefill_time_per_token
            time += max(prefill_bytes / self._kv_rate, prefill_flops / self._prefill_rate)
        time += self._reduce_time + num_tokens * self._token_time
        written = num_tokens * self._kv_bytes
        return StepCost(
            time,
            (gemm_flops + prefill_flops + decode_flops) / self._num_stages,
            (weights + decode_bytes + prefill_bytes) / self._num_stages + written,
        )

    def _attention(self, plan: StepPlan) -> tuple[float, float, float, float]:
        """Return KV bytes read by decodes and by prompts, FLOPs of prompts and of decodes."""
        decode_bytes = prefill_bytes = prefill_flops = decode_flops = 0.0
        for layers in self._classes:
            if self._one_full_class and not plan.has_samples:
                decode_keys, prefill_keys, prefill_pairs = _full_attention(plan)
            else:
                decode_keys, prefill_keys, prefill_pairs = _seen(plan, layers.kind, layers.window)
            decode_bytes += decode_keys * layers.kv_bytes
            prefill_bytes += prefill_keys * layers.kv_bytes
            prefill_flops += prefill_pairs * layers.pair_flops
            decode_flops += decode_keys * layers.pair_flops
        return decode_bytes, prefill_bytes, prefill_flops, decode_flops


def _full_attention(plan: StepPlan) -> tuple[int, int, int]:
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


def _seen(plan: StepPlan, kind: str, window: int) -> tuple[int, int, int]:
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


def _attention_io(config: CostConfig) -> float:
    """Bytes per token and layer that the attention of a prompt reads and writes, on one GPU."""
    model, tp = config.model, config.tensor_parallel_size
    layer = model.layers[0]
    heads = 2 * model.num_heads / tp + 2 * max(layer.num_kv_heads / tp, 1)
    return 2.0 * layer.head_dim * heads


def _elementwise_io(config: CostConfig) -> float:
    """Bytes per token and layer of norms with residuals, rotary embedding and activation."""
    model, tp = config.model, config.tensor_parallel_size
    layer = model.layers[0]
    rotated = layer.head_dim * (model.num_heads / tp + max(layer.num_kv_heads / tp, 1))
    width = model.intermediate_size
    if model.is_moe:
        width = model.moe_intermediate_size * model.num_experts_per_token
    return 2.0 * (8 * model.hidden_size + 2 * rotated + 3 * width / tp)


def _sample_counts(plan: StepPlan) -> tuple[int, int, int, int]:
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


def _layer_classes(config: CostConfig) -> list[_LayerClass]:
    """Collect the model's layers by what their attention sees."""
    model, tp = config.model, config.tensor_parallel_size
    # The layout holds one pipeline stage; a step passes through all of them.
    stages = model.num_layers / len(config.layout.layers)
    classes: dict[tuple[str, int], _LayerClass] = {}
    for kv, layer in zip(config.layout.layers, model.layers, strict=False):
        dims = 2 * layer.head_dim
        if model.is_mla:  # the latent is both key and value of every head
            dims = layer.head_dim + model.kv_lora_rank
        flops = 2.0 * dims * model.num_heads / tp
        key = (kv.kind, kv.window or 0)
        old = classes.get(key, _LayerClass(*key, 0, 0.0))
        classes[key] = _LayerClass(*key, old.kv_bytes + kv.bytes_per_token, old.pair_flops + flops)
    return [
        c._replace(kv_bytes=round(c.kv_bytes * stages), pair_flops=c.pair_flops * stages)
        for c in classes.values()
    ]


def _peak_flops(gpu: GpuSpec, quantization: str | None) -> float:
    """Peak rate of the GEMMs: 8-bit weights with 8-bit activations, else 16-bit arithmetic."""
    if quantization == "fp8" and gpu.fp8_flops_per_s:
        return gpu.fp8_flops_per_s
    if quantization == "int8" and gpu.int8_ops_per_s:
        return gpu.int8_ops_per_s
    return gpu.bf16_flops_per_s


def _gemm_flops(model: ModelSpec, tp: int) -> tuple[float, float]:
    """FLOPs per token in the layers, and per sampled token in the LM head, on one GPU."""
    head = model.vocab_size * model.hidden_size
    return 2.0 * (model.num_active_params - head) / tp, 2.0 * head / tp


def _streamed_bytes(config: CostConfig) -> tuple[list[float], float]:
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
