"""Encoder inputs: a chunk ends before an item that cannot be encoded in the same step.

Encoder outputs stay in the encoder cache by content. An item references its content from the step
that schedules it until its tokens are computed. A content without references is evicted when
another needs its room.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.links import append, remove

if TYPE_CHECKING:
    from kvsim.records.encoder import Item
    from kvsim.records.engine import Replica
    from kvsim.records.request import Request


def begin_encoding(state: Replica) -> None:
    """Start a step: reset the encoder's budget and the lists of the last step."""
    state.encoder.budget = state.limits.encoder_budget
    state.encoder.num_encoded = 0
    state.encoder.num_evicted = 0


def choose_items(state: Replica, request: Request, computed: int, num_tokens: int) -> int:
    """Choose the items to encode for a chunk; return the chunk's tokens that can be computed.

    Items with cached contents get a reference at once, even if the request is not scheduled now.
    """
    encoder, trace, row = state.encoder, state.trace, request.request_id
    ahead = state.limits.num_prefill_lookahead_tokens
    encoder.num_chosen, encoder.num_chosen_tokens, encoder.num_duplicates = 0, 0, 0
    encoder.budget_before = encoder.budget
    for place in range(trace.item_offsets[row], trace.item_offsets[row + 1]):
        item = trace.items[place]
        if item.offset >= computed + num_tokens + ahead:
            break
        end = item.offset + item.num_tokens
        if end <= computed:
            continue
        if state.limits.whole_items and computed <= item.offset and computed + num_tokens < end:
            return max(item.offset - computed - ahead, 0)
        if is_chosen(state, item.content):
            encoder.duplicates[encoder.num_duplicates] = place
            encoder.num_duplicates += 1
        elif encoder.contents[item.content].is_cached:
            pin_item(state, place)
        elif not make_room(state, item):
            return min(num_tokens, max(item.offset - computed, 0))
        else:
            encoder.chosen[encoder.num_chosen] = place
            encoder.num_chosen += 1
            encoder.num_chosen_tokens += item.num_tokens
    return num_tokens


def is_chosen(state: Replica, content: int) -> bool:
    """Return True if a content is already chosen to be encoded for the current request."""
    encoder, found = state.encoder, False
    for n in range(encoder.num_chosen):
        found |= state.trace.items[encoder.chosen[n]].content == content
    return found


def make_room(state: Replica, item: Item) -> bool:
    """Evict contents to make room for an item; False if it cannot be encoded.

    The content that has been without references for the longest time is evicted first.
    """
    encoder = state.encoder
    if item.num_tokens > encoder.budget - encoder.num_chosen_tokens:
        return False
    needed = encoder.num_chosen_tokens + item.num_tokens
    if needed > encoder.num_reclaimable_tokens:
        return False
    while needed > encoder.num_free_tokens:
        content = encoder.unneeded.head
        remove(encoder.unneeded, encoder.contents, content)
        encoder.contents[content].is_cached = False
        encoder.num_free_tokens += encoder.contents[content].num_tokens
        encoder.evicted[encoder.num_evicted] = content
        encoder.num_evicted += 1
    return True


def pin_item(state: Replica, place: int) -> None:
    """Add an item's reference to its cached content, unless the item has one."""
    encoder = state.encoder
    if encoder.is_needed[place] > 0:
        return
    encoder.is_needed[place] = 1
    count_item_once(state, place, True)
    content = state.trace.items[place].content
    encoded = encoder.contents[content]
    encoded.num_references += 1
    if encoded.num_references == 1:
        remove(encoder.unneeded, encoder.contents, content)
        encoder.num_reclaimable_tokens -= encoded.num_tokens


def encode_items(state: Replica, k: int) -> None:
    """Add the items chosen for a request to the encoder cache, once the request has its slots."""
    encoder = state.encoder
    for n in range(encoder.num_chosen):
        place = encoder.chosen[n]
        item = state.trace.items[place]
        encoded = encoder.contents[item.content]
        encoded.is_cached = True
        encoded.num_tokens = item.num_tokens
        encoded.num_references = 1
        encoder.is_needed[place] = 1
        count_item_once(state, place, False)
        encoder.num_free_tokens -= item.num_tokens
        encoder.num_reclaimable_tokens -= item.num_tokens
        unmark_evicted(state, item.content)
        encoder.encoded[encoder.num_encoded] = place
        encoder.owners[encoder.num_encoded] = k
        encoder.num_encoded += 1
    for n in range(encoder.num_duplicates):
        pin_item(state, encoder.duplicates[n])
    if encoder.num_chosen > 0:  # drops budget that preempted requests returned, as in vLLM
        encoder.budget = encoder.budget_before - encoder.num_chosen_tokens


def count_item_once(state: Replica, place: int, is_found: bool) -> None:
    """Count an item when it is first looked up; ``is_found``: its content was cached."""
    if state.encoder.is_met[place] == 0:
        state.encoder.is_met[place] = 1
        state.totals.num_encoder_items += 1
        state.totals.num_found_items += int(is_found)


def count_encoded(state: Replica) -> None:
    """Add the items that the scheduled step encodes to the totals."""
    encoder, num_tokens = state.encoder, 0
    for n in range(encoder.num_encoded):
        num_tokens += state.trace.items[encoder.encoded[n]].num_tokens
    encoder.num_step_tokens = num_tokens
    state.totals.num_encoded_items += encoder.num_encoded
    state.totals.num_encoded_tokens += num_tokens


def unmark_evicted(state: Replica, content: int) -> None:
    """Remove a content from the step's evicted ones, because it is cached again."""
    encoder, kept = state.encoder, 0
    for n in range(encoder.num_evicted):
        if encoder.evicted[n] != content:
            encoder.evicted[kept] = encoder.evicted[n]
            kept += 1
    encoder.num_evicted = kept


def release_items(state: Replica, request: Request, num_tokens: int) -> None:
    """Release the references of a request's items that end within its first ``num_tokens``."""
    encoder, trace, row = state.encoder, state.trace, request.request_id
    for place in range(trace.item_offsets[row], trace.item_offsets[row + 1]):
        item = trace.items[place]
        if encoder.is_needed[place] > 0 and item.offset + item.num_tokens <= num_tokens:
            encoder.is_needed[place] = 0
            encoded = encoder.contents[item.content]
            encoded.num_references -= 1
            if encoded.num_references == 0:
                append(encoder.unneeded, encoder.contents, item.content)
                encoder.num_reclaimable_tokens += encoded.num_tokens


def release_all(state: Replica, request: Request) -> None:
    release_items(state, request, request.num_prompt_tokens)


def release_computed(state: Replica, request: Request) -> None:
    release_items(state, request, request.num_computed_tokens - request.num_placeholders)


def return_items(state: Replica, k: int) -> None:
    """Release a preempted request's items, and return the budget of items chosen in this step."""
    encoder, kept = state.encoder, 0
    for n in range(encoder.num_encoded):
        place, owner = encoder.encoded[n], encoder.owners[n]
        if owner == k:
            encoder.budget += state.trace.items[place].num_tokens
            continue
        encoder.encoded[kept] = place
        encoder.owners[kept] = owner
        kept += 1
    encoder.num_encoded = kept
    release_all(state, state.requests[k])
