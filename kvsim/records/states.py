"""Records of the states of Mamba and linear-attention layers."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.paged import BlockTable
from kvsim.records.record import Record


@dataclass(slots=True)
class States(Record):
    """Cached states at block ends, and copies of states that end inside a block."""

    block_size: int = 0  # configured block size: chunks of a prompt end at its multiples
    checkpoint_alignment: int = 0  # tokens between places of states in a chunk, 0 for none
    keeps_shared: bool = False  # also cache the state at the exact end of a shared prefix
    step: int = 1  # number of the step being scheduled
    named_in: list[int] = field(default_factory=list)  # by block: the step that set its key
    pending: list[int] = field(default_factory=list)  # by `RequestBlocks` and group: slot to copy
    checkpoints: list[int] = field(default_factory=list)  # by group: slot of the chunk's checkpoint
    checkpoint_end: int = 0  # tokens that the checkpoint covers
    copies: BlockTable = field(default_factory=BlockTable)  # of this step: copy, source, copy, ...
    copy_groups: list[int] = field(default_factory=list)
    num_copies: int = 0
    num_held: int = 0  # copies with blocks that are still held
