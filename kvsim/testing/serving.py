"""Random small traces, and runs with every check."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from kvsim.config import Config
from kvsim.engine.refusal import refusal
from kvsim.engine.setup import resolve
from kvsim.fleet.checker import Checker
from kvsim.fleet.simulate import serve
from kvsim.parametric import Parametric, text_of
from kvsim.results.check import check_result, equal_tables
from kvsim.results.tables import FinishReason
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsim.engine.replica import Replica
    from kvsim.parametric import PartLike
    from kvsim.registry import Registry
    from kvsim.results.result import Result

T = TypeVar("T")

#: Maximum number of tokens of a request of a random trace, prompt and output together.
MAX_MODEL_LEN = 96
#: A run with more steps per token of its trace is considered stuck.
PATIENCE = 50


def random_trace(rng: np.random.Generator, max_requests: int = 8) -> Trace:
    """Return a few short requests, which often share content or arrive together."""
    n = int(rng.integers(1, max_requests + 1))
    segments = []
    for index in range(n):
        shared, own = int(rng.integers(0, 40)), int(rng.integers(1, 40))
        pieces = [(int(rng.integers(0, 2)), 0, shared)] if shared else []
        # Sometimes the prompt contains another request's output, as a later turn does.
        history = rng.random() < 0.3
        content = 1000 + int(rng.integers(0, n)) if history else 100 + index
        segments.append([*pieces, (content, 0, own)])
    return Trace.from_arrays(
        rng.choice([0.0, 0.0, 0.005, 0.03, 1.0], n).cumsum(),
        [sum(length for _, _, length in pieces) for pieces in segments],
        rng.integers(1, 25, n),
        segments=segments,
        output_content_id=[1000 + index for index in range(n)],
        priority=rng.integers(0, 3, n),
    )


@contextmanager
def named(registry: Registry[T], part: PartLike) -> Iterator[str]:
    """Yield the name of a part; an unregistered class is registered while it is checked."""
    if isinstance(part, str | Parametric):
        yield text_of(part)
        return
    factory: Any = part
    with registry.lend(factory) as name:
        yield name


@contextmanager
def told(what: str) -> Iterator[None]:
    """Add a note on the current check to an error."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while checking {what}")
        raise


class Run(NamedTuple):
    """A run of a check: the part's name, the run's seed, its random numbers and its options."""

    name: str
    seed: list[int]
    rng: np.random.Generator
    options: dict[str, Any]


def check_runs(
    registry: Registry[Any],
    part: PartLike,
    draw: Callable[[np.random.Generator, int], dict[str, Any]],
    check: Callable[[Run], None],
    num_runs: int,
    seed: int,
    options: dict[str, Any],
) -> None:
    """Check a part in random runs.

    Parameters
    ----------
    registry : registry of parts of this kind
    part : the part to check
    draw : draws the options of a run, from random numbers and the run's number
    check : performs one run
    num_runs, seed, options : arguments of the check; ``options`` replace drawn ones
    """
    with named(registry, part) as name:
        for number in range(num_runs):
            rng = np.random.default_rng([seed, number])
            drawn: dict[str, Any] = {
                "model": "llama-3-8b",
                "gpu": "h100-sxm",
                "max_model_len": MAX_MODEL_LEN,
                "max_num_seqs": int(rng.integers(1, 7)),
            }
            drawn |= draw(rng, number) | options
            with told(f"{name}, run {number} of seed {seed}: {drawn}"):
                check(Run(name, [seed, number], rng, drawn))


def pool_of_any_size(rng: np.random.Generator, number: int) -> dict[str, Any]:
    """Draw a pool of 16 to 512 blocks."""
    return {"num_gpu_blocks_override": int(2 ** rng.uniform(4, 9))}


class Watch(Checker):
    """Recounts all memory after every step, and raises an error after ``num_steps`` steps."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps

    def scheduled(self, replica: Replica) -> None:
        """Check a replica after a step was scheduled."""
        self.num_steps -= 1
        if self.num_steps < 0:
            raise AssertionError(
                f"invariant 7: at {replica.clock} s {replica.num_outstanding()} requests still "
                "preempt each other, or wait; fits() may be true for too large requests"
            )
        self.completed(replica)

    def completed(self, replica: Replica) -> None:
        """Check a replica after a step has ended."""
        super().completed(replica)
        replica.kv.usage.check(replica.kv.total_bytes)


def checked(trace: Trace, options: dict[str, Any]) -> Result:
    """Serve a trace twice, with every check; return the first result.

    Raises
    ------
    AssertionError, RuntimeError
        The message names the broken invariant.
    """
    first, second = _serve(trace, options), _serve(trace, options)
    check_result(first)
    for table in ("requests", "memory", "steps"):
        if not equal_tables(getattr(first, table), getattr(second, table)):
            raise AssertionError(f"invariant 8: two runs differ in the {table} table")
    if first.summary != second.summary:
        raise AssertionError("invariant 8: two runs differ in the summary")
    ended = (FinishReason.FINISHED, FinishReason.REJECTED)
    if not set(first.requests["finish_reason"].tolist()) <= set(ended):
        raise AssertionError("invariant 1: some requests never ended")
    return first


def check_compiled(trace: Trace, options: dict[str, Any], expected: Result) -> None:
    """Compare a user's rules with their compiled run, if the other parts can be compiled."""
    setup = resolve(Config.build(**options))
    if refusal(setup) is not None:
        return
    found = serve(setup, trace)
    for table in ("requests", "memory"):
        if not equal_tables(getattr(expected, table), getattr(found, table)):
            raise AssertionError(f"compiled, its {table} table differs from that in Python")


def _serve(trace: Trace, options: dict[str, Any]) -> Result:
    config = Config.build(**{"backend": "python", "record_steps": True} | options)
    tokens = int(trace.num_prompt_tokens.sum() + trace.num_output_tokens.sum())
    return serve(resolve(config), trace, observer=Watch(PATIENCE * (tokens + 1)))
