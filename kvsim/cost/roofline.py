"""The roofline cost model: constants of a model on a card for the rule :mod:`kvsim.rules.price`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from pydantic import Field

from kvsim.budget.weights import DTYPE_BYTES
from kvsim.cost.drafter import init_drafter
from kvsim.cost.efficiency import (
    Efficiency,
    efficiency_of,
    gemm_shares,
    with_constants_of,
    with_narrow_kv,
)
from kvsim.cost.experts import rate_experts, routed_layers, shares_of
from kvsim.cost.gemms import quantization_time, quantizes_activations, rate_gemms
from kvsim.cost.hierarchy import COPY_SECONDS
from kvsim.cost.host_link import init_link
from kvsim.cost.model import COST_MODELS, CostConfig, StepCost
from kvsim.cost.work import WorkCounter, is_sparse
from kvsim.records.cost import ROOFLINE, Cost, Work
from kvsim.records.kv import Moved
from kvsim.registry import overridden
from kvsim.rules import price as rules

#: Prompt tokens of a step above which the slowdown of its decodes does not grow.
MIXED_TOKENS = 512.0
#: GEMMs per layer: QKV, output, up with gate, and down.
NUM_GEMMS = 4

Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]

#: Kernels that LoRA adapters add per layer: two for each GEMM, down to the rank and up from it
#: (Punica's SGMV, arXiv 2310.18547, which vLLM's kernels follow).
ADAPTER_KERNELS = 2 * NUM_GEMMS

#: Layers of a vision encoder: SigLIP so400m, MoonViT and Qwen3-VL's have 27 (their config.json).
TOWER_LAYERS = 27

#: Collectives per layer: all-gathers of queries and of log-sums, a reduce-scatter of outputs.
NUM_COLLECTIVES = 3
#: Bytes of the log-sum of a token and head, FP32.
LOG_SUM_BYTES = 4

#: Methods that a subclass may override; it then runs in Python only.
PARTS = (
    *("step", "times", "gemms", "lm_head", "decode_attention", "prefill_attention"),
    "all_reduces",
)

if TYPE_CHECKING:
    from kvsim.records.memory import Memory
    from kvsim.sched.scheduler import StepPlan


class StepTimes(NamedTuple):
    """Seconds of a step by part; they are added in this order."""

    host: float
    gemms: float
    lm_head: float
    adapters: float
    encoder: float
    swap: float
    decode_attention: float
    prefill_attention: float
    elementwise: float
    all_reduce: float
    launch_wait: float
    copy_wait: float

    @property
    def total(self) -> float:
        """Seconds of the step."""
        time = 0.0
        for part in self:
            time += part
        return time


@COST_MODELS.register("roofline")
class RooflineCost:
    """Prices a step by its work and the card's peak rates times their efficiencies.

    Parameters
    ----------
    host_seconds : seconds per step in which an engine prepares the step while the GPU waits
    paged_overhead : relative slowdown of reading KV through a block table, e.g. 0.23
        (PagedAttention paper, Fig. 18a: 20 to 26 % with blocks of 16 tokens); for blocks of less
        than 16 tokens, which underuse a warp, it is multiplied by 16 / block size
    copy_seconds : fixed seconds of one copy between host and GPU; a swapped block needs two copies
        per layer, for keys and values (one for a latent)
    constants : TOML file with constants of this card, in the format of ``efficiency.toml``
    """

    rules_of: ClassVar[int] = ROOFLINE

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
            rate = with_constants_of(constants, rate, gpu.name)
        if config.layout.dtype.bits <= 8:
            rate = with_narrow_kv(rate)
        #: Counts the work of steps.
        self.work = WorkCounter(config)
        #: Record with which the compiled rules price steps.
        self.record = self.work.record
        record, layers, heads = self.record, model.num_layers, model.num_heads / tp
        heads *= config.decode_context_parallel_size
        bandwidth = gpu.memory_bandwidth_bytes_per_s
        rate_gemms(record, config, rate)
        rate_experts(record, config, rate)
        latent = model.is_mla and config.layout.keeps_latent
        reading = rate.latent_attention if latent else rate.decode_attention
        record.kv_rate = bandwidth * reading
        if config.block_size is not None:
            record.kv_rate /= 1.0 + paged_overhead * max(1.0, 16.0 / config.block_size)
        init_link(record, config, copy_seconds)
        pairs = rate.latent_prefill if model.is_mla else rate.prefill_attention
        record.prefill_rate = gpu.bf16_flops_per_s * pairs
        attending = len(model.layers)
        record.decode_time = attending * rate.decode_launch
        record.decode_time_per_request = attending * rate.decode_request * heads / 32
        record.prefill_time = attending * rate.prefill_launch
        record.prefill_time_per_token = (
            attending * _attention_io(config) / (bandwidth * rate.prefill_io)
        )
        record.mixed_decode, record.mixed_tokens = rate.mixed_decode, MIXED_TOKENS
        #: Seconds of GEMM launches per layer and step; part of the host's time.
        self.gemm_launches = NUM_GEMMS * rate.gemm_launch
        record.step_time = host_seconds + rate.step
        record.request_time = rate.request
        if config.host_waits:  # fitted on whole servers, not on kernels (D31)
            record.step_time += rate.sync_step
        if config.host_waits or config.host_counts:
            record.request_time += rate.sync_request
        price_states(record, config, rate)
        record.captured_tokens = config.captured_tokens
        record.uncaptured_time = record.step_time + layers * rate.uncaptured_layer
        if routed_layers(config):
            own = rate.uncaptured_experts + shares_of(config, rate).uncaptured
            record.uncaptured_time += routed_layers(config) * own
        record.step_time += layers * (rate.layer_launch + self.gemm_launches)
        record.step_time += _other_launches(config, rate)
        record.step_time += config.host_weights.copied / config.gpu.pcie_bytes_per_s
        init_encoder(record, config, rate)
        if config.adapter is not None:
            record.adapter_bytes = float(config.adapter.num_bytes)
            record.adapter_flops = config.adapter.token_flops
            launches = ADAPTER_KERNELS * layers
            record.adapter_launch = launches * rate.gemm_launch
        if config.speculation is not None:
            init_drafter(record, config, config.speculation)
        record.token_time = layers * _elementwise_io(config) / (bandwidth * rate.elementwise)
        record.token_time += quantization_time(config, rate)
        one, one_token, two, two_token = _all_reduce(config, rate)
        fixed, token = _exchange(config, rate)
        record.one_shot, record.one_shot_token = one + fixed, one_token + token
        record.two_shot, record.two_shot_token = two + fixed, two_token + token
        init_context_exchange(record, config, rate)

    @property
    def runs_by_rules(self) -> bool:
        """Return True if the compiled rules cover this class."""
        return not overridden(self, PARTS)

    def init_price(self, record: Cost, memory: Memory) -> None:
        """Fill an empty record with the constants and tables."""
        self.work.init_price(record, memory)

    def step(self, plan: StepPlan) -> StepCost:
        if not plan.batch.size:
            return StepCost(0.0, 0.0, 0.0)
        work = self.work.count(plan)
        time = self.times(work).total
        time = rules.with_transfers(self.record, time, Moved(*plan.transfers))
        return StepCost(time, *self.work.totals(work))

    def times(self, work: Work) -> StepTimes:
        """Return the seconds of each part of a step; the sum is that of the compiled rule."""
        times = StepTimes(
            rules.host_time(self.record, work),
            self.gemms(work),
            self.lm_head(work) if work.num_sampled else 0.0,
            rules.adapter_time(self.record, work),
            rules.encoder_time(self.record, work),
            rules.swap_time(self.record, work.swapped_bytes),
            self.decode_attention(work) if work.num_decodes else 0.0,
            self.prefill_attention(work) if work.num_prefill_tokens else 0.0,
            rules.elementwise_time(self.record, work),
            self.all_reduces(work),
            0.0,
            0.0,
        )
        wait = rules.launch_wait(self.record, work, times.total)
        times = times._replace(launch_wait=wait)
        return times._replace(copy_wait=rules.copy_wait(self.record, work, times.total))

    def gemms(self, work: Work) -> float:
        """Seconds of the layers' GEMMs without their launches."""
        return rules.gemms_time(self.record, work)

    def lm_head(self, work: Work) -> float:
        """Seconds of the LM head."""
        return rules.head_time(self.record, work)

    def decode_attention(self, work: Work) -> float:
        """Seconds of the attention of decodes, which long prompts in the same step slow down."""
        return rules.decode_time(self.record, work)

    def prefill_attention(self, work: Work) -> float:
        """Seconds of the attention of prompts and prompt chunks."""
        return rules.prefill_time(self.record, work)

    def all_reduces(self, work: Work) -> float:
        """Seconds of the all-reduces of a tensor-parallel group, and of exchanges."""
        return rules.all_reduce_time(self.record, work)


def init_encoder(record: Cost, config: CostConfig, rate: Efficiency) -> None:
    """Write the constants of an encoder pass, which reads the weights once, into a record.

    Encoders have 16-bit weights, split over tensor-parallel ranks (vLLM's ``mm_encoder_tp_mode``).
    Attention among patches is not modelled. No measured run checks the constants.
    """
    params = config.encoder_params / config.tensor_parallel_size
    record.encoder_bytes = params * DTYPE_BYTES[config.dtype]
    record.encoder_token_flops = 2.0 * params * config.model.patches_per_token
    record.encoder_launch = TOWER_LAYERS * rate.uncaptured_layer


def _other_launches(config: CostConfig, rate: Efficiency) -> float:
    """Seconds of a step's launches to quantise activations and to route tokens to experts."""
    model = config.model
    time = model.num_moe_layers * shares_of(config, rate).launch if model.is_moe else 0.0
    if quantizes_activations(config):
        launch = gemm_shares(rate, config.quantization).launch
        time += model.num_layers * NUM_GEMMS * (launch - rate.gemm_launch)
        time += model.num_layers * rate.layer_launch_quantized
    return time


def _attention_io(config: CostConfig) -> float:
    """Bytes per token and layer that attention of prompts reads and writes on one GPU."""
    model, tp = config.model, config.tensor_parallel_size
    layer, element = model.layers[0], DTYPE_BYTES[config.dtype]
    if model.is_mla:  # queries, keys, values and outputs of every head
        widths = 2 * (model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim)
        return float(element) * widths * model.num_heads / tp
    heads = 2 * model.num_heads / tp + 2 * max(layer.num_kv_heads / tp, 1)
    return float(element) * layer.head_dim * heads


def _elementwise_io(config: CostConfig) -> float:
    """Bytes per token and layer of norms, residuals, rotary embeddings and activation functions."""
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
    """Return fixed seconds and seconds per token of all-reduces in a step, for two algorithms.

    One exchange: each GPU sends its whole message to every other GPU. Two exchanges: each GPU
    reduces a part and then sends the result to the others (vLLM's custom all-reduce).
    """
    model, gpu, tp = config.model, config.gpu, config.tensor_parallel_size
    if tp == 1:
        return 0.0, 0.0, 0.0, 0.0
    link = gpu.link_bytes_per_s(tp)
    reduces = 2 * model.num_layers  # after attention and after the MLP
    token = reduces * model.hidden_size * DTYPE_BYTES[config.dtype] / link
    fixed = reduces * rate.all_reduce
    second = reduces * rate.all_reduce_exchange
    ring = 2 * (tp - 1) / tp * token / rate.link_ring
    return fixed, (tp - 1) * token / rate.link, fixed + second, ring


def _exchange(config: CostConfig, rate: Efficiency) -> tuple[float, float]:
    """Return fixed seconds and seconds per token of the exchange with experts of other replicas.

    Every rank gathers the tokens of all replicas, and a reduce-scatter returns the outputs (vLLM's
    default all-to-all, ``allgather_reducescatter``).
    """
    model, gpu, replicas = config.model, config.gpu, config.num_attention_ranks
    if replicas == 1 or not model.is_moe:
        return 0.0, 0.0
    link = gpu.link_bytes_per_s(replicas) * rate.link_ring
    exchanges = 2 * model.num_moe_layers
    token = model.hidden_size * DTYPE_BYTES[config.dtype] * (replicas - 1) / link
    return exchanges * rate.all_reduce, exchanges * token


def init_context_exchange(record: Cost, config: CostConfig, rate: Efficiency) -> None:
    """Write the constants of a step's exchanges into a record.

    Every rank computes attention with the heads of all ranks over its own tokens. For each token it
    receives the queries and log-sums of the other ranks' heads, and partial outputs of its own
    heads. In latent attention the partial outputs have the latent's width, and prompt chunks gather
    latents instead. No measured run checks this.
    """
    model, shares = config.model, config.decode_context_parallel_size
    if shares == 1:
        return
    layer, element = model.layers[0], DTYPE_BYTES[config.dtype]
    query, output = layer.head_dim, model.kv_lora_rank if model.is_mla else layer.head_dim
    heads = model.num_heads / config.tensor_parallel_size
    token = (shares - 1) * heads * ((query + output) * element + shares * LOG_SUM_BYTES)
    link = config.gpu.link_bytes_per_s(shares) * rate.link_ring
    layers = len(model.layers)
    record.exchanges_prompts = not model.is_mla or is_sparse(model)
    record.exchange_launch = layers * NUM_COLLECTIVES * rate.all_reduce
    record.exchange_token = layers * token / link
    if not record.exchanges_prompts:
        latent = layer.head_dim * element * (shares - 1) / shares
        record.gather_token = layers * latent / link


def state_traffic(config: CostConfig) -> float:
    """Bytes of states that a request reads and writes in a step, in all pipeline stages."""
    layers = config.layout.layers
    kept = [layer.state_bytes for layer in layers if layer.kind == "mamba"]
    return 2.0 * sum(kept) / max(len(kept), 1) * config.model.num_state_layers


def scan_flops(config: CostConfig) -> float:
    """FLOPs per token of the scans of all layers on one GPU: states are updated and read."""
    state = config.model.state
    if state is None:
        return 0.0
    return 4.0 * state.num_elements / config.tensor_parallel_size * config.model.num_state_layers


def price_states(record: Cost, config: CostConfig, rate: Efficiency) -> None:
    """Add the cost of layers with states, if there are any, to a record.

    A scan computes the tokens of a prompt one after another, so each token takes a minimum time.
    The prompts of a step are assumed to be scanned one after another, too.
    """
    layers, gpu = config.model.num_state_layers, config.gpu
    if not layers:
        return
    record.request_time += state_traffic(config) / (
        gpu.memory_bandwidth_bytes_per_s * rate.state_traffic
    )
    record.decode_time += layers * rate.state_launch
    record.prefill_time += layers * rate.scan_launch
    computing = scan_flops(config) / (gpu.bf16_flops_per_s * rate.scan)
    record.prefill_time_per_token += max(computing, layers * rate.scan_token)
