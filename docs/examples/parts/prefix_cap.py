"""A router: the longest cached prefix, unless its replica is too busy.

Run it: kvsim run --router docs/examples/parts/prefix_cap.py:PrefixCap+cap=2 --data-parallel-size 4
"""

from kvsim.plugins.routing import Placement, RouterRules, least_loaded, longest_match

MATCHED, BUSY = 0, 1


class PrefixCap(RouterRules):
    """The replica with most of the prompt, if it has at most ``cap`` times the mean load."""

    cap: float = 1.5  # of the mean requests in flight, this one included

    branches = ("matched", "too busy")

    def choose(self, placement: Placement) -> int:
        """Return the place of the replica that serves the request."""
        candidates, number = placement.candidates, placement.num_candidates
        total = 1
        for k in range(number):
            total += candidates[k].num_outstanding
        longest = longest_match(placement)
        most = self.cap * total / number
        if candidates[longest].cached_tokens > 0 and candidates[longest].num_outstanding < most:
            placement.branch = MATCHED
            return longest
        placement.branch = BUSY
        return least_loaded(placement)
