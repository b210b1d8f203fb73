"""A record of a live run: a trace in kvsim's own form, a line per request in arrival order."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from kvsim.stepping.engine import Engine


class Recording:
    """A file that grows by a line per request and is complete after each.

    ``kvsim run --trace FILE`` reads it. Aborts are in ``FILE.aborts.jsonl``, as a trace has none.

    Parameters
    ----------
    path : ends in .jsonl or .jsonl.gz

    Raises
    ------
    ValueError
        For another ending, or a file that exists.
    """

    def __init__(self, path: str) -> None:
        if not path.endswith((".jsonl", ".jsonl.gz")):
            raise ValueError(f"--record {path}: must end in .jsonl or .jsonl.gz")
        try:
            raw = Path(path).open("xb")  # noqa: SIM115 - open while the server is up
        except FileExistsError:
            raise ValueError(f"--record {path}: exists already; name a new file") from None
        except OSError as error:
            raise ValueError(f"--record {path}: {error.strerror}") from None
        self._raw = raw
        self._file = cast("IO[bytes]", gzip.GzipFile(fileobj=raw, mode="wb", mtime=0))
        self._file = self._file if path.endswith(".gz") else raw
        self._aborts = Path(f"{path}.aborts.jsonl")

    def add(self, engine: Engine, request: int) -> None:
        self._file.write(json.dumps(engine.trace_row(request)).encode() + b"\n")
        if isinstance(self._file, gzip.GzipFile):
            self._file.flush(zlib.Z_SYNC_FLUSH)
        else:
            self._file.flush()

    def abort(self, request: int, time: float) -> None:
        """Write the abort of a request at a time. Mutates."""
        with self._aborts.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"request": request, "time": time}) + "\n")

    def close(self) -> None:
        """End the file."""
        self._file.close()
        self._raw.close()
