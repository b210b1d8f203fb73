"""Settings of SGLang's speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvsim.speculation import MAX_DRAFTS as MOST_DRAFTS

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory

Algorithm = Literal["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"]
#: Algorithms whose drafter reads the next token, so that keys of the tree are pairs.
READ_THE_NEXT = ("EAGLE", "EAGLE3", "NEXTN")


@dataclass(frozen=True)
class SpeculationSettings:
    """Shape and source of drafts; names are SGLang's."""

    algorithm: Algorithm
    num_steps: int = 3
    topk: int = 1
    num_draft_tokens: int = 4
    accept_rates: tuple[float, ...] = ()
    seed: int = 0

    def reserve(self, page_size: int) -> int:
        """Return the slots of a row beyond its committed tokens, for two steps."""
        slots = self.num_steps * self.topk
        if page_size > 1 and self.topk > 1 and self.algorithm != "NGRAM":
            slots = -(-(page_size - 1 + self.num_steps) // page_size) * page_size * self.topk
        return 2 * max(slots, self.num_draft_tokens)

    def init_state(self, state: Replica, memory: Memory) -> None:
        """Write the slots of a step into a state with a tree."""
        speculation = state.engines.sglang.speculation
        speculation.is_on, speculation.num_verified = True, self.num_draft_tokens
        depth = MOST_DRAFTS if self.algorithm == "NGRAM" else self.num_steps
        speculation.depth = min(depth, self.num_draft_tokens - 1)
        state.accept_rates = memory.list_of(self.accept_rates or [0.0] * MOST_DRAFTS)
        state.limits.draw_seed = self.seed
        speculation.reserve = self.reserve(state.kv.radix.pages.page_size)
        # Nodes with states have keys of single tokens under every algorithm.
        has_pairs = self.algorithm in READ_THE_NEXT and not state.kv.radix.has_states
        state.kv.radix.ahead = int(has_pairs)
