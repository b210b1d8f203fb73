"""DistServe's simulator in kvsim's terms: its step times, and the requests that it was asked for.

Its rules, read in LLMServe/DistServe (``simdistserve``): a prefill replica takes all prompts that
wait into one step; the first token counts when that step ends; a decode replica takes what has come
between two of its steps; a transfer takes no time. A step takes what its profile says, and 2 ms and
0.1 us per token of context for its workers.

``distserve_requests.csv`` has 300 requests of its ShareGPT as it sent them to a server (the same
repository at 20a1633e, ``benchmarks/alignment/data-ground-truth/opt-13b-sharegpt-workload/
distserve-300-3.exp``, Apache-2.0): their lengths, in the order in which they came. Client and
simulator draw requests alike, from the same file and with the same seed, so that these may well be
the ones of its search, which names none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvsim.cost.model import StepCost
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

    from kvsim.cost.model import CostConfig
    from kvsim.sched.scheduler import StepPlan

MODEL = "facebook/opt-13b"
REQUESTS = Path(__file__).with_name("requests.csv")
#: Costs outside its profile, ms: a prefill pipeline stage; a decode step; a token of its contexts.
STAGE, PER_STEP, PER_TOKEN = 1.0, 2.0, 1e-4


class OfProfile:
    """Prices the steps of either pool by a profile of DistServe's: for ``kvsim search``.

    A step with more tokens than requests computes prompts.

    Parameters
    ----------
    profile : path to its JSON file, constants in ms by model and degree of tensor parallelism
    """

    def __init__(self, config: CostConfig, *, profile: str = "") -> None:
        constants = json.loads(Path(profile).read_text("utf-8"))[MODEL]
        self._constants: Mapping[str, Any] = constants[str(config.tensor_parallel_size)]

    def step(self, plan: StepPlan) -> StepCost:
        """Price a step by the measured constants of prompts and decodes."""
        if sum(plan.num_tokens) > len(plan.requests):
            time = prompts_ms(self._constants, plan.num_tokens)
        else:
            contexts = [request.num_computed_tokens for request in plan.requests]
            time = outputs_ms(self._constants, contexts)
        return StepCost(time / 1e3, 0.0, 0.0)


def prompts_ms(constants: Mapping[str, Any], lengths: list[int]) -> float:
    """Return the milliseconds of a step that computes prompts."""
    a, b, c = constants["prefill"]
    total, squares = sum(lengths), sum(n * n for n in lengths)
    return float(a + b * total + c * squares + STAGE + PER_STEP + PER_TOKEN * total)


def outputs_ms(constants: Mapping[str, Any], contexts: list[int]) -> float:
    """Return the milliseconds of a step that gives a token after each of some contexts."""
    size, total = len(contexts), sum(contexts)
    is_small = size < constants["decoding_large_small_bs_threshold"]
    a, b, c = constants["decoding_smallbs" if is_small else "decoding_largebs"]
    return float(a + b * total + c * size + PER_STEP + PER_TOKEN * total)


def lengths() -> NDArray[np.int64]:
    """Return prompt and output tokens of its requests, one row each."""
    return np.loadtxt(REQUESTS, dtype=np.int64, delimiter=",", skiprows=1)


def requests(num_requests: int = 300, request_rate: float = 1.0, seed: int = 0) -> Trace:
    """Its requests in their order, the first at once; only the gaps are drawn, from one stream.

    Parameters
    ----------
    num_requests : number of requests, from the first on
    request_rate : mean requests per second
    seed : of the gaps; equal seeds give the same gaps at any rate, closer together
    """
    known = lengths()[:num_requests]
    if num_requests > len(known):
        raise ValueError(f"num_requests={num_requests}: there are {len(known)}")
    gaps = np.random.default_rng(seed).exponential(1.0, num_requests - 1) / request_rate
    return Trace.from_arrays(np.concatenate(([0.0], np.cumsum(gaps))), known[:, 0], known[:, 1])
