"""Writes of files and folders that are atomic even if the process is killed.

A file is written under another name and then renamed. Several entries of a folder are written into
a temporary folder inside it; renaming the temporary folder to ``.kvsim-commit`` commits them. Then
the writer moves them to their places; if it is killed before, the next writer does so, and until
then readers look in ``.kvsim-commit``.

A folder may be untrusted. So a writer deletes only names that it owns, and follows no link.
"""

from __future__ import annotations

import gzip
import io
import json
import secrets
import shutil
import time
import zlib
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

#: Folder of committed entries that have not yet moved, and its list of obsolete names.
COMMIT, OBSOLETE = ".kvsim-commit", ".kvsim-obsolete.json"
#: Names of files being written; one older than LEFT_BEHIND seconds was left by a killed process.
TEMPORARY, LEFT_BEHIND = ".kvsim-*.tmp", 3600.0


#: First bytes of a gzipped file.
GZIP = b"\x1f\x8b"
#: Most bytes that a file may decompress to; without a limit, a small file fills the memory.
MAX_UNFOLDED = 2**30


class _Unfolding(io.RawIOBase):
    """Decompressed content of a gzipped file, up to ``MAX_UNFOLDED`` bytes; owns the file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._content, self._left = file, gzip.GzipFile(fileobj=file), MAX_UNFOLDED

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            chunk = self._content.read(len(buffer))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise OSError("is a damaged or truncated gzip file") from error
        self._left -= len(chunk)
        if self._left < 0:
            raise OSError(f"unfolds to more than {MAX_UNFOLDED:,} bytes; unpack it first")
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        self._content.close()
        self._file.close()
        super().close()


def open_bytes(path: Path) -> io.BufferedReader:
    """Open a file; a gzipped one, of any name, is decompressed as it is read.

    Raises
    ------
    OSError
        If the file cannot be opened. Reading raises it for a damaged file, and for one that
        decompresses to more than 1 GiB.
    """
    file = path.open("rb")
    if file.peek(2)[:2] != GZIP:
        return file
    return io.BufferedReader(_Unfolding(file))


def read_bytes(path: Path) -> bytes:
    """Read a file; a gzipped one, of any name, is decompressed.

    Raises
    ------
    OSError
        If it cannot be read, is damaged, or decompresses to more than 1 GiB.
    """
    with open_bytes(path) as file:
        return file.read()


def check_parquet(metadata: Any, names: Iterable[str] | None = None) -> None:
    """Refuse a Parquet file that is too large, before any of it is decoded.

    Equal values compress to almost nothing, so a small file can hold billions of them.

    Parameters
    ----------
    metadata : pyarrow's metadata of the file
    names : columns that will be read, all by default

    Raises
    ------
    OSError
        If the columns take more than ``MAX_UNFOLDED`` bytes, uncompressed or at 8 bytes per value.
    """
    wanted = None if names is None else set(names)
    num_values = num_bytes = 0
    for k in range(metadata.num_row_groups):
        group = metadata.row_group(k)
        for j in range(group.num_columns):
            column = group.column(j)
            if wanted is None or column.path_in_schema.split(".")[0] in wanted:
                num_values += column.num_values
                num_bytes += column.total_uncompressed_size
    if max(8 * num_values, num_bytes) > MAX_UNFOLDED:
        most = MAX_UNFOLDED // 8
        raise OSError(f"unfolds to {num_values:,} values; kvsim reads {most:,} at most")


def temporary_in(folder: Path) -> Path:
    """Return a unique temporary name in a folder."""
    return folder / TEMPORARY.replace("*", secrets.token_hex(8))


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Raise ValueError with the path if the system refuses to write it."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {error.strerror or error}") from None


def write_whole(
    path: Path, write: Callable[[IO[bytes]], object], *, follow_link: bool = True
) -> None:
    """Write a temporary file next to ``path``, then move it to ``path`` atomically.

    A pipe or a device is written to directly. If ``path`` is a link, its target is replaced, or the
    link itself with ``follow_link=False``.

    Raises
    ------
    OSError
        If the folder cannot be written; nothing is left behind.
    """
    if follow_link:
        path = path.resolve()  # the link itself stays
    elif path.is_symlink():
        path.unlink()
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            write(device)
        return
    sweep(path.parent)
    temporary = temporary_in(path.parent)
    file = temporary.open("xb")
    try:
        with file:
            write(file)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: object) -> None:
    """Write standard JSON; NaN and infinity are refused."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    with writing(path):
        write_whole(path, lambda f: f.write(text.encode()))


@contextmanager
def whole_folder(folder: Path, owned: Iterable[str] = ()) -> Iterator[Path]:
    """Yield an empty folder to fill; afterwards all its entries appear in ``folder``, or none.

    Existing entries of the same names are replaced. Entries named in ``owned`` that were not
    written again are deleted. All others stay.

    Raises
    ------
    OSError
        If the folder cannot be made or written.
    """
    existed = folder.exists()
    owned = set(owned)
    settle(folder, owned)
    temporary = temporary_in(folder)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        filled = {entry.name for entry in temporary.iterdir()}
        (temporary / OBSOLETE).write_text(json.dumps(sorted(owned - filled)))
        temporary.rename(folder / COMMIT)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        if not existed:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    settle(folder, owned)


def settle(folder: Path, owned: Iterable[str] = ()) -> None:
    """Move committed entries to their places; delete old incomplete files of killed writers.

    Of the names that the commit lists as obsolete, only those in ``owned`` are deleted: another
    program may have written the list.

    Raises
    ------
    OSError
        If the folder cannot be written, or the commit is damaged.
    """
    sweep(folder)
    commit = folder / COMMIT
    if commit.is_symlink():  # kvsim makes none
        commit.unlink()
    if not commit.is_dir():
        return
    for name in sorted(_obsolete(commit) & set(owned)):
        if not (folder / name).is_dir() or (folder / name).is_symlink():
            (folder / name).unlink(missing_ok=True)
    for entry in sorted(commit.iterdir()):
        if entry.name != OBSOLETE:
            if entry.is_dir():
                discard(folder / entry.name)
            entry.replace(folder / entry.name)
    discard(commit)


def look_into(folder: Path) -> Callable[[str], Path]:
    """Return a function from a file's name to its path in a folder. Changes nothing.

    Files that a killed writer committed are found where they lie, and files that its commit makes
    obsolete count as absent.

    Raises
    ------
    OSError
        If the list of obsolete files is damaged.
    """
    commit = folder / COMMIT
    is_there = commit.is_dir() and not commit.is_symlink()
    obsolete = _obsolete(commit) if is_there else set()

    def find(name: str) -> Path:
        newer = commit / name
        return newer if is_there and (name in obsolete or newer.exists()) else folder / name

    return find


def _obsolete(commit: Path) -> set[str]:
    """Return the names that a commit makes obsolete."""
    try:
        names = json.loads((commit / OBSOLETE).read_text())
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("no list of names")
    except (OSError, ValueError, RecursionError) as error:
        raise OSError(f"{commit} is damaged ({error}); delete it") from None
    return set(names)


def discard(path: Path) -> None:
    """Delete a file or a folder; a folder is removed atomically."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    doomed = path.rename(temporary_in(path.parent))
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Delete old unfinished files of killed processes in a folder."""
    with suppress(OSError):
        for path in folder.glob(TEMPORARY):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > LEFT_BEHIND:
                    path.unlink() if path.is_file() else shutil.rmtree(path)
