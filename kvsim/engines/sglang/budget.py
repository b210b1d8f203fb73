"""SGLang's memory: the share of a GPU for weights and KV, and the tokens that the KV memory holds.

The rules of SGLang 0.5.23. The share was compared with SGLang's own code for seven sizes of GPU.
SGLang also counts 8 MiB for each captured prefill size; kvsim assumes that no size is captured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.budget import GIB

if TYPE_CHECKING:
    from kvsim.catalog.spec import GpuSpec

MIB = 2**20
#: GiB of GPU memory below which a default chunked_prefill_size applies, and that default.
CHUNKS = ((20, 2048), (35, 4096), (60, 4096), (160, 8192))
LARGEST_CHUNK = 16384
#: The same for the largest decode batch in a CUDA graph, on fewer than four GPUs, and on four or
#: more.
GRAPHS = ((20, 8), (35, 48), (60, 32), (90, 256), (160, 256))
SHARED_GRAPHS = ((20, 8), (35, 160), (60, 160), (90, 512), (160, 512))
LARGEST_GRAPH = 512
#: Least MiB reserved on a GPU of more than 60 GiB.
LEAST_RESERVED = 10240
#: MiB for prefill graphs of a model with a latent KV.
LATENT_GRAPHS = 1536
#: Tokens of sliding-window layers per token of full-attention layers (swa_full_tokens_ratio).
WINDOW_RATIO = 0.8
#: Bounds of the default max_running_requests.
FEWEST_RUNNING, MOST_RUNNING = 2048, 4096


def _by_size(sizes: tuple[tuple[int, int], ...], largest: int, gib: float) -> int:
    return next((value for limit, value in sizes if gib < limit), largest)


def default_chunk(gpu: GpuSpec) -> int:
    """Return chunked_prefill_size for a GPU, tokens."""
    return _by_size(CHUNKS, LARGEST_CHUNK, gpu.memory_bytes / GIB)


def mem_fraction_static(
    gpu: GpuSpec,
    *,
    chunk: int,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    has_latent: bool = False,
) -> float:
    """Return the share of GPU memory for weights and KV.

    Parameters
    ----------
    chunk : chunked_prefill_size, or max_prefill_tokens without chunks
    has_latent : the model keeps a latent instead of keys and values (MLA)
    """
    gib = gpu.memory_bytes / GIB
    table = SHARED_GRAPHS if tensor_parallel_size >= 4 else GRAPHS
    reserved = 512 + 1.5 * max(chunk, 2048)
    reserved += 128 * tensor_parallel_size * pipeline_parallel_size
    reserved += 2 * _by_size(table, LARGEST_GRAPH, gib)
    reserved += LATENT_GRAPHS if has_latent else 0
    if gib > 60:
        reserved = max(reserved, LEAST_RESERVED)
    total = gpu.memory_bytes / MIB
    return round((total - reserved) / total, 3)


def pool_bytes(gpu: GpuSpec, *, weights: int, overhead: int, fraction: float) -> int:
    """Return the bytes left for KV once the weights are loaded.

    Parameters
    ----------
    weights, overhead : bytes of the weights, and bytes taken before they are loaded
    fraction : mem_fraction_static
    """
    before = gpu.memory_bytes - overhead
    return int(before - weights - before * (1 - fraction))


def split_pool(
    num_bytes: int,
    *,
    token_bytes: int,
    window_bytes: int,
    ratio: float,
    page_size: int,
    max_tokens: int | None = None,
) -> tuple[int, int]:
    """Split KV memory between layers with full attention and layers with a sliding window.

    By docs/sglang-rules.md (Sliding windows), layers with a window get ``ratio`` times as many
    tokens as the others, and the bytes of both fill the memory.

    Parameters
    ----------
    token_bytes, window_bytes : bytes of a token in the layers of either kind
    ratio : swa_full_tokens_ratio
    max_tokens : most tokens of the layers with full attention

    Returns
    -------
    tokens, tokens
        Of the layers with full attention, and of those with a window, in whole pages.
    """
    tokens = int(num_bytes // (token_bytes + ratio * window_bytes))
    if max_tokens is not None:
        tokens = min(tokens, max_tokens)
    return tokens // page_size * page_size, int(tokens * ratio) // page_size * page_size


def host_tokens(num_tokens: int, page_size: int) -> int:
    """Return the tokens of a host tier for ``num_tokens``: whole pages, and one more page."""
    return (num_tokens // page_size + 1) * page_size


def most_running(pool_tokens: int, context_length: int, asked: int | None) -> int:
    most = asked
    if most is None:
        most = int(pool_tokens / context_length * 512)
        most = min(max(most, FEWEST_RUNNING), MOST_RUNNING)
    return max(min(most, pool_tokens // 2), 1)
