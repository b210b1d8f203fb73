"""Where compiled kernels are kept: the user's cache directory, by a hash of their source."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

#: The module that imports all kernels, the sources that their compiled code depends on, and the
#: variable that overrides the cache directory.
KERNELS = "kvsim.engine.kernels"
SOURCES = ("kernel_places", "kernel_memory", "kernel_queue", "kernel_records", "kernels")
CACHE_VARIABLE = "KVSIM_CACHE_DIR"


def cache_folder() -> Path:
    """Return the folder for this version of the kernels; an edit or an upgrade gets another.

    Without a writable home it is a private folder among the temporary files.
    """
    import numba

    numba_config: Any = import_module("numba.core.config")

    folder = Path(__file__).parent
    source = b"".join((folder / f"{name}.py").read_bytes() for name in SOURCES)
    modes = f"{numba_config.DISABLE_JIT} {numba_config.BOUNDSCHECK}"
    stamp = f"{numba.__version__} {sys.version} {modes}".encode()
    digest = hashlib.sha256(source + stamp).hexdigest()[:16]
    private = Path(tempfile.gettempdir()) / f"kvsim-{os.getuid() if hasattr(os, 'getuid') else 0}"
    for base in (_user_cache(), private):
        folder = base / "kernels" / digest
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="kvsim-"))


def _user_cache() -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "kvsim"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kvsim"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvsim"


def load_kernels() -> ModuleType:
    """Import the kernels with their own cache; says so when they must be compiled first."""
    if KERNELS in sys.modules:
        return sys.modules[KERNELS]
    numba_config: Any = import_module("numba.core.config")

    folder = cache_folder()
    if not numba_config.DISABLE_JIT and not any(folder.rglob("*.nbi")):
        print(  # noqa: T201 - a first run is silent for most of a minute otherwise
            "kvsim: compiling the simulation kernels, once (about half a minute) ...",
            file=sys.stderr,
            flush=True,
        )
    before = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(folder)
    try:
        return import_module(KERNELS)
    finally:
        numba_config.CACHE_DIR = before
