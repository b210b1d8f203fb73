"""Step time as a sum of rooflines: GEMMs, attention, communication and overhead follow each other.

Attention adds to the GEMMs instead of hiding behind them, because the kernels run one after another
(a single max over all work is up to 70 % off for decodes). Within the GEMMs, and within the
attention of prompts, the slower of memory and arithmetic counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field

from kvsim.cost.arithmetic import peak_flops
from kvsim.cost.efficiency import Efficiency, efficiency_of, overridden, with_narrow_kv
from kvsim.cost.host_link import HostLink
from kvsim.cost.model import COST_MODELS, CostConfig, StepCost
from kvsim.cost.work import Work, WorkCounter
from kvsim.memory.hierarchy import COPY_SECONDS
from kvsim.memory.weights import DTYPE_BYTES

#: Prompt tokens in a step from which on its decodes read KV as slowly as in any mixed step.
MIXED_TOKENS = 512.0
#: QKV, output, up with gate, and down, per layer.
NUM_GEMMS = 4

Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]

if TYPE_CHECKING:
    from kvsim.sched.scheduler import StepPlan


class StepTimes(NamedTuple):
    """Seconds of a step by what takes them; they add up in this order."""

    host: float
    gemms: float
    lm_head: float
    swap: float
    decode_attention: float
    prefill_attention: float
    elementwise: float
    all_reduce: float

    @property
    def total(self) -> float:
        """Seconds of the step."""
        time = 0.0
        for part in self:
            time += part
        return time


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
        the keys and one for the values of each layer (a latent, one)
    constants : a TOML file of the user's with constants of this card, as in ``efficiency.toml``
    """

    def __init__(
        self,
        config: CostConfig,
        *,
        host_seconds: Share = 0.0,
        paged_overhead: Share = 0.0,
        copy_seconds: Share = COPY_SECONDS,
        constants: str | None = None,
    ) -> None:
        model, gpu, tp = config.model, config.gpu, config.tensor_parallel_size
        rate = efficiency_of(gpu.name)
        if constants is not None:
            rate = overridden(rate, gpu.name, constants)
        if config.layout.dtype.bits <= 8:
            rate = with_narrow_kv(rate)
        #: Counts what steps hold.
        self.work = WorkCounter(config)
        bandwidth = gpu.memory_bandwidth_bytes_per_s
        self._stream_rate = bandwidth * rate.weights
        self._gemm_rate = peak_flops(gpu, config.quantization) * rate.gemm
        self._gemm_falloff = rate.gemm_falloff / 8192
        self._gemm_ridge = rate.gemm_ridge
        self._kv_rate = bandwidth * rate.decode_attention
        if config.block_size is not None:
            self._kv_rate /= 1.0 + paged_overhead * max(1.0, 16.0 / config.block_size)
        self._link = HostLink(config, copy_seconds)
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
        #: Seconds per layer, part of the host's share of a step.
        self.gemm_launches = NUM_GEMMS * rate.gemm_launch
        self._step_time = host_seconds + rate.step
        self._step_time += layers * (rate.layer_launch + self.gemm_launches)
        self._request_time = rate.request
        if config.host_waits:
            self._step_time += rate.sync_step
            self._request_time += rate.sync_request
        self._token_time = layers * _elementwise_io(config) / (bandwidth * rate.elementwise)
        self._one_shot, self._one_shot_token, self._two_shot, self._two_shot_token = _all_reduce(
            config, rate
        )

    def constants(self) -> dict[str, float]:
        """Return what the compiled kernels price a step with, layers all alike."""
        work, layers = self.work, self.work.classes[0]
        return {
            "seen_window": layers.window,
            "step_time": self._step_time,
            "request_time": self._request_time,
            "stream_rate": self._stream_rate,
            "gemm_rate": self._gemm_rate,
            "gemm_falloff": self._gemm_falloff,
            "gemm_ridge": self._gemm_ridge,
            "body_flops": work.body_flops,
            "head_flops": work.head_flops,
            "head_bytes": work.head_bytes,
            "token_bytes": work.token_bytes,
            "logit_bytes": work.logit_bytes,
            "kv_bytes": layers.kv_bytes,
            "pair_flops": layers.pair_flops,
            "prompt_pair_flops": layers.prompt_pair_flops,
            "kv_rate": self._kv_rate,
            "prefill_rate": self._prefill_rate,
            "decode_time": self._decode_time,
            "decode_time_per_request": self._decode_time_per_request,
            "mixed_decode": self._mixed_decode,
            "mixed_tokens": MIXED_TOKENS,
            "prefill_time": self._prefill_time,
            "prefill_time_per_token": self._prefill_time_per_token,
            "token_time": self._token_time,
            "one_shot": self._one_shot,
            "one_shot_token": self._one_shot_token,
            "two_shot": self._two_shot,
            "two_shot_token": self._two_shot_token,
        }

    def step(self, plan: StepPlan) -> StepCost:  # noqa: D102 - see CostModel
        if not plan.requests:
            return StepCost(0.0, 0.0, 0.0)
        work = self.work.count(plan)
        time = self.times(work, plan.swapped_bytes).total
        time = self._link.step_seconds(time, plan.transfers)
        return StepCost(time, *self.work.totals(work))

    def times(self, work: Work, swapped_bytes: int = 0) -> StepTimes:
        """Price each part of a step, seconds."""
        return StepTimes(
            self._step_time + work.num_requests * self._request_time,
            self.gemms(work),
            self.lm_head(work) if work.num_sampled else 0.0,
            self._link.swap_seconds(swapped_bytes),
            self.decode_attention(work) if work.num_decodes else 0.0,
            self.prefill_attention(work) if work.num_prefill_tokens else 0.0,
            work.num_tokens * self._token_time,
            self.all_reduces(work),
        )

    def gemms(self, work: Work) -> float:
        """Seconds of the layers' GEMMs, launches aside."""
        moved = work.weight_bytes + work.num_tokens * self.work.token_bytes
        return self._gemm_time(moved, work.gemm_flops, work.num_tokens)

    def lm_head(self, work: Work) -> float:
        """Seconds of the logits."""
        moved = work.head_bytes + work.num_sampled * self.work.logit_bytes
        return self._gemm_time(moved, work.head_flops, work.num_sampled)

    def decode_attention(self, work: Work) -> float:
        """Seconds of attention with one query token; slower beside a long prompt."""
        reading = max(work.decode_bytes / self._kv_rate, work.decode_flops / self._prefill_rate)
        mixed = min(work.num_prefill_tokens / MIXED_TOKENS, 1.0)
        launches = self._decode_time + work.num_decodes * self._decode_time_per_request
        return launches + reading * (1.0 + self._mixed_decode * mixed)

    def prefill_attention(self, work: Work) -> float:
        """Seconds of attention of prompts and chunks."""
        moving = self._prefill_time + work.num_prefill_tokens * self._prefill_time_per_token
        reading = work.prefill_bytes / self._kv_rate
        return moving + max(reading, work.prefill_flops / self._prefill_rate)

    def all_reduces(self, work: Work) -> float:
        """Seconds of adding up what the GPUs of a tensor-parallel group have."""
        return min(
            self._one_shot + work.num_tokens * self._one_shot_token,
            self._two_shot + work.num_tokens * self._two_shot_token,
        )

    def _gemm_time(self, moved: float, flops: float, num_tokens: int) -> float:
        """Take the slower of memory and arithmetic; near the ridge, neither hides the other."""
        memory = moved / self._stream_rate
        arithmetic = flops / self._gemm_rate * (1.0 + num_tokens * self._gemm_falloff)
        slower, faster = max(memory, arithmetic), min(memory, arithmetic)
        return slower + self._gemm_ridge * faster * faster / slower


def _attention_io(config: CostConfig) -> float:
    """Bytes per token and layer that the attention of a prompt reads and writes, on one GPU."""
    model, tp = config.model, config.tensor_parallel_size
    layer, element = model.layers[0], DTYPE_BYTES[config.dtype]
    if model.is_mla:  # queries, keys, values and outputs of every head
        widths = 2 * (model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim)
        return float(element) * widths * model.num_heads / tp
    heads = 2 * model.num_heads / tp + 2 * max(layer.num_kv_heads / tp, 1)
    return float(element) * layer.head_dim * heads


def _elementwise_io(config: CostConfig) -> float:
    """Bytes per token and layer of norms with residuals, rotary embedding and activation."""
    model, tp = config.model, config.tensor_parallel_size
    layer, element = model.layers[0], DTYPE_BYTES[config.dtype]
    rotary_dim = model.qk_rope_head_dim if model.is_mla else layer.head_dim
    rotated = rotary_dim * (model.num_heads / tp + max(layer.num_kv_heads / tp, 1))
    heads = 4 * rotated if model.qk_norm else 2 * rotated  # read and written by each
    width = model.intermediate_size
    if model.is_moe:
        width = model.moe_intermediate_size * model.num_experts_per_token
    return float(element) * (8 * model.hidden_size + heads + 3 * width / tp)


def _all_reduce(config: CostConfig, rate: Efficiency) -> tuple[float, float, float, float]:
    """Fixed time and time per token of a step's all-reduces, in one exchange and in two.

    Small messages go to every other GPU at once; of large ones each GPU reduces a part, then sends
    it round (vLLM's custom all-reduce). The faster counts.
    """
    model, gpu, tp = config.model, config.gpu, config.tensor_parallel_size
    if tp == 1:
        return 0.0, 0.0, 0.0, 0.0
    link = gpu.nvlink_bytes_per_s or gpu.pcie_bytes_per_s
    reduces = 2 * model.num_layers  # after attention and after the MLP
    token = reduces * model.hidden_size * DTYPE_BYTES[config.dtype] / link
    fixed = reduces * rate.all_reduce
    second = reduces * rate.all_reduce_exchange
    ring = 2 * (tp - 1) / tp * token / rate.link_ring
    return fixed, (tp - 1) * token / rate.link, fixed + second, ring
