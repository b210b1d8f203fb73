"""Records of the states of Mamba and linear-attention layers."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.paged import BlockTable
from kvsim.records.record import Record


@dataclass(slots=True)
class States(Record):
    """States at ends of blocks, which later requests reuse, and copies of states inside a block."""

    block_size: int = 0  # the configured one: chunks of a prompt end at its multiples
    checkpoint_alignment: int = 0  # of states inside a chunk, tokens from its start; 0: none
    keeps_shared: bool = False  # also the state where a shared prefix ends, inside a block or not
    step: int = 1  # number of the step being scheduled
    named_in: list[int] = field(default_factory=list)  # by block: the step that gave it its key
    pending: list[int] = field(default_factory=list)  # by holding and group: place to copy, or NONE
    checkpoints: list[int] = field(default_factory=list)  # by group: place left by this chunk
    checkpoint_end: int = 0  # tokens that the state there covers
    copies: BlockTable = field(default_factory=BlockTable)  # of this step: copy, source, copy, ...
    copy_groups: list[int] = field(default_factory=list)
    num_copies: int = 0
    num_held: int = 0  # of them, whose blocks are held still
