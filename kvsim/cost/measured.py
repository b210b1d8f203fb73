"""Step time from a user's kernel tables: the roofline's sum with interpolated terms.

A folder holds the tables ``gemm``, ``generation_attention`` and ``context_attention``, and for
several GPUs ``custom_allreduce``. They are ``.csv``, ``.csv.gz`` or ``.parquet`` files with the
columns of aiconfigurator's collector (times in ``latency_ms``). Only rows of the run's card and of
``framework`` are used. Terms without a table (host work, norms, launches between kernels) are the
roofline's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.budget.host_weights import NO_HOST_WEIGHTS
from kvsim.budget.layout import kv_dtype, kv_layout
from kvsim.catalog import get_gpu
from kvsim.cost.model import COST_MODELS, CostConfig
from kvsim.cost.roofline import RooflineCost
from kvsim.files import check_parquet, open_bytes

if TYPE_CHECKING:
    from kvsim.catalog.spec import GpuSpec
    from kvsim.records.cost import Work

SUFFIXES = (".csv", ".csv.gz", ".parquet")
#: Columns of each table in addition to ``latency_ms``.
COLUMNS = {
    "gemm": ("m", "n", "k"),
    "generation_attention": ("batch_size", "kv_len", "num_heads", "num_kv_heads", "head_dim"),
    "context_attention": ("batch_size", "isl", "num_heads", "num_kv_heads", "head_dim"),
    "custom_allreduce": ("num_gpus", "message_size"),
}


@COST_MODELS.register("measured")
class MeasuredCost(RooflineCost):
    """Prices a step by interpolating measured kernels.

    Parameters
    ----------
    tables : folder of the tables
    framework : framework of the kernels to use, if the tables hold several

    Raises
    ------
    ValueError
        For a missing table or column, or for a configuration that such tables lack: experts, latent
        attention, windows, quantised weights, pipeline stages, KV other than 16-bit.
    """

    def __init__(
        self, config: CostConfig, *, tables: str | None = None, framework: str = "vllm"
    ) -> None:
        super().__init__(config)
        if tables is None:
            raise ValueError("cost model measured needs its folder: measured+tables=DIR")
        _refuse(config, self.work.classes[0].kind != "full" or not self.work.one_class)
        folder, model, tp = Path(tables), config.model, config.tensor_parallel_size
        self._layers = model.num_layers
        self.record.step_time -= self._layers * self.gemm_launches  # the tables' times include them

        def read(name: str) -> Any:
            return _read(folder, name, config.gpu, framework)

        gemm = read("gemm")
        width = model.head_dim * model.num_heads // tp
        kv_heads = max(model.num_kv_heads // tp, 1)
        hidden, inner = model.hidden_size, model.intermediate_size // tp
        up = inner * (2 if model.gated_mlp else 1)
        shapes = [(width + 2 * kv_heads * model.head_dim, hidden), (hidden, width)]
        shapes += [(up, hidden), (hidden, inner)]
        curves = [_gemm_curve(gemm, n, k) for n, k in shapes]
        self._gemm_tokens = np.unique(np.concatenate([m for m, _ in curves]))
        self._gemm_times = np.zeros(len(self._gemm_tokens))
        for tokens, times in curves:
            self._gemm_times += _at(self._gemm_tokens, tokens, times)
        self._head = _gemm_curve(gemm, model.vocab_size // tp, hidden)
        heads = (model.num_heads // tp, kv_heads, model.head_dim)
        self._decode = _surface(read("generation_attention"), heads, "kv_len")
        self._prompt = _surface(read("context_attention"), heads, "isl")[0][1]
        self._reduce = None
        if tp > 1:
            table = read("custom_allreduce")
            table = table[table.num_gpus == tp].groupby("message_size").latency_ms.min()
            if table.empty:
                raise ValueError(f"{folder}: custom_allreduce has no rows of {tp} GPUs")
            tokens = table.index.to_numpy(dtype=float) / hidden
            self._reduce = tokens, table.to_numpy() / 1e3
        self._kv_bytes_per_key = self.work.classes[0].kv_bytes

    def gemms(self, work: Work) -> float:
        return self._layers * float(_at(work.num_tokens, self._gemm_tokens, self._gemm_times))

    def lm_head(self, work: Work) -> float:
        return float(_at(work.num_sampled, *self._head))

    def decode_attention(self, work: Work) -> float:
        keys = work.decode_bytes / self._kv_bytes_per_key / work.num_decodes
        batches = np.array([batch for batch, _ in self._decode], dtype=float)
        times = np.array([_at(keys, *curve) for _, curve in self._decode])
        return self._layers * float(_at(work.num_decodes, batches, times))

    def prefill_attention(self, work: Work) -> float:
        time = 0.0
        for start, end in work.chunks:
            whole = float(_at(end, *self._prompt))
            time += whole - float(_at(start, *self._prompt)) if start else whole
        return self._layers * time

    def all_reduces(self, work: Work) -> float:
        if self._reduce is None:
            return 0.0
        return 2 * self._layers * float(_at(work.num_tokens, *self._reduce))


def _refuse(config: CostConfig, other_attention: bool) -> None:
    model = config.model
    plain = kv_layout(
        model, kv_dtype(config.dtype), tensor_parallel_size=config.tensor_parallel_size
    )
    changed = config.layout.bytes_per_token != plain.bytes_per_token
    for is_so, what in (
        (model.is_moe, "experts"),
        (model.is_mla, "latent attention"),
        (config.decode_context_parallel_size > 1, "context parallelism"),
        (config.host_weights != NO_HOST_WEIGHTS, "host memory"),
        (other_attention, "attention with windows"),
        (config.quantization is not None, "quantised weights"),
        (len(config.layout.layers) != model.num_layers, "pipeline stages"),
        (changed, "KV cache other than 16-bit"),
    ):
        if is_so:
            raise ValueError(f"cost model measured: its tables have no {what} ({model.name})")


def _read(folder: Path, name: str, gpu: GpuSpec, framework: str) -> Any:
    """Return a table's rows for a card, a framework and 16-bit kernels."""
    import pandas as pd
    from pyarrow.parquet import read_metadata

    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder of kernel tables")
    found = [folder / f"{name}{suffix}" for suffix in SUFFIXES]
    file = next((f for f in found if f.is_file()), None)
    if file is None:
        raise ValueError(f"{folder}: has no table {name} ({', '.join(SUFFIXES)})")
    try:
        if file.suffix == ".parquet":
            check_parquet(read_metadata(file))
            table = pd.read_parquet(file)
        else:
            with open_bytes(file) as text:
                table = pd.read_csv(text)
    except (ValueError, OSError) as error:
        raise ValueError(f"{file}: cannot be read: {error}") from None
    missing = [c for c in (*COLUMNS[name], "latency_ms") if c not in table]
    if missing:
        raise ValueError(f"{file}: lacks the columns {', '.join(missing)}")
    if "gpu" in table:
        table = table[table.gpu.map({g: _same_card(g, gpu) for g in table.gpu.unique()})]
    for column, wanted in (
        ("backend", framework),
        ("be", framework),
        ("gemm_dtype", "bfloat16"),
        ("attn_dtype", "bfloat16"),
        ("kv_cache_dtype", "bfloat16"),
        ("window_size", 0),
        ("prefix_len", 0),
    ):
        if column in table:
            table = table[table[column] == wanted]
    if table.empty:
        raise ValueError(f"{file}: has no 16-bit kernels of {gpu.name} under {framework}")
    return table


def _same_card(name: str, gpu: GpuSpec) -> bool:
    try:
        return get_gpu(name).name == gpu.name
    except ValueError:
        return False


def _at(x: Any, xs: Any, ys: Any) -> Any:
    """Interpolate linearly; beyond the table, scale the last value in proportion to x."""
    return np.where(np.asarray(x) > xs[-1], ys[-1] / xs[-1] * x, np.interp(x, xs, ys))


def _gemm_curve(table: Any, n: int, k: int) -> tuple[Any, Any]:
    """Return (tokens, seconds) of a GEMM with n x k weights, scaled from the nearest measured."""
    shapes = table[["n", "k"]].drop_duplicates()
    far = np.abs(np.log(shapes.n / n)) + np.abs(np.log(shapes.k / k))
    near = shapes.loc[far.idxmin()]
    rows = table[(table.n == near.n) & (table.k == near.k)].groupby("m").latency_ms.mean()
    scale = n * k / (near.n * near.k)
    return rows.index.to_numpy(dtype=float), rows.to_numpy() / 1e3 * scale


def _surface(table: Any, heads: tuple[int, int, int], length: str) -> list[tuple[int, Any]]:
    """Return (lengths, seconds) by batch size, scaled from the nearest measured head shape."""
    names = ["num_heads", "num_kv_heads", "head_dim"]
    # Decodes scale with KV heads (reads), prompts with query heads (arithmetic).
    work = [1, 2] if length == "kv_len" else [0, 2]
    shapes = table[names].drop_duplicates()
    far = sum(np.abs(np.log(shapes[name] / h)) for name, h in zip(names, heads, strict=True))
    near = shapes.loc[far.idxmin()]
    scale = 1.0
    for index in work:
        scale *= heads[index] / near[names[index]]
    rows = table[(table[names] == near).all(axis=1)]
    curves = []
    for batch, group in rows.groupby("batch_size"):
        times = group.groupby(length).latency_ms.mean()
        curves.append((int(batch), (times.index.to_numpy(dtype=float), times / 1e3 * scale)))
    return [(batch, (xs, ys.to_numpy())) for batch, (xs, ys) in curves]
