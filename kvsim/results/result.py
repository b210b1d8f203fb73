"""A finished run: its tables, summary and configuration; saving and loading."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kvsim.config import Config, RunConfig
from kvsim.display import Displayed
from kvsim.files import whole_folder, write_json, writing
from kvsim.results.block_events import BLOCK_EVENTS
from kvsim.results.run_metrics import RunMetrics, metrics_of
from kvsim.results.tables import MEMORY, REQUESTS, SAMPLES, STEPS, TOKEN_GAPS, FinishReason

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

TABLES = {
    "requests": REQUESTS,
    "memory": MEMORY,
    "steps": STEPS,
    "token_gaps": TOKEN_GAPS,
    "block_events": BLOCK_EVENTS,
    "samples": SAMPLES,
}
#: Option that turns on the recording of a table, for tables that are not always recorded.
ON_REQUEST = {"steps": "record_steps", "block_events": "record_block_events"}
#: Meaning of the codes in a column, by table; written as metadata of the Parquet file.
LEGENDS = {
    "requests": {"finish_reason": ", ".join(f"{int(r)} {r.name.lower()}" for r in FinishReason)}
}
#: Files of a run directory; :mod:`kvsim.report.plot` draws the figures.
OWNED = (
    *(f"{name}.parquet" for name in TABLES),
    *("memory_map.npy", "tenant.npy", "config.toml", "provenance.json", "summary.json"),
    *("waste.png", "memory.png", "memory_map.png", "latency.png", "fleet.png", "features.png"),
)


@dataclass(frozen=True, eq=False, repr=False)
class Result(Displayed):
    """Result of a simulation.

    Attributes
    ----------
    summary : metrics by the names of ``vllm bench serve --save-result``, latencies in ms
    requests, memory, steps : structured arrays, with the columns of :mod:`kvsim.results.tables`;
        ``steps`` is empty unless ``record_steps`` was set
    memory_map : uint8, (memory samples, address bins) of :class:`kvsim.kv.usage.Cause` codes;
        empty unless ``record_memory_map`` was set
    token_gaps : the gaps between tokens of each replica, binned to 0.1 %
    block_events : history of every KV block; empty unless ``record_block_events`` was set.
        See ``kvsim.results.block_events.BLOCK_EVENTS``
    tenant : tenant of each row of ``served``, as the trace numbers them; empty without block events
        or tenants
    samples : one row per sample, if samples are served as separate requests; else empty
    config : the configuration
    provenance : backend (``engine``), reason for it, version, seed, trace digest, notes
    """

    shown_by: ClassVar[str] = "kvsim.report.terminal.run_table"

    summary: dict[str, Any]
    requests: NDArray[Any]
    memory: NDArray[Any]
    steps: NDArray[Any]
    memory_map: NDArray[np.uint8]
    config: Config
    provenance: dict[str, Any] = field(default_factory=dict)
    token_gaps: NDArray[Any] = field(default_factory=lambda: np.zeros(0, TOKEN_GAPS))
    block_events: NDArray[Any] = field(default_factory=lambda: np.zeros(0, BLOCK_EVENTS))
    tenant: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    samples: NDArray[Any] = field(default_factory=lambda: np.zeros(0, SAMPLES))

    @property
    def served(self) -> NDArray[Any]:
        """Rows that the replicas served: samples if these are separate requests, else requests.

        ``request`` in the block events is an index of these rows.
        """
        return self.samples if len(self.samples) else self.requests

    @property
    def metrics(self) -> RunMetrics:
        """The metrics of the summary as attributes: ``metrics.ttft.p99`` is in seconds."""
        return metrics_of(self.summary)

    def to_pandas(self, table: str = "requests") -> pd.DataFrame:
        """Return a table as a DataFrame: requests, samples, memory, steps and so on.

        ``finish_reason`` is a categorical of names: ``finished``, ``rejected`` and so on.

        Raises
        ------
        ValueError
            For an unknown table, and for one that was not recorded.
        """
        import pandas as pd

        array = self._table(table)
        if not _is_recorded(table, self.config):
            raise ValueError(f"{table}: not recorded; run with {ON_REQUEST[table]}=True")
        columns: dict[str, Any] = {name: array[name] for name in array.dtype.names or ()}
        if "finish_reason" in columns:
            names = [reason.name.lower() for reason in FinishReason]
            codes = columns["finish_reason"]
            columns["finish_reason"] = pd.Categorical.from_codes(codes, categories=names)
        return pd.DataFrame(columns)

    def _table(self, name: str) -> NDArray[Any]:
        if name not in TABLES:
            raise ValueError(f"unknown table {name!r} (one of: {', '.join(TABLES)})")
        table: NDArray[Any] = getattr(self, name)
        return table

    def save(self, directory: str | Path) -> None:
        """Write the run into a directory: Parquet tables, JSON summary and provenance, TOML.

        The write is atomic, and replaces an older run and its figures.

        Raises
        ------
        ValueError
            If the directory cannot be written.
        """
        import pyarrow as pa
        from pyarrow import parquet

        folder = make_directory(directory)
        with writing(directory), whole_folder(folder, OWNED) as new:
            for name in TABLES:
                array = self._table(name)
                if not _is_recorded(name, self.config) or (name == "samples" and not len(array)):
                    continue  # an empty file would mean: recorded, and without rows
                table = pa.table({c: array[c].copy() for c in array.dtype.names or ()})
                table = table.replace_schema_metadata(LEGENDS.get(name))
                parquet.write_table(table, new / f"{name}.parquet")
            if self.memory_map.size:
                np.save(new / "memory_map.npy", self.memory_map)
            if self.tenant.size:
                np.save(new / "tenant.npy", self.tenant)
            (new / "config.toml").write_text(self._to_toml())
            write_json(new / "provenance.json", self.provenance)
            write_json(new / "summary.json", self.summary)

    def _to_toml(self) -> str:
        """Return the TOML of the configuration, with the digest of the run's requests."""
        digest = self.provenance.get("trace_digest")
        said = f'trace_digest = "{digest}"\n' if digest else ""
        return said + self.config.to_toml()


def load(directory: str | Path) -> Result:
    """Read a run that :meth:`Result.save` wrote. The directory is not changed.

    Raises
    ------
    ValueError
        If the directory does not hold a complete run.
    """
    from kvsim.results.stored import StoredRun

    folder = Path(directory)
    run = StoredRun(folder)
    if not run.has("summary.json"):
        runs = sorted(p.parent.name for p in folder.glob("*/summary.json"))
        hint = f"; it holds the runs {', '.join(runs)}" if runs else ""
        raise ValueError(f"{directory}: not a run directory (no summary.json){hint}")
    config = RunConfig.from_toml(run.find("config.toml"))
    config = config.model_copy(update={"trace_digest": None})  # the provenance keeps it
    tables = {name: np.zeros(0, dtype) for name, dtype in TABLES.items()}
    written = [name for name in TABLES if _is_recorded(name, config)]
    for name in ("token_gaps", "samples"):  # absent in older runs, or in runs without samples
        if not run.has(f"{name}.parquet"):
            written.remove(name)
    tables |= {name: run.table(name, TABLES[name]) for name in written}
    if run.has("tenant.npy"):
        tables["tenant"] = run.array("tenant.npy", np.dtype(np.int64), 1)
    memory_map = np.zeros((0, 0), np.uint8)
    if run.has("memory_map.npy"):
        memory_map = run.array("memory_map.npy", np.dtype(np.uint8), 2)
    summary, provenance = run.record("summary.json"), run.record("provenance.json")
    return Result(summary, **tables, memory_map=memory_map, config=config, provenance=provenance)


def _is_recorded(table: str, config: Config) -> bool:
    return table not in ON_REQUEST or bool(getattr(config, ON_REQUEST[table]))


def make_directory(directory: str | Path) -> Path:
    """Create a directory for results.

    Raises
    ------
    ValueError
        If it cannot be made, or is a file.
    """
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{directory}: cannot create this directory: {error.strerror}") from None
    return folder
