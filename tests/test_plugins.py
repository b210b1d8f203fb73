"""What authors of parts rely on: public names, and parts that installed packages offer."""

from __future__ import annotations

import ast
import inspect
import os
import pydoc
import subprocess
import sys
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING

import pytest

import kvsim
import kvsim.plugins
import kvsim.testing
import workloads
from kvsim import entry_points
from kvsim.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The one list of public names. A name that is added, renamed or removed is so here and in
#: CHANGELOG.md, on purpose.
PUBLIC_NAMES = Path(__file__).with_name("public_names.txt")

PARTS = '''
from kvsim.plugins import ALLOCATORS, SCHEDULERS, PagedManager
from kvsim.plugins import CostConfig, EvictionPolicy, Router, StepCost
from workloads import fixed


@ALLOCATORS.register("generous")
class Generous(PagedManager):
    """Paged, from a package."""


class Newest(EvictionPolicy):
    """The newest goes first."""

    def __init__(self): self.blocks = []
    def insert(self, block_id): self.blocks.insert(0, block_id)
    def remove(self, block_id): self.blocks.remove(block_id)
    def evict(self): return self.blocks.pop(0)
    def __len__(self): return len(self.blocks)
    def __iter__(self): return iter(self.blocks)


class Last(Router):
    """The last replica serves all."""

    def choose(self, request, replicas): return len(replicas) - 1


class Slow:
    """A second per step."""

    def __init__(self, config: CostConfig) -> None: pass
    def step(self, plan): return StepCost(1.0, 1.0, 1.0)


def own_scheduler(kv, config):
    """As vllm."""
    return SCHEDULERS.get("vllm")(kv, config)


def tiny(*, num_requests: int = 1, request_rate: float = 1.0, seed: int = 0):
    """Eight tokens each."""
    return fixed(prompt=4, output=4, num_requests=num_requests, request_rate=request_rate)
'''

ENTRIES = """
[kvsim.allocators]
generous = my_parts:Generous
broken = my_parts_that_are_missing:Thing
no-allocator = my_parts:Last
[kvsim.schedulers]
own = my_parts:own_scheduler
[kvsim.eviction_policies]
newest = my_parts:Newest
[kvsim.routers]
last = my_parts:Last
[kvsim.cost_models]
slow = my_parts:Slow
[kvsim.workloads]
tiny = my_parts:tiny
"""

USED = (
    "--allocator generous+eviction=newest --scheduler own --router last --cost-model slow "
    "--workload tiny --data-parallel-size 2 --num-requests 3"
)


def install(folder: Path, name: str, entries: str) -> None:
    """Put what pip leaves of a package into a folder."""
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(entries)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, seen by registries that have not looked yet."""
    entry_points._every_group.cache_clear()
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    entry_points._every_group.cache_clear()


def things() -> Registry[object]:
    return Registry("thing", group="kvsim.things")


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line where packages are installed in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "kvsim", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(site), *sys.path]), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_public_names_are_those_of_the_list() -> None:
    modules = (kvsim, kvsim.plugins, kvsim.testing, workloads)
    found = [f"{module.__name__}.{name}" for module in modules for name in module.__all__]
    assert sorted(found) == sorted(PUBLIC_NAMES.read_text(encoding="utf-8").split())


def _without_docstring(name: str) -> Iterator[str]:
    """Yield a public name, and those of its members, that lack a docstring."""
    found = pydoc.locate(name)
    if not isinstance(found, type | FunctionType):
        return
    if not inspect.getdoc(found):
        yield name
    for member, value in inspect.getmembers(found) if isinstance(found, type) else ():
        code = value.fget if isinstance(value, property) else value
        if not isinstance(code, FunctionType | MethodType) or code.__name__ != member:
            continue
        is_public = member[0] != "_" and not code.__module__.startswith("pydantic.")
        if is_public and not inspect.getdoc(getattr(found, member)):
            yield f"{name}.{member}"


def test_public_names_have_docstrings() -> None:
    names = PUBLIC_NAMES.read_text(encoding="utf-8").split()
    assert not [lacking for name in names for lacking in _without_docstring(name)]


@pytest.mark.parametrize("module", [kvsim, kvsim.plugins], ids=lambda m: m.__name__)
def test_type_checkers_see_the_names_that_are_imported_late(module: object) -> None:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))  # type: ignore[attr-defined]
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert {a.name for node in imports for a in node.names} == set(module._HOME)  # type: ignore[attr-defined]
    assert set(module._HOME) == set(module.__all__) == set(dir(module))  # type: ignore[attr-defined]
    for name in module.__all__:  # type: ignore[attr-defined]
        assert getattr(module, name) is not None


@pytest.mark.long
def test_the_author_of_a_part_waits_for_nothing_heavy() -> None:
    code = "from kvsim.plugins import *; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"numba", "matplotlib", "pandas", "pyarrow"}


def test_a_name_that_no_plug_in_needs_is_an_error() -> None:
    with pytest.raises(AttributeError, match=r"'kvsim\.plugins' has no attribute 'nothing'"):
        kvsim.plugins.nothing  # noqa: B018


@pytest.mark.long
def test_an_installed_package_offers_parts_of_every_kind(tmp_path: Path) -> None:
    install(tmp_path, "my-parts", ENTRIES)
    (tmp_path / "my_parts.py").write_text(PARTS, encoding="utf-8")
    done = run(tmp_path, "run", *USED.split(), "-v")
    assert done.returncode == 0, done.stderr
    listed = run(tmp_path, "list", "allocators")
    assert "Paged, from a package" in listed.stdout
    for problem in (
        "my-parts 1.2 (ModuleNotFoundError",
        "1.2) is not a subclass of KVCacheManager",
    ):
        assert problem in " ".join(listed.stdout.split())
    broken = run(tmp_path, "run", "--allocator", "broken", "--num-requests", "3")
    assert broken.returncode == 2
    assert broken.stderr == (
        "kvsim: cannot import allocator 'broken': my_parts_that_are_missing:Thing of the installed "
        "package my-parts 1.2 (ModuleNotFoundError: No module named 'my_parts_that_are_missing')\n"
    )


def test_nothing_is_imported_before_its_name_is_used(site: Path) -> None:
    install(site, "loud", "[kvsim.things]\nloud = loud_module:make\nquiet = os.path:join\n")
    (site / "loud_module.py").write_text("raise RuntimeError('two\\nlines')")
    registry = things()
    assert callable(registry.get("quiet"))
    assert "loud_module" not in sys.modules
    with pytest.raises(ValueError, match=r"thing 'loud': loud_module:make of .* loud 1\.2") as told:
        registry.get("loud")
    assert str(told.value).endswith("(RuntimeError: two lines)")
    assert registry.names() == ["quiet"]
    assert list(registry.problems()) == ["loud"]
    with pytest.raises(ValueError, match=r"unknown thing 'laud'; did you mean loud\?"):
        registry.get("laud")


def test_a_name_that_is_taken_is_refused_with_both(site: Path) -> None:
    install(site, "greedy", "[kvsim.things]\nmine = os.path:join\nfree = os.path:split\n")
    registry = things()
    registry.register("mine")(install)
    with pytest.raises(ValueError, match="taken") as told:
        registry.get("mine")
    assert str(told.value) == (
        f"thing 'mine' is taken: {__name__}:install, and os.path:join of the installed package "
        "greedy 1.2"
    )
    assert registry.get("free") is os.path.split
    install(site, "greedier", "[kvsim.things]\nfree = os.path:join\n")
    entry_points._every_group.cache_clear()
    with pytest.raises(ValueError, match=r"offered twice: os\.path:\w+ of .* package greedi?er? 1"):
        things().get("free")


def test_a_part_that_registers_itself_as_well_is_one_part(site: Path) -> None:
    install(site, "both", "[kvsim.things]\nboth = os.path:join\n")
    registry = things()
    registry.register("both")(os.path.join)
    assert registry.get("both") is os.path.join
    assert registry.names() == ["both"]


def test_what_is_lent_a_name_takes_none_that_is_offered(site: Path) -> None:
    install(site, "named", "[kvsim.things]\ninstall = os.path:join\n")
    registry = things()
    with registry.lend(install) as name:
        assert name == "install-own"
        assert registry.get("install") is os.path.join


def test_an_offer_that_makes_no_part_is_refused(site: Path) -> None:
    install(site, "text", "[kvsim.things]\ntext = os.path:sep\nkind = pathlib:Path\n")
    registry = Registry("thing", kind=dict, group="kvsim.things")
    with pytest.raises(ValueError, match=r"text 1\.2\) is not a class or function"):
        registry.get("text")
    with pytest.raises(ValueError, match=r"text 1\.2\) is not a subclass of dict"):
        registry.get("kind")


ROOMS = '''
from dataclasses import dataclass

from kvsim.attention.spec import AttentionSpec
from kvsim.features.feature import Feature


@dataclass(slots=True)
class OneByOne(Feature):
    """A request at a time."""

    options = {"max_joins": "maximum number of requests that join a step; 0: no limit"}
    max_joins: int = 0
    num_new: int = 0

    def begin_step(self, state):
        self.num_new = 0

    def ends_admission(self, state):
        return self.num_new >= self.max_joins > 0

    def record_admitted(self, state, request):
        self.num_new += 1


@dataclass(frozen=True)
class Everything(AttentionSpec):
    """As full attention, under another letter."""

    block_size: int
    window = 0
    layer = "everything"
    letter = "Z"
'''
ROOM_ENTRIES = """
[kvsim.features]
one-by-one = my_rooms:OneByOne

[kvsim.attention]
everything = my_rooms:Everything
"""
ROOM_USER = """
from dataclasses import replace
import kvsim, workloads
from kvsim.catalog import get_model
model = replace(get_model("llama-3-8b"), layer_pattern="ZF")
trace = workloads.fixed(num_requests=6, request_rate=float("inf"))
given = {"model": model, "gpu": "h100-sxm", "backend": "python", "max_model_len": 2048}
for joins in (0, 2):
    found = kvsim.simulate(trace, max_joins=joins, **given)
    print(len(set(found.requests["first_scheduled_time"])))
"""


def test_an_installed_package_offers_features_and_kinds_of_attention(tmp_path: Path) -> None:
    (tmp_path / "my_rooms.py").write_text(ROOMS)
    install(tmp_path, "rooms", ROOM_ENTRIES)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", ROOM_USER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    # All six at once; or two in each of the steps, the first two of which start together.
    assert done.stdout.split() == ["1", "2"], done.stderr[-500:]
