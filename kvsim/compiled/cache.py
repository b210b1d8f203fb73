"""The cache of compiled rules: a folder named by a hash of everything that the code depends on."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.engines import room_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The packages that compiled code depends on, and the variable that overrides the cache folder.
ROOMS = ("records", "rules", "attention", "features", "compiled")
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
    checked = os.environ.get("KVSIM_BOUNDSCHECK", "0")
    stamp = f"{version('numba')} {sys.version} {checked}".encode()
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
