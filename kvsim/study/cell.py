"""One cell on disk: a folder that exists whole or not at all, with a record of its inputs.

It holds ``summary.json`` (``error.txt`` if the cell could not run); ``config.toml``, which
``kvsim run`` takes; and ``provenance.json`` with the inputs of the digest that names the folder,
and a checksum of each file.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.files import discard, temporary_in
from kvsim.results.notes import notes_of
from kvsim.study.digest import digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SUMMARY, ERROR, CONFIG, PROVENANCE = "summary.json", "error.txt", "config.toml", "provenance.json"


class CorruptError(ValueError):
    """A cell cannot be read, or differs from its checksums."""


@dataclass(frozen=True)
class Stored:
    """A finished cell: its summary, or the reason why it could not run, and the run's notes.

    ``num_cached_tokens`` are those of completed requests, for the cost of the run.
    """

    summary: Mapping[str, Any] | None
    error: str | None
    notes: Sequence[str] = ()
    num_cached_tokens: int = 0


def read_cell(folder: Path) -> Stored | None:
    """Read a cell; None if it was never finished.

    Raises
    ------
    CorruptError
        If a file is missing or damaged, or the folder's name is not the digest of its inputs.
    """
    if not folder.is_dir():
        return None
    try:
        said = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
        if digest_of(said["ingredients"]) != folder.name:
            raise CorruptError("its digest does not match its inputs")
        unknown = set(said["sha256"]) - {CONFIG, SUMMARY, ERROR}
        if unknown:  # from an untrusted source, which might name any file
            raise CorruptError(f"it names {min(unknown)!r}, which is not a file of a cell")
        content = {name: (folder / name).read_bytes() for name in said["sha256"]}
        for name, checksum in said["sha256"].items():
            if _checksum(content[name]) != checksum:
                raise CorruptError(f"{name} was changed or damaged")
        if CONFIG not in content or (SUMMARY in content) == (ERROR in content):
            raise CorruptError("it has no result")
        if ERROR in content:
            return Stored(None, content[ERROR].decode().rstrip("\n"))
        notes = notes_of(said.get("run") or {})
        found = json.loads(content[SUMMARY])
        num_cached = int(said.get("num_cached_tokens") or 0)
        return Stored(found, None, tuple(str(note) for note in notes), num_cached)
    except CorruptError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptError(f"cannot be read: {error}") from None


def store_cell(
    cells: Path,
    digest: str,
    *,
    config: str,
    provenance: Mapping[str, Any],
    summary: Mapping[str, Any] | None = None,
    error: str | None = None,
) -> None:
    """Write a cell under a temporary name, then rename it; a second writer discards its copy."""
    files = {CONFIG: config.encode()}
    if error is None:
        files[SUMMARY] = (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode()
    else:
        files[ERROR] = f"{error}\n".encode()
    said = {**provenance, "sha256": {name: _checksum(text) for name, text in files.items()}}
    files[PROVENANCE] = (json.dumps(said, indent=2, allow_nan=False) + "\n").encode()
    temporary = temporary_in(cells)
    temporary.mkdir(parents=True)
    try:
        for name, text in files.items():
            (temporary / name).write_bytes(text)
        _place(temporary, cells / digest, replaces_failed=error is None)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone, if it was renamed


def _place(temporary: Path, folder: Path, *, replaces_failed: bool) -> None:
    """Rename a cell to its final path unless a good one exists there."""
    while True:
        try:
            there = read_cell(folder)
        except CorruptError:
            there = Stored(None, "corrupt")
            replace = True
        else:
            replace = replaces_failed and there is not None and there.error is not None
        if there is not None:
            if not replace:
                return
            with suppress(OSError):  # another process was quicker
                discard(folder)
        try:
            temporary.rename(folder)
        except OSError:
            if folder.is_dir():  # another process was quicker: check its cell
                continue
            raise
        return


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
