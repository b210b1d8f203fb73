"""Records of a multimodal model's encoder: items of prompts, and the encoder cache."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.queue import Queue
from kvsim.records.record import NONE, Record


@dataclass(slots=True)
class Item(Record):
    """A part of a prompt that the encoder computes, such as an image."""

    content: int = 0  # equal for equal inputs
    offset: int = 0
    num_tokens: int = 0


@dataclass(slots=True)
class Encoded(Record):
    """The encoder cache's entry for one content."""

    num_tokens: int = 0  # tokens of the item that was encoded
    is_cached: bool = False
    num_references: int = 0  # items of requests that still need it
    next: int = NONE  # neighbours in `Encoder.unneeded`
    previous: int = NONE


@dataclass(slots=True)
class Encoder(Record):
    """The encoder cache, and its use by the step being scheduled."""

    budget: int = 0  # tokens that the step may still encode
    budget_before: int = 0  # the budget before the current request
    num_free_tokens: int = 0  # free tokens of the cache
    num_reclaimable_tokens: int = 0  # free tokens, and those of contents without references
    contents: list[Encoded] = field(default_factory=list)
    unneeded: Queue = field(default_factory=Queue)  # contents without references, in eviction order
    is_needed: list[int] = field(default_factory=list)  # by item of the trace
    chosen: list[int] = field(default_factory=list)  # items to encode for the current request
    num_chosen: int = 0
    num_chosen_tokens: int = 0
    duplicates: list[int] = field(default_factory=list)  # its items that repeat a chosen content
    num_duplicates: int = 0
    encoded: list[int] = field(default_factory=list)  # items that the step encodes
    owners: list[int] = field(default_factory=list)  # the request of each
    num_encoded: int = 0
    num_step_tokens: int = 0  # tokens that the step encodes
    is_met: list[int] = field(default_factory=list)  # by item: 1 once a step has looked it up
    evicted: list[int] = field(default_factory=list)  # contents evicted since the last step
    num_evicted: int = 0
