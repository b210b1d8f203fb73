"""Random small rules of a user's: the compiled entries do what the methods do in Python."""

from __future__ import annotations

import ctypes
import random
from typing import TYPE_CHECKING, Any

import pytest

from kvsim.own_rules.part import CLOCK
from kvsim.records.cost import Work
from kvsim.records.memory import Flat
from kvsim.records.part import Part
from kvsim.records.request import Request
from kvsim.records.routing import Candidate
from kvsim.registry import import_file

if TYPE_CHECKING:
    from pathlib import Path

WORDS = {int: ctypes.c_int64, float: ctypes.c_double}
NUM_BLOCKS, NUM_CANDIDATES, NUM_CALLS = 8, 3, 40
REQUEST = ("request: Request", ["request.num_prompt_tokens", "request.num_computed_tokens"])

#: Of each kind: its base, and for each operation the arguments, whole numbers and fractions that it
#: may read, and what it returns.
KINDS: dict[str, tuple[str, dict[str, tuple[str, list[str], list[str], str]]]] = {
    "eviction": (
        "EvictionRules",
        {
            "insert": ("block_id: int", ["block_id"], [], "None"),
            "remove": ("block_id: int", ["block_id"], [], "None"),
            "evict": ("", [], ["self.now"], "int"),
            "cached": ("block_id: int, key: int", ["block_id", "key"], [], "None"),
        },
    ),
    "scheduling": (
        "SchedulerRules",
        {
            "priority": (f"{REQUEST[0]}, now: float", REQUEST[1], ["now"], "float"),
            "victim": (f"{REQUEST[0]}, now: float", REQUEST[1], ["request.arrival_time"], "float"),
        },
    ),
    "routing": (
        "RouterRules",
        {
            "choose": (
                "placement: Placement",
                ["placement.num_candidates", "placement.candidates[1].num_outstanding"],
                [],
                "int",
            )
        },
    ),
    "cost": (
        "CostRules",
        {"price": ("work: Work", ["work.num_tokens"], ["work.gemm_flops"], "float")},
    ),
    "allocation": (
        "AllocatorRules",
        {
            "allocate": (
                f"{REQUEST[0]}, num_tokens: int",
                ["num_tokens", "self.block_size", *REQUEST[1]],
                [],
                "int",
            ),
            "free": (REQUEST[0], REQUEST[1], [], "None"),
        },
    ),
}
#: What else a file of rules imports.
RECORDS = {
    "scheduling": ", Request",
    "allocation": ", Request, per_block",
    "routing": ", Placement",
    "cost": ", Work",
    "eviction": ", per_block",
}


class Writer:
    """Writes random rules over some numbers; whole ones stay small."""

    def __init__(self, rng: random.Random, has_lists: bool) -> None:
        self.rng, self.has_lists = rng, has_lists
        self.ints: list[str] = []
        self.floats: list[str] = []

    def whole(self, depth: int = 2) -> str:
        rng = self.rng
        if depth == 0 or rng.random() < 0.2:
            leaves = ["self.number", "self.limit", str(rng.randint(0, 9)), *self.ints]
            if self.has_lists:
                leaves.append(f"self.seen[{rng.choice(leaves)} % {NUM_BLOCKS}]")
            return rng.choice(leaves)
        one, other = self.whole(depth - 1), self.whole(depth - 1)
        return rng.choice(
            [
                f"({one} {rng.choice('+-')} {other})",
                f"({one} % 89 * ({other} % 97))",
                f"({one} {rng.choice(['//', '%'])} {rng.choice([2, 3, 7, -5])})",
                f"{rng.choice(['min', 'max'])}({one}, {other})",
                f"int({self.fraction(depth - 1)} % 100.0)",
                f"({one} if {self.condition(depth - 1)} else {other})",
            ]
        )

    def fraction(self, depth: int = 2) -> str:
        rng = self.rng
        if depth == 0 or rng.random() < 0.2:
            return rng.choice(["self.level", "self.share", "0.1", "2.5", *self.floats])
        one, other = self.fraction(depth - 1), self.fraction(depth - 1)
        return rng.choice(
            [
                f"({one} {rng.choice('+-*')} {other})",
                f"({one} / (1.5 + abs({other})))",
                f"({one} * {self.whole(depth - 1)})",
                f"{rng.choice(['min', 'max'])}({one}, {other})",
                f"({one} if {self.condition(depth - 1)} else {other})",
            ]
        )

    def condition(self, depth: int = 1) -> str:
        draw = self.rng.choice([self.whole, self.fraction])
        sign = self.rng.choice(["<", "<=", "==", "!="])
        one = f"{draw(depth)} {sign} {draw(depth)}"
        return one if self.rng.random() < 0.7 else f"not ({one})"

    def lines(self, depth: int = 2) -> list[str]:
        """Write statements that change the state."""
        rng = self.rng
        kind = rng.randrange(5 if depth else 3)
        if kind == 0 and self.has_lists:
            return [f"self.seen[{self.whole(1)} % {NUM_BLOCKS}] = {self.whole()} % 1009"]
        if kind == 1:
            return [f"self.level = {self.fraction()} % 1000.0"]
        if kind < 3:
            return [f"self.number = {self.whole()} % 1009"]
        inner = [f"    {line}" for line in self.lines(depth - 1)]
        if kind == 3:
            other = [f"    {line}" for line in self.lines(depth - 1)]
            return [f"if {self.condition()}:", *inner, "else:", *other]
        return [f"for step in range({rng.randint(1, 4)}):", *inner, "    self.number += step"]


def write_part(kind: str, seed: int) -> str:
    """Return the text of a file with a random part."""
    base, operations = KINDS[kind]
    rng = random.Random(f"{kind} {seed}")
    writer = Writer(rng, has_lists="per_block" in RECORDS[kind])
    lines = [
        f"from kvsim.plugins.{kind} import {base}, per_replica{RECORDS[kind]}",
        f"class Mine({base}):",
        f"    limit: int = {rng.randint(1, 50)}",
        f"    share: float = {rng.random()!r}",
        "    number: int = per_replica()",
        "    level: float = per_replica(0.0)",
    ]
    if writer.has_lists:
        lines.append("    seen: list[int] = per_block()")
    for name, (arguments, ints, floats, returns) in operations.items():
        writer.ints, writer.floats = ints, floats
        lines.append(f"    def {name}(self{', ' * bool(arguments)}{arguments}) -> {returns}:")
        body = [line for _ in range(rng.randint(1, 3)) for line in writer.lines()]
        lines += [f"        {line}" for line in body]
        if returns != "None":
            lines.append(
                f"        return {writer.whole() if returns == 'int' else writer.fraction()}"
            )
    return "\n".join(lines) + "\n"


def fill(record: Any, kind: type, memory: Any, rng: random.Random) -> None:
    """Set the numbers that random rules read; without memory, in an object."""
    if kind is Request:
        record.num_prompt_tokens, record.num_computed_tokens = rng.sample(range(5000), 2)
        record.arrival_time = rng.random() * 100
    elif kind is Work:
        record.num_tokens, record.gemm_flops = rng.randint(1, 9000), rng.random() * 1e12
    else:
        rows = [Candidate() for _ in range(NUM_CANDIDATES)]
        record.candidates = memory.records(Candidate, NUM_CANDIDATES) if memory else rows
        record.num_candidates = NUM_CANDIDATES
        for candidate in record.candidates:
            candidate.num_outstanding = rng.randint(0, 99)


def compare(kind: str, seed: int, tmp_path: Path) -> None:
    """Call a random part's operations in a random order, both ways; state and results are equal."""
    from kvsim.compiled import user_rules

    rules, text = user_rules, write_part(kind, seed)
    file = tmp_path / f"{kind}_{seed}.py"
    file.write_text(text)
    mine = import_file(str(file)).Mine
    memory, sizes = Flat(), {"block": NUM_BLOCKS, "request": 1}
    flat = mine().init_state(memory.one(Part), memory, sizes)
    names = [n for n in mine.OPERATIONS if n in KINDS[kind][1]]
    entries = {
        name: ctypes.PYFUNCTYPE(WORDS[mine.RETURNS.get(name, int)], *[ctypes.c_int64] * 3)(address)
        for name, address in zip(mine.OPERATIONS, rules.addresses(mine), strict=True)
        if name in names
    }
    plain, clock = mine(), memory.floats(1)
    plain.fill(plain, None, sizes)
    plain.clock = lambda: clock[0]
    setattr(flat.view, CLOCK, clock.array.ctypes.data)
    rng = random.Random(seed)
    for _ in range(NUM_CALLS):
        name, draws = rng.choice(names), rng.random()
        clock[0] += rng.random()
        given = [rng.randrange(NUM_BLOCKS), rng.randint(0, 2**40)]
        words, taken = given[:], given[: KINDS[kind][1][name][0].count(":")]
        if name in mine.TAKES:
            taking = mine.TAKES[name]
            objects = Request(0, 0.0, 1, 1) if taking is Request else taking()
            rows = memory.one(taking)
            fill(objects, taking, None, random.Random(draws))
            fill(rows, taking, memory, random.Random(draws))
            words[0], taken[0] = rows.address, objects
            if kind == "scheduling":
                taken[1] = clock[0]
        expected = getattr(plain, name)(*taken)
        found = entries[name](flat.view.address, *words, *[0] * (2 - len(words)))
        returns = KINDS[kind][1][name][3]
        assert returns == "None" or repr(found) == repr(expected), f"{name}\n{text}"
        for field in ("number", "level", *(["seen"] if "seen" in mine.kinds() else [])):
            one, other = getattr(flat.view, field), getattr(plain, field)
            if field == "seen":
                one, other = ([v[k] for k in range(NUM_BLOCKS)] for v in (one, other))
            assert repr(one) == repr(other), f"{field} after {name}\n{text}"


@pytest.mark.parametrize("kind", KINDS)
def test_random_rules_are_equal_both_ways(kind: str, tmp_path: Path) -> None:
    for seed in range(2):
        compare(kind, seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_random_rules_are_equal_both_ways(kind: str, tmp_path: Path) -> None:
    for seed in range(2, 62):
        compare(kind, seed, tmp_path)
