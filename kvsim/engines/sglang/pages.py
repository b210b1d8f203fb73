"""Tokens per page that SGLang 0.5.23's attention backends support (read in its code)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.settings import model_of
from kvsim.catalog import get_gpu
from kvsim.catalog.generations import capability
from kvsim.engines.sglang.drafting import shape_of

if TYPE_CHECKING:
    from kvsim.catalog.spec import ModelSpec
    from kvsim.config import Config

#: Tokens per page by backend, the default first; a backend that is not listed supports any.
TAKES = {
    "flashmla": (64,),
    "trtllm_mla": (64, 32),
    "cutedsl_mla": (64, 32),
    "trtllm_mha": (64, 16, 32, 128),
    "hpc_ops": (64,),
    "dsa": (64,),
}
#: The backend with pages of 128 tokens on Blackwell's data-centre GPUs.
FA4, OF_FA4 = "fa4", 128
#: Beginnings of the names of models: with latents that have a special kernel on Blackwell, with
#: different widths of K and V, and with states and attention that has fixed pages on Blackwell.
LATENTS = ("deepseek-v3", "deepseek-r1", "kimi-k2")
UNEQUAL = ("mimo-v2",)
WITH_STATES = ("qwen3.5", "qwen3.6", "nemotron-h", "nemotron-3", "nemotron-nano")


def page_size_of(config: Config) -> int:
    """Return the tokens per page: as configured, or as the attention backends require."""
    given, gpu = config.page_size or config.block_size or 1, get_gpu(config.gpu)
    blackwell = capability(gpu.name) == 10
    model = model_of(config)
    if config.attention_backend is None:
        backends = [default_backend(model, blackwell=blackwell, topk=shape_of(config).topk)]
    else:
        backends = config.attention_backend.lower().replace(",", " ").split()
    if model.num_index_layers and model.is_mla:
        backends = ["dsa"]
    for backend in backends:
        if backend == FA4 and blackwell and not model.is_mla:
            return OF_FA4
        if given not in (taken := TAKES.get(backend, (given,))):
            given = taken[0]
    return given


def span_of(config: Config) -> int:
    """Return the tokens of a page of the tree: of all ranks that split the tokens of the KV."""
    return page_size_of(config) * config.decode_context_parallel_size


def default_backend(model: ModelSpec, *, blackwell: bool, topk: int) -> str:
    """Return the default backend if it restricts the size of pages, else an empty text."""
    name = model.name.lower()
    if not blackwell:
        return ""
    if model.is_mla:
        return "trtllm_mla" if name.startswith(LATENTS) else ""
    if model.num_state_layers:
        return "trtllm_mha" if name.startswith(WITH_STATES) and topk <= 1 else ""
    if name.startswith(UNEQUAL):
        return FA4
    return "trtllm_mha" if topk <= 1 else ""
