"""A scheduler: short prompts first, and who waits gains on those who come later.

Run it: kvsim run --scheduler docs/examples/parts/shortest_first.py:ShortestFirst+ageing=5
"""

from kvsim.plugins.scheduling import Request, SchedulerRules


class ShortestFirst(SchedulerRules):
    """The fewest prompt tokens first; a second of waiting counts as ``ageing`` tokens less."""

    ageing: float = 0.0  # tokens per second

    def priority(self, request: Request, now: float) -> float:
        """Return the place in the queue, lower first.

        As all requests age alike, an earlier arrival is a lead that stays: ``now`` is not needed,
        so that kvsim asks once per request, not in every step.
        """
        return request.num_prompt_tokens + self.ageing * request.arrival_time
