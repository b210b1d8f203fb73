"""Structure as a test: layers import downwards only, and the package stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.engines import room_paths

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]

#: Lowest first. A module may import its own layer and those before it.
LAYERS = (
    *("engines", "records", "dispatch", "rules", "compiled"),
    *(
        "errors",
        "allowed",
        "display",
        "evidence",
        "files",
        "entry_points",
        "parametric",
        "registry",
        "own_rules",
        "attention",
        "features",
        "trace",
        "catalog",
        "json_object",
        "speculation",
        "lora",
        "kv_events",
        "kv_transfer",
        "pool_config",
        "server_options",
        "client_options",
        "config",
        "options",
        "budget",
        "kv",
    ),
    *("sched", "cost", "training", "results", "intensity", "engine", "fleet", "stepping"),
    *("cases", "testing"),
    *(
        "plugins",
        "study",
        "calibration",
        "report",
        "hits",
        "api",
        "cliffs",
        "serve",
        "cli",
        "__main__",
        "__init__",
    ),
)

#: Longest files, in lines.
MAX_LINES = 500


def modules() -> list[Path]:
    return sorted((ROOT / "kvsim").rglob("*.py"))


#: Modules in the folder of an engine that are called otherwise than their layers.
LAYER_OF = {
    **{"history": "engine", "setup": "engine", "capacity": "engine", "variants": "compiled"},
    **{"__init__": "engines", "policies": "engines", "engine": "engines", "registry": "engines"},
    **{"options": "server_options", "states": "budget", "drafting": "sched", "pages": "sched"},
}
#: An engine's object and the registry import what they are asked for when they are asked for it.
IMPORT_LATE = ("kvsim/engines/*.py", "kvsim/engines/*/__init__.py")


def layer_of(*parts: str) -> str:
    """Return the layer of a module below ``kvsim``: in ``engines``, that of its name."""
    if parts[0] != "engines":
        return parts[0]
    for part in parts[1:3]:
        if part in LAYER_OF or part in LAYERS:
            return LAYER_OF.get(part, part)
    return "engines"


def layer(path: Path) -> str:
    return layer_of(*path.relative_to(ROOT / "kvsim").with_suffix("").parts)


def folders(layer: str) -> list[Path]:
    """Return the folders of a layer: of the package, and of its engines."""
    return [ROOT / "kvsim" / layer, *room_paths(layer)]


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Return all statements below a node; what they compute, which is most of it, is left out."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, field, ()):
            yield node
            yield from statements(node)


@cache
def imports_of(path: Path) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Return the imports of a file, and of each whether it is for type checkers only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types: set[ast.AST] = set()
    found = []
    for node in statements(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for_types |= set(statements(node))
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, node in for_types))
    return found


def imported_layers(path: Path) -> set[str]:
    found = set()
    for node, _ in imports_of(path):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] + [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "workloads":
                found.add("workloads")
            if parts[0] == "kvsim" and len(parts) > 1:
                found |= {layer_of(*parts[1:])} & set(LAYERS)
    return found


def test_lower_layers_never_import_higher_ones() -> None:
    higher = {}
    for path in modules():
        if any(path.relative_to(ROOT).match(pattern) for pattern in IMPORT_LATE):
            continue
        allowed = set(LAYERS[: LAYERS.index(layer(path)) + 1])
        if layer(path) in ("api", "cli", "report"):
            allowed.add("workloads")  # the command line loads and lists them
        higher[path] = imported_layers(path) - allowed
    assert not {path: layers for path, layers in higher.items() if layers}
    assert len(higher) > 700


#: Files that name SGLang outside its folder and the registry: its router, data with their sources,
#: the framework of measured kernels, the types of all options.
NAME_SGLANG = {
    *("fleet/routers/sglang_cache_aware.py", "cost/efficiency.toml", "fleet/fabrics.toml"),
    *("cost/aiconfigurator.py", "options.py"),
}


def test_nothing_outside_its_folder_names_an_engine() -> None:
    """What differs between engines is asked of :class:`kvsim.engines.engine.Engine`."""
    package = ROOT / "kvsim"
    paths = [path for path in package.rglob("*") if path.suffix in (".py", ".toml", ".tsv")]
    outside = [path for path in paths if path.relative_to(package).parts[0] != "engines"]
    named = {path for path in outside if "sglang" in path.read_text(encoding="utf-8").lower()}
    assert {str(path.relative_to(package)) for path in named} <= NAME_SGLANG


def names_imported(path: Path, *, typing: bool = True) -> set[str]:
    """Return the top-level packages a file imports, without those for type checkers only."""
    found = set()
    for node, for_types in imports_of(path):
        if for_types and not typing:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_rules_need_nothing_but_records() -> None:
    """What both engines run: plain functions, without NumPy or Numba."""
    for path in [path for folder in folders("rules") for path in folder.rglob("*.py")]:
        imported = names_imported(path, typing=False)
        assert imported <= {"__future__", "typing", "math", "kvsim"}, path
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not [node for node in statements(tree) if isinstance(node, ast.ClassDef)], path


def test_a_rule_has_one_name() -> None:
    names: list[str] = []
    for path in [path for folder in folders("rules") for path in folder.rglob("*.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names += [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(set(names)) == len(names) > 100


def test_only_the_compiled_room_knows_the_compiler() -> None:
    for path in modules():
        if layer(path) != "compiled":
            assert not names_imported(path) & {"numba", "llvmlite"}, path


def test_workloads_use_only_the_lowest_layers() -> None:
    for path in (ROOT / "workloads").rglob("*.py"):
        layers = imported_layers(path) - {"workloads"}
        assert layers <= {"errors", "files", "registry", "trace"}, path


def test_files_are_short() -> None:
    lengths, made = {}, ROOT / "kvsim" / "options.py"  # by docs/generate.py, a line per option
    for path in {*modules(), *(ROOT / "workloads").rglob("*.py")} - {made}:
        lengths[path] = len(path.read_text(encoding="utf-8").splitlines())
    assert not {path: length for path, length in lengths.items() if length > MAX_LINES}
    assert sorted(lengths.values())[len(lengths) // 2] <= 130


LIGHT = (
    "from kvsim.cli import main; main(['--help'])",
    "from kvsim.cli import main; main(['run', '--help'])",
    "import kvsim",
    "import workloads",
    "import kvsim; kvsim.capacity(model='llama-3-8b', gpu='l4')",
    "import kvsim as k, workloads as w; k.simulate(w.fixed(num_requests=2), backend='python')",
    "import kvsim.rules.engine, kvsim.records.engine, kvsim.compiled.cache",
    "from kvsim.cli import main; main(['list', 'models'])",
    "from kvsim.cli import main; main(['capacity'])",
    "from kvsim.cli import main; main(['train-memory', '--model', 'llama-3-8b'])",
    "from kvsim.cli import main; main(['roofline'])",
)
HEAVY = {"numba", "matplotlib", "pandas", "pyarrow"}
#: What ``kvsim --help`` does not need: it imports no command.
UNNEEDED = {
    *("pydantic", "numpy", "rich", "importlib.metadata"),
    *("kvsim.config", "kvsim.registry", "kvsim.catalog", "kvsim.cli.options", "kvsim.cli.pasted"),
}

#: One interpreter for all: what none of them loads together, none loads alone.
LOADING = f"""
import sys
for code in {LIGHT!r}:
    exec(code)
    loaded = {HEAVY!r} & set(sys.modules)
    if loaded:
        sys.exit(f"{{code}} loads {{sorted(loaded)}}")
    if code == {LIGHT[0]!r} and {UNNEEDED!r} & set(sys.modules):
        sys.exit(f"kvsim --help loads {{sorted({UNNEEDED!r} & set(sys.modules))}}")
    if code == {LIGHT[1]!r}:
        from kvsim.config import RunConfig
        if "numpy" in sys.modules or RunConfig.__pydantic_complete__:
            sys.exit("the help of a command loads numpy, or builds the validation")
"""


@pytest.mark.long
def test_nothing_heavy_is_loaded_for_light_work() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]


def test_the_public_api_is_small_and_complete() -> None:
    assert len(kvsim.__all__) <= 25
    assert dir(kvsim) == sorted(kvsim.__all__)
    for name in kvsim.__all__:
        assert getattr(kvsim, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        kvsim.nothing  # noqa: B018
