"""Parts of a user's that give a wrong answer or raise: one line with the part, and the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvsim
import workloads
from kvsim.cli import main

SMALL: dict[str, Any] = {"model": "llama-3-8b", "gpu": "l4", "num_gpu_blocks_override": 60}
TRACE = workloads.fixed(prompt=100, output=20, num_requests=12, request_rate=50.0)
TWO: dict[str, Any] = {"data_parallel_size": 2}

TEXT = """
from kvsim.plugins.allocation import AllocatorRules
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


class Plain(Router):
    def choose(self, request, replicas):
        raise KeyError("gone")
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
        ({"cost_model": "FILE:Cost"}, "Cost.price: FILE:11", "ZeroDivisionError: float division"),
        ({"allocator": "FILE:Allocate"}, "Allocate.allocate: FILE:", "ZeroDivisionError: integer"),
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


@pytest.mark.parametrize("backend", ["python", "compiled"])
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


def test_no_answer_is_refused(parts: Path) -> None:
    said = told(parts, {"cost_model": "FILE:Silent"})
    assert said == "Silent.price returned None: must be a number"


def test_the_command_says_it_in_a_line(parts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["run", "--cost-model", f"{parts}:Cost", "--backend", "python", "--num-requests", "4"]
    with pytest.raises(SystemExit) as caught:
        main([*line, "--model", "llama-3-8b", "--gpu", "l4"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(f"kvsim: Cost.price: {parts}:11: ZeroDivision")


def test_an_engine_says_it_too(parts: Path) -> None:
    engine = kvsim.Engine(scheduler=f"{parts}:Order", backend="python", **SMALL)
    engine.add_request(num_prompt_tokens=20, max_tokens=4)
    with pytest.raises(ValueError, match="priority returned nan"):
        engine.step()
