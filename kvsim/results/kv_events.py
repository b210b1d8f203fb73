"""KV cache events of a run, as vLLM publishes them, and the files that hold them."""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from kvsim.files import write_whole, writing
from kvsim.records.events import STORED, UPDATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kvsim.kv.events import EventRows

GPU = "GPU"

#: Packages that write MessagePack, and the function of each.
PACKERS = (("msgspec.msgpack", "encode"), ("msgpack", "packb"))


@dataclass(frozen=True)
class BlockStored:
    """Blocks that got keys, after a parent block; the fields are vLLM's, in its order."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[Any] | None] | None
    group_idx: int | None
    kv_cache_spec_kind: str | None
    kv_cache_spec_sliding_window: int | None


@dataclass(frozen=True)
class BlockRemoved:
    """Keys that were removed from blocks."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None


@dataclass(frozen=True)
class KVEventBatch:
    """Events of one update of one replica; ``ts`` is the simulation's time in seconds."""

    ts: float
    events: list[BlockStored | BlockRemoved]
    data_parallel_rank: int


class Names(Protocol):
    """Source of event fields that are not in the log."""

    #: By group: the kind of its layers, and its window if it slides.
    kinds: list[tuple[str, int | None]]

    def lora(self, row: int) -> tuple[int | None, str | None]:
        """Return the adapter's number and name for the request in a row; None, None without one."""

    def extra_keys(self, row: int, first: int, stop: int) -> list[Any] | None:
        """Return the extra keys in the hash of the block of tokens ``first`` to ``stop``."""

    def token_ids(self, row: int, first: int, stop: int) -> list[int]:
        """Return the token ids of the request in a row, from first to stop."""


def batches(chunks: Iterable[EventRows], names: Names, rank: int = 0) -> Iterator[KVEventBatch]:
    """Yield the batch of every update in a log, in order of time."""
    events: list[BlockStored | BlockRemoved] = []
    for chunk in chunks:
        for row in chunk.events:
            if row["kind"] == UPDATE:
                yield KVEventBatch(float(row["time"]), events, rank)
                events = []
            elif row["kind"] == STORED:
                events.append(_stored(row, chunk, names))
            else:
                first, group = int(row["first_key"]), int(row["group"])
                for key in chunk.keys[first : first + int(row["key_count"])].tolist():
                    events.append(BlockRemoved([key], GPU, group))


def _stored(event: Any, chunk: EventRows, names: Names) -> BlockStored:
    row, size, group, first_key = (
        int(event[name]) for name in ("row", "block_size", "group", "first_key")
    )
    span = slice(first_key, first_key + int(event["key_count"]))
    extra = [
        names.extra_keys(row, place * size, (place + 1) * size)
        for place in chunk.places[span].tolist()
    ]
    lora_id, lora_name = names.lora(row)
    kind, window = names.kinds[group]
    return BlockStored(
        block_hashes=chunk.keys[span].tolist(),
        parent_block_hash=int(event["key"]) if event["has_parent"] else None,
        token_ids=names.token_ids(row, int(event["first"]), int(event["stop"])),
        block_size=size,
        lora_id=lora_id,
        medium=GPU,
        lora_name=lora_name,
        extra_keys=extra or None,
        group_idx=group,
        kv_cache_spec_kind=kind,
        kv_cache_spec_sliding_window=window,
    )


# -- files ----------------------------------------------------------------------------------------


def packer() -> Callable[[Any], bytes]:
    """Return a function that packs values as MessagePack.

    Raises
    ------
    ValueError
        If no package for it is installed.
    """
    for module, name in PACKERS:
        try:
            pack: Callable[[Any], bytes] = getattr(import_module(module), name)
        except ImportError:
            continue
        return pack
    raise ValueError(
        "kv_events_config: path: .msgpack needs the package msgspec or msgpack; .jsonl needs none"
    )


def _as_line(batch: KVEventBatch) -> bytes:
    events = [{"type": type(event).__name__, **vars(event)} for event in batch.events]
    line = {"ts": batch.ts, "events": events, "data_parallel_rank": batch.data_parallel_rank}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _as_array(batch: KVEventBatch) -> list[Any]:
    """Return a batch as vLLM encodes it: in arrays; the array of an event starts with its type."""
    events = [[type(event).__name__, *vars(event).values()] for event in batch.events]
    return [batch.ts, events, batch.data_parallel_rank]


def check_path(path: str) -> None:
    """Check that a file of events can be written, before the run.

    Raises
    ------
    ValueError
        If its folder is missing, or the package for its format is not installed.
    """
    if not Path(path).absolute().parent.is_dir():
        raise ValueError(f"kv_events_config: path {path}: no such directory")
    if Path(path).suffix == ".msgpack":
        packer()


def write_events(path: str, replicas: Iterable[Iterator[KVEventBatch]]) -> None:
    """Write the batches of all replicas by time: JSON lines, or MessagePack one after another."""
    if Path(path).suffix == ".msgpack":
        pack = packer()

        def encode(batch: KVEventBatch) -> bytes:
            return pack(_as_array(batch))
    else:
        encode = _as_line
    ordered = heapq.merge(*replicas, key=lambda batch: (batch.ts, batch.data_parallel_rank))

    def write(file: IO[bytes]) -> None:
        for batch in ordered:
            file.write(encode(batch))

    with writing(path):
        write_whole(Path(path), write)
