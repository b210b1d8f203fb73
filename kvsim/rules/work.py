"""The work of a step: exact counts of FLOPs and bytes, which do not depend on the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import FULL
from kvsim.rules.blocks.attention import num_keys, num_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.records.cost import Cost, Layers, Work
    from kvsim.records.engine import Batch, Entry
    from kvsim.records.request import Request


def count_work(cost: Cost, requests: Sequence[Request], batch: Batch) -> None:
    """Set ``cost.work`` to the work of a step, and count the keys for each kind of layers."""
    work = cost.work
    num_tokens, num_decodes, num_sampled, decode_keys, has_samples = 0, 0, 0, 0, False
    if cost.has_drafts:
        count_drafts(work, batch)
    for at in range(batch.size):
        entry = batch.entries[at]
        num_tokens += entry.num_tokens
        num_sampled += entry.unfinished == 0
        if entry.num_tokens == 1 or is_verified(cost, entry):
            num_decodes += 1
            decode_keys += entry.end
    work.num_requests = batch.size
    work.num_tokens = num_tokens
    work.num_sampled = num_sampled + (work.num_drafts if cost.has_drafts else 0)
    work.num_decodes = num_decodes
    work.num_context_tokens = decode_keys
    if cost.splits_context:
        count_prompt_context(work, batch)
    if cost.has_samples:
        has_samples = count_samples(work, requests, batch)
    for k in range(cost.num_layers):
        layers = cost.layers[k]
        layers.decode_keys = decode_keys
        if cost.has_drafts:
            layers.draft_pairs = work.draft_pairs
        layers.prefill_keys = 0
        layers.prefill_pairs = 0
        if layers.kind != FULL or num_decodes < batch.size or has_samples:
            count_attention(cost, layers, requests, batch)
    weigh(cost)


def is_verified(cost: Cost, entry: Entry) -> bool:
    """Return True if an entry is a decode with drafts, for which attention reads KV once."""
    return cost.has_drafts and entry.num_tokens == 1 + entry.num_drafts


def count_drafts(work: Work, batch: Batch) -> None:
    """Count the drafts of a step, and the tokens of which the drafter then reads the KV."""
    num_drafts, pairs, keys = 0, 0, 0
    for at in range(batch.size):
        entry = batch.entries[at]
        if entry.num_tokens == 1 + entry.num_drafts:
            num_drafts += entry.num_drafts
            pairs += entry.num_drafts * entry.end
        if entry.unfinished == 0:
            keys += entry.end
    work.num_drafts = num_drafts
    work.draft_pairs = pairs
    work.draft_keys = keys
    work.num_drafted = batch.num_drafts


def count_prompt_context(work: Work, batch: Batch) -> None:
    """Count the tokens before the chunks of prompts."""
    num_tokens = 0
    for at in range(batch.size):
        entry = batch.entries[at]
        if entry.num_tokens > 1 + entry.num_drafts:
            num_tokens += entry.end - entry.num_tokens
    work.num_prompt_context_tokens = num_tokens


def count_samples(work: Work, requests: Sequence[Request], batch: Batch) -> bool:
    """Count sequences instead of requests, and their tokens, samples and decodes.

    A prompt is computed once for all sequences of a request. Returns True if any request has
    several sequences.
    """
    has_samples = False
    sequences, tokens, sampled, decodes = 0, 0, 0, 0
    for at in range(batch.size):
        entry = batch.entries[at]
        request = requests[entry.request]
        has_samples = has_samples or request.num_samples > 1
        own = max(entry.end - max(entry.end - entry.num_tokens, request.num_prompt_tokens), 0)
        several = request.num_samples if own > 0 else 1
        sequences += several
        tokens += entry.num_tokens - own + own * request.num_samples
        sampled += request.num_samples if entry.unfinished == 0 else 0
        decodes += several if entry.num_tokens == 1 else 0
    work.num_requests = sequences
    work.num_tokens = tokens
    work.num_sampled = sampled
    work.num_decodes = decodes
    return has_samples


def count_attention(cost: Cost, layers: Layers, requests: Sequence[Request], batch: Batch) -> None:
    """Count the keys and query-key pairs of layers of one kind."""
    decode_keys, prefill_keys, pairs, window = 0, 0, 0, layers.window
    draft_pairs = 0
    for at in range(batch.size):
        entry = batch.entries[at]
        start = entry.end - entry.num_tokens
        keys = num_keys(layers.kind, window, start, entry.num_tokens)
        if entry.num_tokens == 1 or is_verified(cost, entry):
            if cost.has_samples:
                request = requests[entry.request]
                keys *= request.num_samples if start >= request.num_prompt_tokens else 1
            decode_keys += keys
            draft_pairs += keys * entry.num_drafts
        else:
            prefill_keys += keys
            pairs += num_pairs(layers.kind, window, entry.end)
            pairs -= num_pairs(layers.kind, window, start)
    layers.decode_keys = decode_keys
    layers.draft_pairs = draft_pairs
    layers.prefill_keys = prefill_keys
    layers.prefill_pairs = pairs


def weigh(cost: Cost) -> None:
    """Set the bytes and FLOPs of ``cost.work`` from its counts."""
    work = cost.work
    weigh_gemms(cost, work)
    work.head_bytes = cost.head_bytes if work.num_sampled > 0 else 0.0
    work.head_flops = work.num_sampled * cost.head_flops
    weigh_attention(cost, work)


def weigh_gemms(cost: Cost, work: Work) -> None:
    """Set the bytes and FLOPs of the layers' GEMMs, experts in use included."""
    experts = cost.experts
    work.weight_bytes = cost.wide.num_bytes + cost.narrow.num_bytes
    work.gemm_flops = work.num_tokens * (cost.wide.token_flops + cost.narrow.token_flops)
    if experts.num_layers == 0.0:
        return
    work.touched = experts.touched[min(work.num_tokens, experts.last_touched)]
    rows = work.num_tokens * experts.token_rows
    work.weight_bytes += experts.num_layers * work.touched * experts.expert_bytes
    work.gemm_flops += experts.num_layers * rows * experts.row_flops


def weigh_attention(cost: Cost, work: Work) -> None:
    """Set the bytes and FLOPs of attention from keys and pairs, summed over the layers."""
    decode_bytes, decode_flops, prefill_bytes, prefill_flops = 0.0, 0.0, 0.0, 0.0
    for k in range(cost.num_layers):
        layers = cost.layers[k]
        decode_bytes += layers.decode_keys * layers.kv_bytes
        prefill_bytes += layers.prefill_keys * layers.kv_bytes
        prefill_flops += layers.prefill_pairs * layers.prompt_pair_flops
        decode_flops += (layers.decode_keys + layers.draft_pairs) * layers.pair_flops
    work.decode_bytes = decode_bytes
    work.decode_flops = decode_flops
    work.prefill_bytes = prefill_bytes
    work.prefill_flops = prefill_flops
