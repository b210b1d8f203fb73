"""A feature of the scheduler that no file of kvsim names: options, hooks, both engines."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.cli.options import SECTIONS, _options
from kvsim.config import Config, RunConfig
from kvsim.dispatch import FEATURES
from kvsim.features.feature import SCHEDULER_FEATURES, Feature, options_of
from kvsim.testing import check_result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.records.engine import Batch, Replica
    from kvsim.records.request import Request


@dataclass(slots=True)
class FewPrefills(Feature):
    """At most N waiting requests join the batch in a step, and a chunk has at most M tokens."""

    options: ClassVar = {
        "max_new_prefills": "maximum number of waiting requests that join a step; 0: no limit",
        "max_chunk": "maximum tokens of a request per step; 0: no limit",
    }
    max_new_prefills: int = 0
    max_chunk: int = 0
    num_new: int = 0
    most_new: int = 0

    def begin_step(self, state: Replica) -> None:
        self.num_new = 0

    def ends_admission(self, state: Replica) -> bool:
        return self.num_new >= self.max_new_prefills > 0

    def limit_tokens(self, state: Replica, request: Request, num_tokens: int) -> int:
        return min(num_tokens, self.max_chunk) if self.max_chunk > 0 else num_tokens

    def record_admitted(self, state: Replica, request: Request) -> None:
        self.num_new += 1

    def end_step(self, state: Replica, batch: Batch) -> None:
        self.most_new = max(self.most_new, self.num_new)

    def sees_decodes(self, state: Replica) -> bool:
        return False


@contextmanager
def lend(feature: type[Feature]) -> Iterator[None]:
    """Register a feature, and add its options to the configuration, as an installed one's are."""
    with SCHEDULER_FEATURES.lend(feature):
        FEATURES.found = None
        given = {
            name: kvsim_field(kind, field) for name, (kind, field) in options_of([feature]).items()
        }
        for config in (Config, RunConfig):
            config.__pydantic_fields__.update(given)
            config.model_rebuild(force=True)
        listed = SECTIONS[feature.section]
        SECTIONS[feature.section] = (*listed, *given)
        try:
            yield
        finally:
            FEATURES.found = None
            SECTIONS[feature.section] = listed
            for config in (Config, RunConfig):
                for name in given:
                    del config.__pydantic_fields__[name]
                config.model_rebuild(force=True)


def kvsim_field(kind: Any, field: Any) -> Any:
    """Return the field of an option as a class has it."""
    return type(field).from_annotated_attribute(kind, field)


@pytest.fixture(autouse=True)
def lent() -> Iterator[None]:
    with lend(FewPrefills):
        yield


def run(backend: str, **options: Any) -> kvsim.Result:
    trace = workloads.sharegpt(num_requests=60, request_rate=40.0, seed=1)
    given = {"model": "llama-3-8b", "gpu": "h100-sxm", "record_steps": True, "backend": backend}
    given |= {"max_model_len": 4096, "num_gpu_blocks_override": 600, **options}
    return kvsim.simulate(trace, **given)


def same(one: kvsim.Result, other: kvsim.Result, *tables: str) -> None:
    for table in tables or ("requests", "steps"):
        for column in getattr(one, table).dtype.names:
            both = (getattr(each, table)[column] for each in (one, other))
            np.testing.assert_array_equal(*both, err_msg=column)


@pytest.mark.long
def test_both_engines_agree() -> None:
    options = {"max_new_prefills": 1, "max_chunk": 100}
    python, compiled = (run(backend, **options) for backend in ("python", "compiled"))
    check_result(python)
    same(python, compiled)
    assert compiled.provenance["engine"] == "compiled"
    # Without a table of steps, decodes are computed together.
    for backend in ("python", "compiled"):
        same(python, run(backend, record_steps=False, **options), "requests")
    usual = run("python").requests["first_token_time"]
    assert (python.requests["first_token_time"] != usual).any()


def test_each_option_has_its_effect() -> None:
    runs = [run("python"), run("python", max_new_prefills=1), run("python", max_chunk=9)]
    starts = [one.requests["first_scheduled_time"] for one in runs]
    most = [np.unique(times, return_counts=True)[1].max() for times in starts]
    assert most[0] > 1 == most[1]
    steps = runs[2].steps
    assert (steps["num_scheduled_tokens"] / steps["num_running"]).max() <= 9


def test_chunks_end_where_states_are_cached() -> None:
    trace = workloads.fixed(prompt=3000, output=2, num_requests=1, request_rate=1.0)
    given = {"max_model_len": 8192, "enable_prefix_caching": True, "record_steps": True}
    model = {"model": "nemotron-h-8b", "gpu": "h100-sxm", "backend": "python"}
    steps = kvsim.simulate(trace, **model, **given, max_chunk=1300).steps
    # Blocks of 528 tokens; the last state is cached at 2,640.
    assert steps["num_scheduled_tokens"].tolist() == [1056, 1056, 528, 360, 1, 0]


def test_off_it_changes_nothing() -> None:
    same(run("python"), run("python", max_new_prefills=0))


def test_wrong_values_and_other_schedulers_are_refused() -> None:
    with pytest.raises(ValueError, match="max_new_prefills"):
        run("python", max_new_prefills=-1)
    with pytest.raises(ValueError, match="max_chunk: scheduler 'orca' has no such limit; vllm has"):
        run("python", max_chunk=8, scheduler="orca")


def test_the_command_line_has_it() -> None:
    (option,) = _options(RunConfig, "max_new_prefills", lists=False)
    assert option.opts == ["--max-new-prefills"]
    assert str(option.help).startswith("maximum number of waiting requests")
    assert "max_chunk" in SECTIONS["Scheduler limits"]


@dataclass(slots=True)
class Remembers(Feature):
    """Uses what no rule may."""

    options: ClassVar = {"remembers": "anything"}
    remembers: int = 0

    def must_wait(self, state: Replica, request: Request) -> bool:
        return request.place in {1: 2}


@pytest.mark.long
def test_a_hook_that_is_no_rule_is_refused_in_one_line() -> None:
    with lend(Remembers):
        message = r"^[^\n]+test_toy_feature.py:\d+: [^\n]+ does not compile \(backend python"
        with pytest.raises(ValueError, match=message):
            run("compiled", remembers=1)
