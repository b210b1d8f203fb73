"""A record of a live run: its requests as a trace, and a second file with their outcomes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.stepping.engine import Engine

#: Columns of the requests table that a replay must reproduce.
OUTCOME = (
    *("first_token_time", "finish_time", "num_cached_tokens", "num_preemptions"),
    *("num_output_tokens", "finish_reason"),
)


def beside(path: str) -> Path:
    """Return the file of options, ends, aborts and resets that belongs to a recorded trace."""
    return Path(f"{path}.events.jsonl")


def outcome_of(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the outcome of a request; None for a time that was never reached."""
    values = {name: row[name] for name in OUTCOME}
    return {name: value if value == value else None for name, value in values.items()}  # noqa: PLR0124


class Recording:
    """Files with one line per request and per event, which can be read after every line.

    ``kvsim run --trace FILE`` reads the first; ``kvsim replay-live FILE`` reads both.

    Parameters
    ----------
    path : ends in .jsonl or .jsonl.gz
    options : options of the engine
    **start : other facts that a replay needs: role and hold limit

    Raises
    ------
    ValueError
        If the name has another ending, or the file exists.
    """

    def __init__(self, path: str, options: Mapping[str, Any], **start: Any) -> None:
        if not path.endswith((".jsonl", ".jsonl.gz")):
            raise ValueError(f"--record {path}: must end in .jsonl or .jsonl.gz")
        try:
            self._file = Path(path).open("xb")  # noqa: SIM115 - open while the server is up
            self._events = beside(path).open("x", encoding="utf-8")
        except FileExistsError as error:
            raise ValueError(
                f"--record {error.filename}: exists already; choose a new file"
            ) from None
        except OSError as error:
            raise ValueError(f"--record {path}: {error.strerror}") from None
        self._is_packed = path.endswith(".gz")
        self._count = 0
        self.note("start", options=dict(options), **start)

    def add(self, engine: Engine, request: int) -> None:
        line = json.dumps(engine.trace_row(request)).encode() + b"\n"
        # One gzip member per line: the file can be read however the server ends.
        self._file.write(gzip.compress(line, mtime=0) if self._is_packed else line)
        self._file.flush()
        self._count += 1

    def act(self, event: str, engine: Engine, **fields: int) -> None:
        """Write an event that changes the engine now, such as an abort. Mutates."""
        self.note(event, **fields, time=engine.now, step=engine.num_steps, after=self._count)

    def end(self, row: Mapping[str, Any]) -> None:
        """Write the outcome of a request. Mutates."""
        self.note("end", request=row["request_id"], **outcome_of(row))

    def note(self, event: str, **fields: Any) -> None:
        self._events.write(json.dumps({"event": event, **fields}) + "\n")
        self._events.flush()

    def close(self) -> None:
        self._file.close()
        self._events.close()
