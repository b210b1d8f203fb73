"""Break each rule on purpose and see a test catch it: ``python tests/mutation.py``.

Every mutant is a copy of the package with one rule of ``mutants.txt`` changed. It is caught if a
recorded schedule no longer comes out identical, or else if a test fails. The script prints the
score and exits 1 if a mutant lives. Arguments choose mutants by how their rule starts.
``--compiled`` plays a dozen mutants by the compiled engine instead, which has to compile each for a
minute, and runs no tests.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "forked",
    "lanes",
    "plays",
    "session_start",
    "samples",
    "endings",
    "sglang_rules",
    "sglang_pools",
    "sglang_delayer",
    "host_weights",
    "sglang_drafts_of_states",
    "sglang_drafts_on_hosts",
    "storage",
    "fairness",
    "planner",
    "budget_parts",
    "auto_length",
    "server_memory",
    "pipeline",
    "rules",
    "runs",
    "block_pool",
    "kv_managers",
    "schedulers",
    "cases",
    "peer_bugs",
    "eviction",
    "offloading",
    "native_offloading",
    "mamba",
    "connector",
    "case_rules",
    "upkeep",
    "encoder",
    "images",
    "kv_events",
    "scaling",
    "disaggregation",
    "changing_pools",
    "mixed_pool",
    "network",
    "lost_replicas",
    "load",
    "lock_step",
    "overload",
    "tensorrt_llm",
    "hits",
    "sessions",
    "context_parallel",
    "paged_experts",
    "distributed_experts",
)


#: The tests of mutants that no recorded schedule can notice, by how their rules start.
ALONE = {
    "translation": ("translation",),
    "machine code": ("backends",),
    "DeepSeek-V4": ("compressed",),
    "kvaware": ("routers",),
    "preble": ("routers",),
    "a quiet": ("runs",),
    "belady": ("eviction",),
}

#: Ends the tests' conftest: they are to judge a rule, not whether a mutant compiles.
PLAIN_PYTHON = """
import kvsim.cases.replay
import kvsim.fleet.simulate

kvsim.cases.replay.refuses = lambda case: "asked for"
kvsim.fleet.simulate.choose_backend = lambda setup: "asked for"
"""


class Place(NamedTuple):
    """Where code stands in a syntax tree: a field, or a slice of one."""

    node: ast.AST
    field: str
    where: slice | None


class Mutant(NamedTuple):
    """A rule (section of the scheduler's rules), where it stands, and its code with and without it.

    ``where`` is ``module:function``, or a module alone. Code is compared by its syntax tree, so
    that its place and its format do not matter: an expression, if both are, or else statements that
    follow each other.
    """

    rule: str
    where: str
    code: str
    broken: str

    @property
    def path(self) -> Path:
        """Where its module lies below the root."""
        base = Path(*self.where.partition(":")[0].split("."))
        return base / "__init__.py" if (ROOT / base).is_dir() else base.with_suffix(".py")

    @property
    def is_expression(self) -> bool:
        """Return whether its code with and without the rule is an expression alone."""
        codes = [ast.parse(code).body for code in (self.code, self.broken)]
        return all(len(code) == 1 and isinstance(code[0], ast.Expr) for code in codes)

    def places(self, tree: ast.AST) -> list[Place]:
        """Return where its code stands in the tree of its module."""
        names = [name for name in self.where.partition(":")[2].split(".") if name]
        old = ast.parse(self.code).body
        find = expressions_like if self.is_expression else statements_like
        return [place for scope in scopes_in(tree, names) for place in find(scope, old)]

    def source(self) -> str:
        """Return the module with the rule broken; ValueError unless the code is there once."""
        tree = ast.parse((ROOT / self.path).read_text())
        places = self.places(tree)
        if len(places) != 1:
            raise ValueError(f"{self.rule}: {len(places)} times in {self.where}: {self.code}")
        [(node, field, where)] = places
        new = ast.parse(self.broken).body
        if where is None:
            setattr(node, field, new[0].value)
        else:
            getattr(node, field)[where] = [new[0].value] if self.is_expression else new
        return ast.unparse(tree)


@lru_cache(64)  # many mutants are of one module
def definitions(scope: ast.AST) -> list[ast.ClassDef | ast.FunctionDef]:
    return [node for node in ast.walk(scope) if isinstance(node, ast.ClassDef | ast.FunctionDef)]


def scopes_in(tree: ast.AST, names: list[str]) -> list[ast.AST]:
    """Return what has a qualified name in a module: several, where a name is given again."""
    scopes = [tree]
    for name in names:
        scopes = [node for scope in scopes for node in definitions(scope) if node.name == name]
    return scopes


def expressions_like(scope: ast.AST, code: list[ast.stmt]) -> list[Place]:
    """Return where an expression stands."""
    old = code[0].value
    kind, wanted = type(old), ast.dump(old)
    found: list[Place] = []
    for node in ast.walk(scope):
        for name, value in ast.iter_fields(node):
            several = isinstance(value, list)
            for k, one in enumerate(value if several else [value]):
                if type(one) is kind and ast.dump(one) == wanted:
                    found.append(Place(node, name, slice(k, k + 1) if several else None))
    return found


def statements_like(scope: ast.AST, code: list[ast.stmt]) -> list[Place]:
    """Return where statements follow each other."""
    kinds, wanted = [type(one) for one in code], [ast.dump(one) for one in code]
    found: list[Place] = []
    for node in ast.walk(scope):
        for name, value in ast.iter_fields(node):
            for k in range(len(value) - len(code) + 1 if isinstance(value, list) else 0):
                where = slice(k, k + len(code))
                if [type(one) for one in value[where]] != kinds:
                    continue
                if [ast.dump(one) for one in value[where]] == wanted:
                    found.append(Place(node, name, where))
    return found


def read_mutants(path: Path) -> list[Mutant]:
    """Return the mutants of a file, whose first lines say how they are written."""
    mutants: list[Mutant] = []
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if not line.startswith("  "):
            mutants.append(Mutant(line, "", "", ""))
            continue
        rule, where, code, broken = mutants[-1]
        if line.startswith("  - "):
            code += line[4:] + "\n"
        elif line.startswith("  + "):
            broken += line[4:] + "\n"
        else:
            where = line.strip()
        mutants[-1] = Mutant(rule, where, code, broken)
    return mutants


#: Left out, as no run can tell: the max_model_len limit of 2a.2 (outputs are cut beforehand), the
#: end of the loop after a FCFS self-preemption (the victim is the last), the computed count of a
#: waiting request (admission sets it), and the early stop of a lookup with two kinds of layers.
MUTANTS = read_mutants(Path(__file__).with_name("mutants.txt"))

#: Those that ``--compiled`` also runs through the compiled engine: each is a minute of compiling.
COMPILED = (
    "2 adaptive threshold counts all",
    "2a.3 FCFS victim is the last",
    "2a.3 index follows a victim before it",
    "2b.1 set aside in order",
    "2b.5 hit counts as computed",
    "3 stale tokens are kept",
    "4 get from the front",
    "4 LRU, not MRU",
    "5 watermark",
    "5.3 lookahead slots",
    "7 window includes the token itself",
    "8 equal specs hit together",
)

#: Rules of SGLang that the second set of recorded cases pins.
OF_SECOND_CASES = ("states", "adapters", "drafts", "waits")


def cases_for(mutant: Mutant, data: Path) -> list[str]:
    """Return the recorded schedules that may notice a mutant: those of its engine."""
    if mutant.rule.startswith("sglang host"):
        found = [*data.glob("sglang_cases/hicache*.gz"), *data.glob("sglang_cases/c[0-9]*.gz")]
        return [str(p) for p in sorted(found, key=lambda p: p.stat().st_size)]
    if mutant.rule.startswith(
        ("sglang states", "sglang adapters", "sglang drafts", "sglang waits")
    ):
        return sorted(str(p) for p in data.glob("sglang_cases2/*/*.json.gz"))
    if mutant.rule.startswith("sglang windows"):
        found = sorted(data.glob("sglang_cases/s[0-9]*.json.gz"), key=lambda p: p.stat().st_size)
        return [str(p) for p in found]
    if mutant.rule.startswith("sglang"):  # with full attention; the shortest of each number first
        found = [p for p in data.glob("sglang_cases/*.json.gz") if p.name[0].isdigit()]
        found += data.glob("sglang_cases/radix_*.json.gz")
        return [str(p) for p in sorted(found, key=lambda p: p.stat().st_size)]
    return sorted(str(p) for p in data.glob("vllm_cases*/**/*.json.gz"))


def is_caught(mutant: Mutant, *, compiled: bool = False) -> str | None:
    """Return what catches a mutant, None if nothing does."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("kvsim", "workloads", "experiments", "tests"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", copy)
        (copy / mutant.path).write_text(mutant.source())
        environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"HYPOTHESIS_PROFILE": "ci", "KVSIM_CACHE_DIR": str(copy / "cache")}

        def fails(*arguments: str, seconds: int) -> bool:
            command = [sys.executable, *arguments]
            try:
                done = subprocess.run(
                    command,
                    cwd=copy,
                    env=environment,
                    capture_output=True,
                    timeout=seconds,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return True
            return done.returncode != 0

        alone = next((ALONE[start] for start in ALONE if mutant.rule.startswith(start)), None)
        cases = [] if alone else cases_for(mutant, copy / "tests" / "data")
        replay = ("-m", "kvsim", "replay-case", "--backend")
        if compiled:
            if fails(*replay, "compiled", *cases, seconds=1200):
                return "recorded schedules, compiled"
            return None
        if cases and fails(*replay, "python", *cases, seconds=300):
            return "recorded schedules"
        conftest = copy / "tests" / "conftest.py"
        conftest.write_text(conftest.read_text() + PLAIN_PYTHON)
        files = [f"tests/test_{name}.py" for name in alone or TESTS]
        if fails(
            "-m",
            "pytest",
            "-q",
            "-x",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow and not benchmark",
            *files,
            seconds=1200,
        ):
            return "tests"
        return None


def main() -> None:
    """Try every mutant, or those whose rule starts with an argument."""
    compiled = "--compiled" in sys.argv
    wanted = [argument for argument in sys.argv[1:] if argument != "--compiled"] or [""]
    chosen = [m for m in MUTANTS if any(m.rule.startswith(start) for start in wanted)]
    if compiled:
        chosen = [m for m in chosen if m.rule in COMPILED]
    alive = []
    for mutant in chosen:
        by = is_caught(mutant, compiled=compiled)
        print(f"{mutant.rule}: {f'caught by {by}' if by else 'ALIVE'}", flush=True)  # noqa: T201
        alive += [mutant] if by is None else []
    print(f"{len(chosen) - len(alive)} of {len(chosen)} mutants caught")  # noqa: T201
    sys.exit(bool(alive))


if __name__ == "__main__":
    main()
