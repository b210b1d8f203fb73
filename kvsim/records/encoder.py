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
    """The entry of the encoder cache for a content."""

    num_tokens: int = 0  # as it was entered
    is_cached: bool = False
    num_references: int = 0  # of items of requests that still need it
    next: int = NONE  # among those that nobody needs
    previous: int = NONE


@dataclass(slots=True)
class Encoder(Record):
    """The encoder cache, and its use by the step that is scheduled."""

    budget: int = 0  # tokens that the step may still encode
    budget_before: int = 0  # the request at hand
    num_free_tokens: int = 0  # tokens of the cache
    num_reclaimable_tokens: int = 0  # free ones, and those of contents that nobody needs
    contents: list[Encoded] = field(default_factory=list)
    unneeded: Queue = field(default_factory=Queue)  # the next one out first
    is_needed: list[int] = field(default_factory=list)  # by item of the trace
    chosen: list[int] = field(default_factory=list)  # items to encode for the request at hand
    num_chosen: int = 0
    num_chosen_tokens: int = 0
    duplicates: list[int] = field(default_factory=list)  # its items of the same contents
    num_duplicates: int = 0
    encoded: list[int] = field(default_factory=list)  # items of the step
    owners: list[int] = field(default_factory=list)  # and whose they are
    num_encoded: int = 0
    num_step_tokens: int = 0  # that the step encodes
    is_met: list[int] = field(default_factory=list)  # by item: some step has looked for it
    evicted: list[int] = field(default_factory=list)  # contents, since the last step
    num_evicted: int = 0
