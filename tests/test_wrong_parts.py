"""Parts of a user's that give a wrong answer or raise: one line with the part, and the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvsim
import workloads
from kvsim.cli import main
from kvsim.compiled.rule_check import check_promises
from kvsim.registry import import_file

SMALL: dict[str, Any] = {"model": "llama-3-8b", "gpu": "l4", "num_gpu_blocks_override": 60}
TRACE = workloads.fixed(prompt=100, output=20, num_requests=12, request_rate=50.0)
TWO: dict[str, Any] = {"data_parallel_size": 2}

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples" / "parts"

TEXT = """
from bdb import BdbQuit
from kvsim.plugins.allocation import AllocatorRules, per_request
from kvsim.plugins.cost import CostRules
from kvsim.plugins.eviction import EvictionRules
from kvsim.plugins.routing import Router, RouterRules
from kvsim.plugins.scheduling import SchedulerRules


class Cost(CostRules):
    def price(self, work):
        return 1.0 / (work.num_tokens - work.num_tokens)


class Silent(CostRules):
    def price(self, work):
        self


class Order(SchedulerRules):
    value: float = 1e308

    def priority(self, request, now):
        return self.value * 10.0 - self.value * 10.0


class Victim(SchedulerRules):
    value: float = 1e308

    def victim(self, request, now):
        return self.value * 10.0 - self.value * 10.0


class Evict(EvictionRules):
    block: int = 0

    def insert(self, block_id):
        self

    def remove(self, block_id):
        self

    def evict(self):
        return self.block


class Allocate(AllocatorRules):
    def allocate(self, request, num_tokens):
        return num_tokens // (num_tokens - num_tokens)

    def free(self, request):
        self


class Choose(RouterRules):
    def choose(self, placement):
        return placement.candidates[99].num_outstanding


class Beyond(AllocatorRules):
    rooms: list[int] = per_request()

    def allocate(self, request, num_tokens):
        self.rooms[request.own_blocks + 9999] += num_tokens
        return num_tokens

    def free(self, request):
        self.rooms[request.own_blocks + 9999] = 0


class Half(RouterRules):
    def choose(self, placement):
        return 0.5


class Negative(AllocatorRules):
    def allocate(self, request, num_tokens):
        return -3

    def free(self, request):
        self


class Late(AllocatorRules):
    def allocate(self, request, num_tokens):
        return -3 if num_tokens > 101 else num_tokens

    def free(self, request):
        self


class Branch(RouterRules):
    value: int = 7
    branches = ("one", "two")

    def choose(self, placement):
        placement.branch = self.value
        return 0


class Debugged(CostRules):
    def price(self, work):
        raise BdbQuit


class Plain(Router):
    def choose(self, request, replicas):
        raise KeyError("gone")
"""


SHOWN = """
from kvsim.plugins.cost import CostRules
from kvsim.plugins.routing import RouterRules
from kvsim.plugins.scheduling import Request, SchedulerRules, per_replica


class Silent(CostRules):
    def price(self, work):
        if work.num_tokens > 10**9:
            return 0.01
        self


class Quiet(SchedulerRules):
    def victim(self, request, now):
        self


class Urgent(SchedulerRules):
    def priority(self, request, now):
        request.priority = 0
        return 0.0


class Aged(SchedulerRules):
    age: float = 1.0

    def priority(self, request, now):
        self.age += 1.0
        return 0.0


class New(SchedulerRules):
    def priority(self, request, now):
        self.last = now
        return 0.0


class Empty(RouterRules):
    def choose(self, placement):
        one = placement.candidates[0]
        one.num_outstanding = 0
        return 0
"""


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    file = tmp_path / "wrong.py"
    file.write_text(TEXT)
    return file


def told(parts: Path, options: dict[str, Any], backend: str = "python") -> str:
    named = {name: value.replace("FILE", str(parts)) for name, value in options.items()}
    more = TWO if "router" in named else {}
    with pytest.raises(ValueError, match=r".") as caught:
        kvsim.simulate(TRACE, backend=backend, **SMALL, **more, **named)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "place", "error"),
    [
        ({"cost_model": "FILE:Cost"}, "Cost.price: FILE:12", "ZeroDivisionError: float division"),
        ({"allocator": "FILE:Allocate"}, "Allocate.allocate: FILE:", "ZeroDivisionError: integer"),
        (
            {"allocator": "FILE:Beyond"},
            "Beyond.allocate: FILE:",
            "IndexError: index 9999 of a list",
        ),
        ({"router": "FILE:Choose"}, "Choose.choose: FILE:", "IndexError: list index"),
        ({"router": "FILE:Plain"}, "Plain.choose: FILE:", "KeyError: 'gone'"),
    ],
)
def test_an_error_in_a_part_has_its_place(
    parts: Path, options: dict[str, str], place: str, error: str
) -> None:
    said = told(parts, options)
    assert said.startswith(place.replace("FILE", str(parts)))
    assert error in said


@pytest.mark.parametrize("backend", ["python", pytest.param("compiled", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scheduler": "FILE:Order"}, "FILE:Order: priority returned nan: must be a number"),
        ({"scheduler": "FILE:Victim"}, "FILE:Victim: victim returned nan: must be a number"),
        ({"allocator": "paged+eviction=FILE:Evict"}, "FILE:Evict: evict returned 0: must be a"),
        (
            {"allocator": "paged+eviction=FILE:Evict:block=1000000"},
            "FILE:Evict:block=1000000: evict returned 1000000: must be a block",
        ),
    ],
)
def test_a_wrong_answer_is_refused(
    parts: Path, options: dict[str, str], said: str, backend: str
) -> None:
    assert said.replace("FILE", str(parts)) in told(parts, options, backend)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["python", "compiled"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"router": "FILE:Half"}, "a whole number"),
        ({"router": "FILE:Branch"}, "router Branch: placement.branch = 7: must be a whole number,"),
        ({"router": "FILE:Branch+value=-1"}, "router Branch: placement.branch = -1: must be a"),
        ({"allocator": "FILE:Negative"}, "allocator Negative: allocate returned -3: must be the"),
        ({"allocator": "FILE:Late"}, "allocator Late: allocate returned -3: must be the number"),
    ],
)
def test_a_number_that_is_no_answer_is_refused(
    parts: Path, options: dict[str, str], said: str, backend: str
) -> None:
    assert said in told(parts, options, backend)


@pytest.mark.parametrize("backend", ["python", "compiled"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cost_model": "FILE:Silent"}, "Silent.price: FILE:11: must return a number on every"),
        ({"scheduler": "FILE:Quiet"}, "Quiet.victim: FILE:16: must return a number on every"),
        (
            {"scheduler": "FILE:Urgent"},
            "Urgent.priority: FILE:21: rules may not write to requ",
        ),
        (
            {"scheduler": "FILE:Aged"},
            "Aged.priority: FILE:29: rules may not write to self.age; d",
        ),
        (
            {"scheduler": "FILE:New"},
            "New.priority: FILE:35: rules may not write to self.last; d",
        ),
        ({"router": "FILE:Empty"}, "Empty.choose: FILE:42: rules may not write to placement.cand"),
    ],
)
def test_what_the_text_shows_is_refused_at_once(
    parts: Path, options: dict[str, str], said: str, backend: str
) -> None:
    parts.write_text(SHOWN)
    assert told(parts, options, backend).startswith(said.replace("FILE", str(parts)))


def test_own_state_stays_writable() -> None:
    for file, name in (
        ("ttl_lru", "TtlLru"),
        ("two_sizes", "TwoSizes"),
        ("prefix_cap", "PrefixCap"),
    ):
        check_promises(getattr(import_file(str(EXAMPLES / f"{file}.py")), name))


def test_quit_in_the_debugger_is_a_line(parts: Path) -> None:
    assert told(parts, {"cost_model": "FILE:Debugged"}).endswith(": quit in the debugger")


def test_the_command_says_it_in_a_line(parts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["run", "--cost-model", f"{parts}:Cost", "--backend", "python", "--num-requests", "4"]
    with pytest.raises(SystemExit) as caught:
        main([*line, "--model", "llama-3-8b", "--gpu", "l4"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(f"kvsim: Cost.price: {parts}:12: ZeroDivision")


def test_an_engine_says_it_too(parts: Path) -> None:
    engine = kvsim.Engine(scheduler=f"{parts}:Order", backend="python", **SMALL)
    engine.add_request(num_prompt_tokens=20, max_tokens=4)
    with pytest.raises(ValueError, match="priority returned nan"):
        engine.step()
