"""Users' rules: one text as Python and compiled, and a clear line for what cannot compile."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
from pydantic import Field

import kvsim
import workloads
from kvsim.kv.allocator_spec import parse_allocator
from kvsim.kv.eviction import EVICTION_POLICIES, Alone
from kvsim.own_rules.part import RulePart, per_block, per_replica
from kvsim.plugins.eviction import EvictionRules, Links, Queue, append, remove
from kvsim.registry import import_file
from kvsim.testing import check_eviction, equal_tables

PARTS = Path(__file__).parents[1] / "docs" / "examples" / "parts"
TTL = f"{PARTS / 'ttl_lru.py'}:TtlLru"
TtlLru = import_file(str(PARTS / "ttl_lru.py")).TtlLru


class Oldest(EvictionRules):
    lost: Annotated[int, Field(ge=0, le=1)] = 0
    order: Queue = per_replica(Queue)
    links: list[Links] = per_block(Links)

    def insert(self, block_id: int) -> None:
        append(self.order, self.links, block_id)

    def remove(self, block_id: int) -> None:
        remove(self.order, self.links, block_id)

    def evict(self) -> int:
        block_id = self.order.head
        if self.lost == 0:
            remove(self.order, self.links, block_id)
        return block_id


def policy_with(lines: str, tmp_path: Path) -> type[EvictionRules]:
    """Make a policy with an ``evict`` of some lines, in a file of its own."""
    file = tmp_path / "mine.py"
    body = "".join(f"        {line}\n" for line in lines.splitlines())
    file.write_text(
        "from kvsim.plugins.eviction import EvictionRules, per_block\n\n\n"
        "class Mine(EvictionRules):\n"
        "    order: list[int] = per_block()\n\n"
        "    def insert(self, block_id: int) -> None:\n        self.order[0] = block_id\n\n"
        "    def remove(self, block_id: int) -> None:\n        self.order[0] = block_id\n\n"
        f"    def evict(self) -> int:\n{body}"
    )
    found: type[EvictionRules] = import_file(str(file)).Mine
    return found


def test_blocks_that_were_hit_outlive_those_that_were_not():
    """1, 2, 3 are freed in this order; 1 was hit at 0 s, and counts for 10 s."""
    for at, order in ((5.0, [2, 3, 1]), (10.0, [2, 3, 1]), (15.0, [1, 2, 3])):
        policy, clock = Alone(TtlLru(ttl=10.0)), [0.0]
        policy.clock = lambda clock=clock: clock[0]
        for block in (1, 2, 3):
            policy.cached(block, key=block)
        policy.hit(1)
        for block in (1, 2, 3):
            policy.insert(block)
        clock[0] = at
        expected = order if at != 10.0 else [1, 2, 3]
        assert list(policy) == expected
        assert [policy.evict() for _ in range(3)] == expected


@pytest.mark.long
def test_a_policy_of_rules_keeps_its_promises():
    check_eviction(TtlLru, num_runs=3)


def test_a_parameter_of_rules_may_have_limits():
    assert EVICTION_POLICIES.make(f"{__name__}:Oldest:lost=1").lost == 1
    for lost in ("-1", "2"):
        with pytest.raises(ValueError, match=f"lost={lost}: must be .* 0, at most 1"):
            EVICTION_POLICIES.make(f"{__name__}:Oldest:lost={lost}")
    with pytest.raises(ValueError, match="lost=2: must be"):
        Oldest(lost=2)


@pytest.mark.long
def test_a_check_takes_the_parameters_of_an_object(tmp_path):
    """It read them as modifiers of the allocator."""
    check_eviction(Oldest(lost=0), num_runs=1)
    with pytest.raises(AssertionError, match="the policy holds"):
        check_eviction(Oldest(lost=1), num_runs=1)
    said = "unknown modifier 'lost'.*follows a colon: eviction=mine.py:Oldest:lost=1"
    with pytest.raises(ValueError, match=said):
        parse_allocator("paged+eviction=mine.py:Oldest+lost=1")


@pytest.mark.long
def test_the_state_of_a_compiled_policy_with_parameters_is_checked():
    trace = workloads.WORKLOADS.create("multi-turn", num_requests=5, seed=3, request_rate=4)
    options = {"model": "llama-3-8b", "gpu": "l4", "num_gpu_blocks_override": 200}
    allocator = f"paged+eviction={TTL}:ttl=5"
    options |= {"max_model_len": 2048, "check_invariants": True, "allocator": allocator}
    result = kvsim.simulate(trace, backend="compiled", **options)
    assert result.summary["completed"] == 5


@pytest.mark.long
def test_python_and_compiled_are_equal():
    trace = workloads.WORKLOADS.create("multi-turn", num_requests=60, seed=3, request_rate=4)
    options = {"model": "llama-3-8b", "gpu": "l4", "num_gpu_blocks_override": 700}
    options |= {"max_model_len": 8192, "allocator": f"paged+eviction={TTL}:ttl=20"}
    first, second = (
        kvsim.simulate(trace, backend=backend, **options) for backend in ("python", "compiled")
    )
    assert first.summary["kv_cache"]["peak_usage"] > 0.8
    assert equal_tables(first.requests, second.requests)
    assert equal_tables(first.memory, second.memory)


def test_parameters_are_checked_and_state_is_none():
    assert TtlLru(ttl=3).ttl == 3.0
    assert EVICTION_POLICIES.make(f"{TTL}:ttl=7").ttl == 7.0
    for given, said in (({"ttl": "x"}, "must be a number"), ({"until": 1}, "no parameter 'until'")):
        with pytest.raises(ValueError, match=said):
            TtlLru(**given)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("found = {}\nreturn 0", "14: rules may not use a dictionary; declare a list"),
        ("x = 1\nself.order.append(x)\nreturn 0", "15: rules may not use .append(); lists have"),
        ("return min(k for k in range(3))", "14: rules may not use a comprehension; write a loop"),
        ("if self.order[0] is None:\n    return 1\nreturn 0", "14: rules may not use is; compare"),
        ("print(1)\nreturn 0", "14: rules may not use print(); run it with backend python"),
        ("x = 1\nreturn", "15: must return a number on every path"),
        ("if self.order[0] == 1:\n    return 1", "14: must return a number on every path"),
        ("while True:\n    if self.order[0] == 1:\n        break", "14: must return a number on"),
        ("return sorted(self.order)[0]", "14: rules may not use sorted(); write a loop"),
        ("return self.ordr[0]", "14: does not compile: Unknown attribute 'ordr'"),
    ],
)
def test_what_cannot_compile_is_one_line_with_its_place(lines, said, tmp_path):
    from kvsim.compiled import user_rules

    with pytest.raises(ValueError, match=re.escape(f"mine.py:{said}")) as caught:
        user_rules.addresses(policy_with(lines, tmp_path))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("Mine.evict: ")


def test_a_class_without_source_runs_as_python_and_does_not_compile(tmp_path):
    """As defined at a prompt: inspect raised an OSError or a KeyError."""
    policy_with("return self.order[0]", tmp_path)
    found = {"__name__": "prompt"}
    exec((tmp_path / "mine.py").read_text(), found)
    mine = found["Mine"]
    trace = workloads.sharegpt(num_requests=2, request_rate=1, seed=0)
    options = {"model": "llama-3-8b", "gpu": "l4", "eviction": mine()}
    assert len(kvsim.simulate(trace, **options, backend="python").requests["request_id"]) == 2
    said = r"^Mine\.\w+: its source is not available to the compiler; save it in a file, or run it"
    with pytest.raises(ValueError, match=said):
        kvsim.simulate(trace, **options, backend="compiled")


def test_what_an_operation_returns_needs_no_annotation(tmp_path):
    """The victim was lost where the method did not say that it returns an int."""
    from kvsim.compiled import user_rules

    policy_with("return 7", tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(file.read_text().replace("evict(self) -> int", "evict(self)"))
    rules = user_rules
    mine = import_file(str(file)).Mine
    evict = ctypes.PYFUNCTYPE(*[ctypes.c_int64] * 4)(rules.addresses(mine)[2])
    assert evict(0, 0, 0) == 7


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"x": "str"}, "x: a parameter is int, float or bool"),
        ({"x": "int"}, "x: a parameter needs a number as its default"),
        ({"x": "dict[int, int]"}, "x: its type must be list"),
    ],
)
def test_a_field_that_has_no_layout_is_refused(field, said):
    given = {"x": per_block()} if "dict" in field["x"] else {"x": ""} if field["x"] == "str" else {}
    with pytest.raises(ValueError, match=said):
        type("Odd", (EvictionRules,), {"__annotations__": field, **given}).kinds()


@pytest.mark.parametrize("name", ["now", "evict", "kinds", "reset", "pool", "address"])
def test_a_field_with_a_name_of_kvsims_is_refused(name):
    with pytest.raises(ValueError, match=f"Odd.{name}: kvsim uses this name itself"):
        type("Odd", (EvictionRules,), {"__annotations__": {name: "float"}, name: 1.0})


def test_a_class_variable_is_no_field(tmp_path):
    file = policy_with("return 7", tmp_path).__module__
    path = Path(sys.modules[file].__file__)
    text = path.read_text().replace("    order:", "    most: ClassVar[int] = 3\n    order:")
    path.write_text(f"from __future__ import annotations\nfrom typing import ClassVar\n{text}")
    assert list(import_file(str(path)).Mine.kinds()) == ["order"]


def test_lists_in_python_have_an_end():
    class Small(RulePart):
        seen: list[int] = per_block()
        last: int = per_replica(3)

    one = Small()
    one.fill(one, None, {"block": 4})
    one.seen[3] = one.last
    assert (one.seen[3], one.seen[0], len(one.seen)) == (3, 0, 4)
    with pytest.raises(IndexError, match="index 4 of a list of 4"):
        one.seen[4] = 1


def test_a_file_is_imported_again_after_an_edit(tmp_path):
    file = tmp_path / "numbers_of_mine.py"
    file.write_text("ONE = 1\n")
    first = import_file(str(file))
    assert import_file(str(file)) is first
    file.write_text("ONE = 2  # longer: bytecode is out of date by size or second\n")
    assert (first.ONE, import_file(str(file)).ONE) == (1, 2)
    with pytest.raises(ValueError, match=r"cannot import eviction policy 'no-such\.py:X'"):
        EVICTION_POLICIES.make("no-such.py:X")
    assert np.sum([name.startswith("numbers_of_mine_") for name in sys.modules]) == 2


@pytest.mark.slow
def test_checked_mode_names_the_rule_that_writes_out_of_bounds(tmp_path):
    policy_with("return 1", tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(file.read_text().replace("self.order[0] =", "self.order[block_id + 9999] ="))
    code = (
        "import kvsim, workloads\n"
        "trace = workloads.sharegpt(num_requests=5, request_rate=5, seed=0)\n"
        "kvsim.simulate(trace, model='llama-3-8b', gpu='l4', backend='compiled',\n"
        f"    num_gpu_blocks_override=700, allocator='paged+eviction={file}:Mine')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"KVSIM_BOUNDSCHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"index is out of range: .*, in mine_\w+\.Mine\.insert", done.stderr)
