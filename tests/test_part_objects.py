"""A part as an object, a class or a function, wherever its name is taken."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kvsim
import workloads
from kvsim.cost.constant import ConstantCost
from kvsim.fleet.routers.dynamo import Dynamo
from kvsim.kv.contiguous import ContiguousOracle
from kvsim.kv.eviction import FIFO
from kvsim.kv.paged import paged
from kvsim.parametric import text_of
from kvsim.plugins.routing import IncomingRequest, ReplicaView, Router
from kvsim.registry import import_file
from kvsim.testing import check_router

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTS = Path(__file__).parents[1] / "docs" / "examples" / "parts"
SHORTEST, TTL = PARTS / "shortest_first.py", PARTS / "ttl_lru.py"
ShortestFirst = import_file(str(SHORTEST)).ShortestFirst
TtlLru = import_file(str(TTL)).TtlLru
SMALL: dict[str, Any] = {"model": "llama-3-8b", "gpu": "l4", "backend": "python"}
FEW = workloads.fixed(prompt=20, output=5, num_requests=6, request_rate=10.0)


class Nth(Router):
    """Sends everything to one replica."""

    def __init__(self, n: int = 0, *, weights: tuple[float, ...] = ()) -> None:
        self.n, self.weights = n, weights

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        return self.n


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("paged+int8", "paged+int8"),
        (Dynamo(temperature=0.5), "dynamo+temperature=0.5"),
        (Dynamo, "dynamo"),
        (partial(Dynamo, temperature=0.5), "dynamo+temperature=0.5"),
        (Nth(n=1), f"{__name__}:Nth+n=1"),
        (ShortestFirst(ageing=5), f"{SHORTEST}:ShortestFirst+ageing=5"),
        (TtlLru(ttl=300), f"{TTL}:TtlLru+ttl=300"),
        (FIFO(), "fifo"),
        (partial(ConstantCost, seconds=4e-12), "constant+seconds=4e-12"),
        (partial(ConstantCost, seconds=4e12), "constant+seconds=4e12"),
        (partial(ConstantCost, seconds=0.1234567), "constant+seconds=0.1234567"),
        (ContiguousOracle(), "contiguous-oracle"),  # type: ignore[call-arg]
        (partial(paged, eviction=TtlLru(ttl=3)), f"paged+eviction={TTL}:TtlLru:ttl=3"),
        (partial(ConstantCost, seconds=0.5), "constant+seconds=0.5"),
    ],
)
def test_an_object_is_the_text_that_makes_it(part: Any, text: str) -> None:
    assert text_of(part) == text


def test_what_no_text_can_say_has_a_name_of_this_process() -> None:
    """A class in a function, a parameter that is no number or text, arguments by position."""

    class First(Router):
        def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
            return 0

    one, other = Nth(1), Nth(weights=(1.0, 2.0))
    assert text_of(one) == text_of(one) != text_of(other)
    for router, replica in ((First(), 0), (First, 0), (one, 1), (other, 0), (Nth(n=1), 1)):
        result = kvsim.simulate(FEW, **SMALL, data_parallel_size=2, router=router)
        assert set(result.requests["replica"].tolist()) == {replica}


def test_every_kind_of_part_is_taken_as_an_object() -> None:
    """The same tables as by name, and the name in the run's configuration."""
    for objects, texts in (
        (
            {"scheduler": ShortestFirst(ageing=5)},
            {"scheduler": f"{SHORTEST}:ShortestFirst+ageing=5"},
        ),
        (
            {"eviction": TtlLru(ttl=3)},
            {"allocator": f"paged+eviction={TTL}:TtlLru:ttl=3"},
        ),
        (
            {"cost_model": partial(ConstantCost, seconds=0.5)},
            {"cost_model": "constant+seconds=0.5"},
        ),
        (
            {"router": Dynamo(temperature=0.5), "data_parallel_size": 2},
            {"router": "dynamo+temperature=0.5", "data_parallel_size": 2},
        ),
    ):
        first, second = (kvsim.simulate(FEW, **SMALL, **given) for given in (objects, texts))  # type: ignore[misc]
        assert first.config.digest == second.config.digest
        assert first.requests.tobytes() == second.requests.tobytes()


def test_compare_and_checks_take_objects() -> None:
    managers = [partial(paged, block_size=32), ContiguousOracle()]  # type: ignore[call-arg]
    rows = kvsim.compare(FEW, managers, **SMALL).rows
    assert [row["allocator"] for row in rows] == ["paged+block-size=32", "contiguous-oracle"]
    check_router(Nth(n=0), num_runs=1)


def test_a_made_part_keeps_the_signature_of_its_class() -> None:
    with pytest.raises(ValueError, match=r"has no parameter 'n2' \(its parameters: n, weights\)"):
        kvsim.simulate(FEW, **SMALL, router=f"{__name__}:Nth+n2=1")
