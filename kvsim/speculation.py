"""What speculative decoding asks of scheduler and KV cache: vLLM's SpeculativeConfig."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Method = Literal["ngram", "suffix", "draft_model", "eagle", "eagle3", "mtp", "dflash"]

METHODS: tuple[str, ...] = get_args(Method)
#: Methods whose drafter reads the target's hidden states.
READ_HIDDEN_STATES = ("eagle", "eagle3", "mtp", "dflash")
#: Those of them whose last matched block must be computed again, or hashed with what follows it.
LACK_THE_NEXT = ("eagle", "eagle3", "mtp")


@dataclass(frozen=True)
class SpeculativeConfig:
    """How many tokens are drafted, and how; names and defaults are vLLM's.

    Parameters
    ----------
    method : who drafts
    num_speculative_tokens : drafts per step and request
    num_speculative_tokens_per_batch_size : (first, last, drafts) by requests of a step, optional
    mtp_modules : prediction modules of an MTP head
    parallel_drafting : all drafts come from one pass of the drafter
    disable_lookahead_block_hashes : blocks are named by their own tokens alone
    disable_eagle_block_drop : the last matched block is kept even so
    """

    method: Method
    num_speculative_tokens: int
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] = ()
    mtp_modules: int = 1
    parallel_drafting: bool = False
    disable_lookahead_block_hashes: bool = False
    disable_eagle_block_drop: bool = False

    @property
    def num_lookahead_tokens(self) -> int:
        """Slots beyond the scheduled tokens."""
        if self.method in ("ngram", "suffix"):
            return 0
        return self.num_speculative_tokens + (self.method == "dflash")

    @property
    def num_prefill_lookahead_tokens(self) -> int:
        """Tokens that the drafter reads beyond a chunk of a prompt."""
        if self.method not in READ_HIDDEN_STATES:
            return 0
        several = self.method == "mtp" and self.mtp_modules > 1 and self.num_speculative_tokens > 1
        return self.num_speculative_tokens if several else 1

    @property
    def num_hash_lookahead_tokens(self) -> int:
        """Tokens after a block that its name covers."""
        if self.method not in LACK_THE_NEXT or self.disable_lookahead_block_hashes:
            return 0
        return 0 if self.disable_eagle_block_drop else self.num_prefill_lookahead_tokens

    @property
    def drops_last_block(self) -> bool:
        """Whether the last block of a hit is computed again."""
        if self.method not in LACK_THE_NEXT or self.disable_eagle_block_drop:
            return False
        return self.disable_lookahead_block_hashes

    @property
    def num_draft_slots(self) -> int:
        """Input slots per request that drafting takes from a step's budget."""
        if self.method == "draft_model":
            return self.num_speculative_tokens if self.parallel_drafting else 1
        if self.parallel_drafting and self.method in LACK_THE_NEXT:
            return self.num_speculative_tokens - 1
        return 0
