"""The cache of compiled rules: a folder named by a hash of everything that the code depends on."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.engines import room_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

#: The modules that compile, the packages that compiled code depends on, and the environment
#: variable that overrides the cache folder.
ENTRY = "kvsim.compiled.entry"
TABLES = "kvsim.compiled.key_table"
SENT = "kvsim.compiled.sent_index"
REPLICA_SET = "kvsim.compiled.replica_set"
LIVE = "kvsim.compiled.live_blocks"
USER = "kvsim.compiled.user_rules"
LOOP = "kvsim.compiled.arrival_loop"
LOOPS = "kvsim.compiled.loops"
CLIENTS = "kvsim.compiled.client_loop"
ROOMS = ("records", "rules", "compiled")
CACHE_VARIABLE = "KVSIM_CACHE_DIR"


def cache_folder(folders: Sequence[Path] = ()) -> Path:
    """Return the cache folder for the current sources: those of the rules, or of ``folders``.

    An edit of a source, or an upgrade of Numba or Python, changes the folder. Without a writable
    home, the folder is a private one in the directory for temporary files.
    """
    package = Path(__file__).parents[1]
    rules = [package / room for room in ROOMS] + [p for r in ROOMS for p in room_paths(r)]
    files = [path for folder in folders or rules for path in sorted(folder.rglob("*.py"))]
    source = b"".join(path.read_bytes() for path in files)
    modes = " ".join(os.environ.get(one, "0") for one in ("NUMBA_DISABLE_JIT", "KVSIM_BOUNDSCHECK"))
    stamp = f"{version('numba')} {sys.version} {modes}".encode()
    folder = Path("kernels") / hashlib.sha256(source + stamp).hexdigest()[:16]
    private = Path(tempfile.gettempdir()) / f"kvsim-{os.getuid() if hasattr(os, 'getuid') else 0}"
    for base in (_user_cache(), private):
        if base is not None and all(_make_own(base / part) for part in ("", "kernels", folder)):
            return base / folder
    return Path(tempfile.mkdtemp(prefix="kvsim-"))


def _make_own(folder: Path) -> bool:
    """Make a folder if needed; return True if only this user can write to it.

    Code from the folder is executed, so a folder that another user can write to is refused.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(found.st_mode) or not os.access(folder, os.W_OK):
        return False
    if not hasattr(os, "getuid"):
        return True
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _user_cache() -> Path | None:
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "kvsim"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kvsim"
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvsim"
    except RuntimeError:  # no home
        return None


def load_entry() -> ModuleType:
    return sys.modules.get(ENTRY) or import_module(ENTRY)


def load_user_rules() -> ModuleType:
    load_entry()
    return sys.modules.get(USER) or import_module(USER)


def load_tables() -> ModuleType:
    return sys.modules.get(TABLES) or _load(TABLES, cache_folder())


def load_sent_index() -> ModuleType:
    load_tables()
    return sys.modules.get(SENT) or _load(SENT, cache_folder())


def load_replica_set() -> ModuleType:
    return sys.modules.get(REPLICA_SET) or _load(REPLICA_SET, cache_folder())


def load_live() -> ModuleType:
    load_tables()
    return sys.modules.get(LIVE) or _load(LIVE, cache_folder())


def load_arrival_loop() -> ModuleType:
    load_replica_set()
    load_live()
    return sys.modules.get(LOOP) or _load(LOOP, cache_folder())


def load_client_loop() -> ModuleType:
    load_arrival_loop()
    return sys.modules.get(CLIENTS) or import_module(CLIENTS)


def load_loops() -> ModuleType:
    load_entry()
    return sys.modules.get(LOOPS) or import_module(LOOPS)


def _load(name: str, folder: Path) -> ModuleType:
    with caching_in(folder):
        return import_module(name)


def check_caching() -> None:
    """Check that compiled functions are declared with a cache folder of this module.

    Numba's default cache, next to the source, does not notice an edit of a rule in another file,
    and its outdated code crashes.

    Raises
    ------
    ImportError
        If no loader of this module imports the compiled functions.
    """
    numba_config: Any = import_module("numba.core.config")
    if not numba_config.CACHE_DIR:
        raise ImportError("import this module by kvsim.compiled.cache, as load_entry does")


@contextmanager
def caching_in(folder: Path) -> Iterator[None]:
    """Make ``folder`` the cache of the functions that are declared inside the block."""
    numba_config: Any = import_module("numba.core.config")
    before = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        numba_config.CACHE_DIR = before
