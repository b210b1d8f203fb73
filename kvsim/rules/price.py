"""Step time as a sum of rooflines: GEMMs, attention, communication and overhead.

The parts are added because their kernels run one after another (a single roofline over all work is
up to 70 % off for decodes). Within the GEMMs, and within the attention of prompts, the longer of
memory time and arithmetic time counts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.records.cost import CONSTANT, PRICED_BY_OWN_RULES, PRICED_IN_PYTHON
from kvsim.rules.costs.host_weights import copying_time, fetching_time, reading_time
from kvsim.rules.python import python_price, python_price_work
from kvsim.rules.work import count_work

if TYPE_CHECKING:
    from kvsim.records.cost import Cost, Gemms, Work
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.kv import Moved


def host_time(cost: Cost, work: Work) -> float:
    """Seconds of a step on the host, launches of GEMMs included."""
    return cost.step_time + work.num_requests * cost.request_time


def gemm_time(gemms: Gemms, moved: float, flops: float, num_tokens: int) -> float:
    """Seconds of GEMMs that move ``moved`` bytes: the longer of memory and arithmetic time.

    If the two are similar, they overlap only in part, which adds a share of the shorter one.
    """
    memory = moved / gemms.stream_rate
    arithmetic = flops / gemms.rate * (1.0 + num_tokens * gemms.falloff)
    slower, faster = max(memory, arithmetic), min(memory, arithmetic)
    return slower + gemms.ridge * faster * faster / slower


def gemms_time(cost: Cost, work: Work) -> float:
    """Seconds of the layers' GEMMs without their launches."""
    time, num_tokens = 0.0, work.num_tokens
    if cost.wide.num_bytes > 0.0:
        time += format_time(cost.wide, num_tokens)
    if cost.narrow.num_bytes > 0.0:
        time += format_time(cost.narrow, num_tokens)
    if cost.experts.num_layers > 0.0:
        time += experts_time(cost, work)
    if cost.host.share > 0.0:
        time += reading_time(cost, work, time)
    if cost.host.has_experts:
        time += fetching_time(cost, work)
    return time


def format_time(gemms: Gemms, num_tokens: int) -> float:
    """Seconds of the GEMMs with weights of one format."""
    moved = gemms.num_bytes + num_tokens * gemms.token_bytes
    return gemm_time(gemms, moved, num_tokens * gemms.token_flops, num_tokens)


def experts_time(cost: Cost, work: Work) -> float:
    """Seconds of the routed experts of a mixture-of-experts model.

    The weights of the experts in use are read, and their rows are padded to blocks. Memory time and
    arithmetic time overlap in part: the time is a soft maximum of the two.
    """
    experts = cost.experts
    rows = work.num_tokens * experts.token_rows
    memory = work.touched * experts.expert_bytes / experts.stream_rate
    arithmetic = (rows + work.touched * experts.block) * experts.row_flops / experts.rate
    both = memory**experts.power + arithmetic**experts.power
    slower: float = both ** (1.0 / experts.power)
    return experts.num_layers * (slower + rows * experts.row_time)


def adapter_time(cost: Cost, work: Work) -> float:
    """Seconds of the LoRA adapters' GEMMs: all adapters are read, and each token uses one."""
    if work.num_adapters == 0:
        return 0.0
    moved = work.num_adapters * cost.adapter_bytes
    flops = work.num_tokens * cost.adapter_flops
    return cost.adapter_launch + gemm_time(cost.wide, moved, flops, work.num_tokens)


def encoder_time(cost: Cost, work: Work) -> float:
    """Seconds of an image or audio encoder, which encodes all items of a step in one pass.

    No CUDA graph covers the pass, so it takes at least as long as its launches.
    """
    if work.num_encoded == 0:
        return 0.0
    flops = work.num_encoded * cost.encoder_token_flops
    computing = gemm_time(cost.wide, cost.encoder_bytes, flops, work.num_encoded)
    return max(computing, cost.encoder_launch)


def head_time(cost: Cost, work: Work) -> float:
    """Seconds of the LM head."""
    if work.num_sampled == 0:
        return 0.0
    moved = work.head_bytes + work.num_sampled * cost.logit_bytes
    return gemm_time(cost.wide, moved, work.head_flops, work.num_sampled)


def swap_time(cost: Cost, num_bytes: int) -> float:
    """Seconds to copy the KV of swapped requests in one direction, block by block."""
    return num_bytes / cost.link_bytes_per_s + num_bytes * cost.copy_round_per_byte


def copy_time(cost: Cost, num_bytes: int) -> float:
    """Seconds to copy prefix blocks in one direction, all blocks in one copy."""
    return num_bytes / cost.link_bytes_per_s + cost.copy_round if num_bytes > 0 else 0.0


def decode_time(cost: Cost, work: Work) -> float:
    """Seconds of the attention of decodes, which long prompts in the same step slow down."""
    if work.num_decodes == 0:
        return 0.0
    reading = max(work.decode_bytes / cost.kv_rate, work.decode_flops / cost.prefill_rate)
    reading *= 1.0 + cost.decode_falloff * reading
    mixed = min(work.num_prefill_tokens / cost.mixed_tokens, 1.0)
    launches = cost.decode_time + work.num_decodes * cost.decode_time_per_request
    return launches + reading * (1.0 + cost.mixed_decode * mixed)


def prefill_time(cost: Cost, work: Work) -> float:
    """Seconds of the attention of prompts and prompt chunks."""
    if work.num_prefill_tokens == 0:
        return 0.0
    moving = cost.prefill_time + work.num_prefill_tokens * cost.prefill_time_per_token
    reading = work.prefill_bytes / cost.kv_rate
    return moving + max(reading, work.prefill_flops / cost.prefill_rate)


def elementwise_time(cost: Cost, work: Work) -> float:
    """Seconds of norms, rotary embeddings and activation functions."""
    return work.num_tokens * cost.token_time


def all_reduce_time(cost: Cost, work: Work) -> float:
    """Seconds of a group's all-reduces by the faster of two algorithms, and of its exchanges."""
    time = min(
        cost.one_shot + work.num_tokens * cost.one_shot_token,
        cost.two_shot + work.num_tokens * cost.two_shot_token,
    )
    return time + exchange_time(cost, work) if cost.splits_context else time


def exchange_time(cost: Cost, work: Work) -> float:
    """Seconds in which ranks of context parallelism exchange queries and partial outputs.

    Prompt chunks of latent attention gather the latents of their context instead. A step with only
    first chunks exchanges nothing.
    """
    context, num_tokens = work.num_prompt_context_tokens, work.num_decodes + work.num_drafts
    if num_tokens == 0 and context == 0:
        return 0.0
    if cost.exchanges_prompts:
        num_tokens = work.num_tokens
    exchanged = num_tokens * cost.exchange_token + context * cost.gather_token
    return cost.exchange_launch + exchanged


def work_time(cost: Cost, work: Work) -> float:
    """Seconds of a step: the swaps before it, and its computation."""
    time = host_time(cost, work)
    time += gemms_time(cost, work)
    time += head_time(cost, work)
    time += adapter_time(cost, work)
    time += encoder_time(cost, work)
    time += swap_time(cost, work.swapped_bytes)
    time += decode_time(cost, work)
    time += prefill_time(cost, work)
    time += elementwise_time(cost, work)
    time += all_reduce_time(cost, work)
    time += launch_wait(cost, work, time)
    time += copy_wait(cost, work, time)
    if cost.has_drafts:
        time += draft_time(cost, work, time)
    return time


def launch_wait(cost: Cost, work: Work, time: float) -> float:
    """Seconds that a step of ``time`` seconds waits for launches if no CUDA graph covers it."""
    if work.num_tokens <= cost.captured_tokens:
        return 0.0
    least = cost.uncaptured_time + work.num_requests * cost.request_time
    return max(least - time, 0.0)


def copy_wait(cost: Cost, work: Work, time: float) -> float:
    """Seconds that a step of ``time`` seconds waits for copies of weights from the host."""
    if cost.host.num_layers == 0:
        return 0.0
    decodes = work.num_tokens == work.num_decodes + work.num_drafts
    if cost.host.graph_time > 0.0 and decodes and work.num_tokens <= cost.captured_tokens:
        return cost.host.graph_time
    layer = (time - head_time(cost, work)) / (cost.host.num_layers * cost.num_stages)
    return cost.num_stages * copying_time(cost, layer)


def draft_time(cost: Cost, work: Work, time: float) -> float:
    """Seconds of drafting after a step of ``time`` seconds: a share of it, and drafter passes.

    The drafter's first pass reads all tokens of the step; each further pass reads the token that
    the previous pass has proposed.
    """
    passes = min(cost.draft_passes, work.num_drafted)
    time *= cost.draft_share
    if passes == 0:
        return time
    drafting = work.num_sampled - work.num_drafts
    reading = work.draft_keys * cost.draft_key_bytes / cost.kv_rate
    for k in range(passes):
        num_tokens = work.num_tokens if k == 0 else drafting
        flops = num_tokens * cost.draft_token_flops + drafting * cost.draft_head_flops
        time += cost.draft_pass_time + gemm_time(cost.wide, cost.draft_bytes, flops, num_tokens)
        time += reading
    return time


def with_transfers(cost: Cost, time: float, moved: Moved) -> float:
    """Return the seconds of a step with its transfers; it computes for ``time`` seconds.

    Fetches (layer by layer), stores and computation overlap, so the longest of the three counts.
    During page faults the GPU waits; pages are copied in and out at the same time.
    """
    if moved.fetched > 0 or moved.stored > 0:
        time = max(time, copy_time(cost, moved.fetched), copy_time(cost, moved.stored))
    if moved.num_faults > 0:
        time += moved.num_faults * cost.fault_time
        time += max(moved.paged_in, moved.paged_out) / cost.link_bytes_per_s
    return time


def total_flops(work: Work) -> float:
    """Floating-point operations of a step in all pipeline stages."""
    return work.gemm_flops + work.head_flops + work.prefill_flops + work.decode_flops


def total_bytes(cost: Cost, work: Work) -> float:
    """Bytes that a step reads and writes on one GPU of one pipeline stage."""
    weights = work.weight_bytes + work.head_bytes
    read = weights + work.decode_bytes + work.prefill_bytes
    return read / cost.num_stages + work.num_tokens * cost.kv_token_bytes


def accepted_time(cost: Cost, time: float) -> float:
    """Return the seconds from a user's cost model, or 1.0 for an invalid value.

    The first invalid value is recorded; the run continues, and is refused at its end.
    """
    if 0.0 < time < math.inf:
        return time
    if not cost.is_refused:
        cost.is_refused = True
        cost.refused_time = time
    return 1.0


def computing_time(cost: Cost) -> float:
    """Seconds of a step with counted work: the swaps before it, and its computation."""
    if cost.price == PRICED_BY_OWN_RULES:
        time = accepted_time(cost, python_price_work(cost))
        return time + swap_time(cost, cost.work.swapped_bytes)
    return work_time(cost, cost.work)


def price(state: Replica, batch: Batch) -> float:
    """Seconds of a step with at least one token, by the configured cost model."""
    cost = state.cost
    if cost.price == CONSTANT:
        return cost.seconds
    if cost.price == PRICED_IN_PYTHON:
        return accepted_time(cost, python_price(state, batch))
    count_work(cost, state.requests, batch)
    cost.work.swapped_bytes = state.swapped_bytes
    if state.limits.has_loras:
        cost.work.num_adapters = state.num_loras
    if state.limits.has_encoder:
        cost.work.num_encoded = state.encoder.num_step_tokens
    time = with_transfers(cost, computing_time(cost), state.kv.moved)
    if state.record_steps:
        cost.flops = total_flops(cost.work) / cost.num_stages
        cost.bytes = total_bytes(cost, cost.work)
    return time
