"""Kernel tables of aiconfigurator-core: times by card, framework and version, as Parquet files.

The package (Apache-2.0, on PyPI) carries them in its folder ``systems/data``; `tables` finds it
where the package is installed. Their traps, as they are handled here: GEMMs in 128 x 128 blocks of
FP8 are timed by vLLM 0.24 with the launch from the host (82 us and more), so that SGLang's rows of
the same kernel stand for them; a row slower than one of more tokens is a spike, and takes that
one's time; times of a card in several versions are the newest.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

#: Cards in the tables, and in the catalogue, that kernels are fitted on here.
CARDS = {
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
#: Formats of GEMMs: the tables' name, the framework, bytes per weight and per activation.
GEMMS = {
    "16-bit": ("bfloat16", "vllm", 2.0, 2.0),
    "fp8": ("fp8", "vllm", 1.0, 1.0),
    "fp8-block": ("fp8_block", "sglang", 1.0, 1.0),
    "nvfp4": ("nvfp4", "vllm", 0.5625, 0.5625),
}
#: Formats of experts: the tables' name, bytes per weight, and words in the names of kernels that
#: vLLM takes on Hopper and on other cards.
EXPERTS = {
    "16-bit": ("bfloat16", 2.0, ("triton", "trtllm", "cutlass")),
    "fp8-block": ("fp8_block", 1.0, ("fp8moe_triton", "trtllmfp8expertsmonolithic")),
    "nvfp4": ("nvfp4", 0.5625, ("trtllmnvfp4expertsmonolithic", "cutlass")),
    "mxfp4": ("w4a8_mxfp4_mxfp8", 0.53125, ("mxfp4_mxfp8",)),
    "int4": ("int4_wo", 0.5625, ("marlin",)),
}


#: Columns of attention's shapes.
HEADS = ("num_heads", "num_kv_heads", "head_dim")
#: Below this the KV of a decode lies in the L2 cache.
L2_BYTES = 50e6


#: MXFP4 with activations in 16 bits, where no kernel takes them narrower.
WEIGHTS_ALONE = ("w4a16_mxfp4", ("gptoss",))


def tables() -> Path | None:
    """Return the tables of the installed package, None if there is none."""
    found = importlib.util.find_spec("aiconfigurator_core")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "systems" / "data"


@cache
def read(folder: Path, card: str, what: str, framework: str, name: str) -> Any:
    """Return a table of the newest version of a framework; empty if there is none."""
    files = sorted((folder / card / what / framework).glob(f"*/{name}_perf.parquet"))
    return pd.read_parquet(files[-1]) if files else pd.DataFrame()


def without_spikes(table: Any, shape: list[str], tokens: str) -> Any:
    """Return the least time of a shape and number of tokens, or of more tokens."""
    table = table.groupby([*shape, tokens], as_index=False).latency.min()
    table = table.sort_values(tokens, ascending=False)
    return table.assign(latency=table.groupby(shape).latency.cummin())


def gemms(folder: Path, card: str, form: str) -> Any:
    """Return GEMMs (m, k) by (k, n) of one format."""
    dtype, framework, weight, activation = GEMMS[form]
    table = read(folder, card, "gemm", framework, "gemm")
    if table.empty or dtype not in set(table.gemm_dtype):
        return pd.DataFrame()
    table = without_spikes(table[table.gemm_dtype == dtype], ["n", "k"], "m")
    table = table[(table.n * table.k > 2**20) & (table.m <= 16384)]
    return table.assign(seconds=table.latency / 1e3, weight=weight, activation=activation)


def experts(folder: Path, card: str, form: str) -> Any:
    """Return MoE layers with evenly spread tokens, so that the experts they touch are known."""
    dtype, weight, words = EXPERTS[form]
    table = read(folder, card, "moe", "vllm", "moe")
    if form == "mxfp4" and not table.empty and dtype not in set(table.moe_dtype):
        dtype, words = WEIGHTS_ALONE
    if table.empty or dtype not in set(table.moe_dtype):
        return pd.DataFrame()
    table = table[(table.moe_dtype == dtype) & (table.distribution == "balanced")]
    for word in words:
        mine = table[table.kernel_source.str.contains(word)]
        if len(mine):
            table = mine
            break
    shape = ["hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
    table = without_spikes(table, shape, "num_tokens")
    rows = table.num_tokens * table.topk / table.moe_ep_size
    held = table.num_experts / table.moe_ep_size
    return table.assign(
        seconds=table.latency / 1e3,
        rows=rows,
        touched=np.minimum(held, rows),
        params=3.0 * table.hidden_size * table.inter_size / table.moe_tp_size,
        width=3.0 * table.inter_size / table.moe_tp_size,
        weight=weight,
    )


def decodes(folder: Path, card: str, kv_dtype: str) -> Any:
    """Return decode attention with KV larger than the L2 cache and queries in 16 bits."""
    table = _attention(folder, card, "generation", kv_dtype)
    if table.empty:
        return table
    table = table.assign(kv_len=table.isl + table.step)
    table = _least(table, "batch_size", "kv_len", *HEADS)
    element = 1 if kv_dtype == "fp8" else 2
    moved = 2.0 * table.batch_size * table.kv_len * table.num_kv_heads * table.head_dim * element
    return table[moved > L2_BYTES].assign(kv_element=element)


def prompts(folder: Path, card: str, kv_dtype: str) -> Any:
    """Return attention of whole prompts, queries in 16 bits."""
    table = _attention(folder, card, "context", kv_dtype)
    if table.empty:
        return table
    if "step" in table:
        table = table[table.step == 0]
    table = _least(table, "batch_size", "isl", *HEADS)
    element = 1 if kv_dtype == "fp8" else 2
    return table[table.batch_size * table.isl >= 128].assign(kv_element=element)


def latent_decodes(folder: Path, card: str) -> Any:
    """Return MLA of decodes, of TensorRT-LLM: vLLM's modules are timed from the host."""
    table = read(folder, card, "mla", "trtllm", "generation_mla")
    if table.empty:
        return table
    table = table[table.kv_cache_dtype == "bfloat16"]
    table = _least(table.assign(kv_len=table.isl + table.step), "batch_size", "kv_len", "num_heads")
    table = table[table.batch_size * table.kv_len * 1152 > 2e6]
    return table.assign(kv_element=2)


def latent_prompts(folder: Path, card: str) -> Any:
    """Return MLA of whole prompts, of TensorRT-LLM."""
    table = read(folder, card, "mla", "trtllm", "context_mla")
    if table.empty:
        return table
    table = table[table.kv_cache_dtype == "bfloat16"]
    table = table[table.step == 0] if "step" in table else table
    table = _least(table, "batch_size", "isl", "num_heads")
    return table[table.batch_size * table.isl >= 256]


def states(folder: Path, card: str, phase: str) -> Any:
    """Return gated delta nets of decodes (``generation``) or prompts, with their convolution."""
    table = read(folder, card, "linear_attention", "vllm", "gdn")
    if table.empty:
        return table
    table = table[table.phase == phase]
    is_conv = table.kernel_source.str.contains("conv")
    shape = ["batch_size", "seq_len", "num_tokens", "num_v_heads", "head_v_dim", "head_k_dim"]
    both = table[~is_conv].merge(table[is_conv], on=[*shape, "num_k_heads"], suffixes=("", "_conv"))
    return both.assign(seconds=(both.latency + both.latency_conv) / 1e3)


def _attention(folder: Path, card: str, phase: str, kv_dtype: str) -> Any:
    table = read(folder, card, "attention", "vllm", f"{phase}_attention")
    if table.empty:
        return table
    table = table[(table.attn_dtype == "bfloat16") & (table.kv_cache_dtype == kv_dtype)]
    if "window_size" in table:
        table = table[table.window_size.isin([0, -1])]
    table = table.rename(columns={"num_key_value_heads": "num_kv_heads"})
    return table[table.head_dim.isin([64, 128]) & (table.num_heads <= 64)]


def _least(table: Any, *shape: str) -> Any:
    table = table.groupby(list(shape), as_index=False).latency.min()
    return table.assign(seconds=table.latency / 1e3)


def all_reduces(folder: Path, card: str) -> Any:
    """Return all-reduces of vLLM under CUDA graphs, 16-bit elements.

    On Blackwell TensorRT-LLM's: vLLM fuses its own with the norm behind them there, and runs those.
    """
    framework = "trtllm" if card == "b200_sxm" else "vllm"
    table = read(folder, card, "comm", framework, "custom_allreduce")
    if table.empty:
        return table
    table = table[~table.kernel_source.str.contains("eager")]
    table = table[table.message_size.between(2048, 2**26)]
    return table.assign(seconds=table.latency / 1e3)
