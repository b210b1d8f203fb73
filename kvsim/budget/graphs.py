"""CUDA graphs of a vLLM server: the captured sizes, and an estimate of their memory.

The sizes follow vLLM 0.33's rule. Their memory is an estimate, fitted on start-up logs of servers
("Estimated CUDA graph memory") by ``python -m experiments.cuda_graphs``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from kvsim.catalog.generations import capability
from kvsim.errors import FieldError, unknown_name

if TYPE_CHECKING:
    from kvsim.budget.limits import Limits
    from kvsim.catalog.spec import GpuSpec
    from kvsim.config import Config

#: Default largest captured step in tokens: of most GPUs, and of Blackwell's data-centre GPUs.
LARGEST, LARGEST_BLACKWELL = 512, 1024

Mode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]

#: CUDA graph modes of ``-O0`` to ``-O3``.
BY_LEVEL: tuple[Mode, ...] = ("NONE", "PIECEWISE", "FULL_AND_PIECEWISE", "FULL_AND_PIECEWISE")

#: Bytes of one layer in one graph, and their factor under tensor parallelism, where the graph also
#: contains all-reduces.
LAYER_BYTES = 0.27 * 2**20
SHARED = 1.5
#: Bytes that attention over KV in FP8 keeps in the graphs' memory pool.
NARROW_KV_BYTES = 420 * 2**20


class Graphs(NamedTuple):
    """Sizes of captured graphs in tokens: graphs cut at attention, and graphs of whole steps."""

    piecewise: tuple[int, ...]
    full: tuple[int, ...]

    @property
    def num_graphs(self) -> int:
        return len(self.piecewise) + len(self.full)


def graph_mode(config: Config) -> Mode:
    """Return the CUDA graph mode: from the flag, else from the optimisation level."""
    told = compilation(config).get("cudagraph_mode")
    if config.enforce_eager:
        return "NONE"
    if told is None:
        level = config.optimization_level
        return BY_LEVEL[2 if level is None else level]
    modes = get_args(Mode)
    name = str(told).upper()
    if name not in modes:
        said = unknown_name("cudagraph_mode", str(told), modes)
        raise FieldError("compilation_config", str(said))
    return name  # type: ignore[return-value]


def compilation(config: Config) -> dict[str, object]:
    """Return the given compilation configuration."""
    given: dict[str, object] = json.loads(config.compilation_config or "{}")
    return given


def capture_sizes(config: Config) -> tuple[int, ...] | None:
    """Return the configured capture sizes in tokens; None if there are none.

    Raises
    ------
    ValueError
        For a value that is not a list of sizes.
    """
    if config.cudagraph_capture_sizes is not None:
        return config.cudagraph_capture_sizes
    sizes = compilation(config).get("cudagraph_capture_sizes")
    if sizes is None:
        return None
    if not isinstance(sizes, list) or any(type(size) is not int or size < 1 for size in sizes):
        raise FieldError(
            "compilation_config", f"cudagraph_capture_sizes {sizes}: must be a list of token counts"
        )
    return tuple(sorted(set(sizes)))


def tokens_per_decode(config: Config) -> int:
    """Return the tokens of a decode: one plus the drafts to verify."""
    spec = config.speculative_config
    return 1 if spec is None else 1 + spec.num_speculative_tokens


def graphs_of(config: Config, limits: Limits, gpu: GpuSpec) -> Graphs:
    """Return the graphs that a server captures.

    Raises
    ------
    ValueError
        For an unknown mode, or wrong sizes.
    """
    mode, per_decode = graph_mode(config), tokens_per_decode(config)
    sizes = _sizes(config, limits, gpu, per_decode)
    if mode == "NONE":
        return Graphs((), ())
    decodes = {-(-size // per_decode) * per_decode for size in sizes}
    decodes = {size for size in decodes if size <= limits.max_num_seqs * per_decode}
    piecewise = sizes if "PIECEWISE" in mode else ()
    full = {"FULL": sizes, "PIECEWISE": ()}.get(mode, tuple(sorted(decodes)))
    return Graphs(piecewise, full)


def _sizes(config: Config, limits: Limits, gpu: GpuSpec, per_decode: int) -> tuple[int, ...]:
    """Return the capture sizes: the given ones, or 1, 2, 4, then every 8 and every 16 tokens."""
    tokens, seqs = limits.max_num_batched_tokens, limits.max_num_seqs
    given = capture_sizes(config)
    if given is not None:
        return tuple(size for size in given if size <= tokens)
    largest = config.max_cudagraph_capture_size
    if largest is None:
        most = LARGEST_BLACKWELL if capability(gpu.name) == 10 else LARGEST
        largest = min(2 * seqs * per_decode, most)
    largest = min(largest, tokens)
    found = {1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16), tokens, seqs}
    if config.performance_mode == "interactivity":
        found |= {*range(1, 33)}
    if per_decode > 1:
        found |= {per_decode * n for n in (1, 2, 4, *range(8, seqs + 1, 8), seqs)}
    return tuple(sorted(size for size in found if size <= largest))


def graph_bytes(num_layers: int, count: int, *, num_ranks: int = 1, narrow_kv: bool = False) -> int:
    """Return the estimated bytes of graphs on one GPU.

    Parameters
    ----------
    num_layers : number of layers on the GPU
    count : number of graphs
    num_ranks : GPUs that share each layer
    narrow_kv : True if KV is in FP8
    """
    if not count:
        return 0
    each = LAYER_BYTES * (SHARED if num_ranks > 1 else 1.0)
    return int(each * num_layers * count + NARROW_KV_BYTES * narrow_kv)
