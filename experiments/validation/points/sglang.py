"""The options of a measured point's SGLang server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from experiments.validation.points.flags import flag, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

#: kvsim's options beside the flags they are; what no flag says is SGLang's own default.
FLAGS: dict[str, type[int] | type[float]] = {
    "chunked_prefill_size": int,
    "max_prefill_tokens": int,
    "mem_fraction_static": float,
    "max_running_requests": int,
    "page_size": int,
    "scheduler_recv_interval": int,
}
#: Backends of attention that have pages of their own size.
PAGES = {"trtllm_mla": 64, "cutlass_mla": 128, "flashmla": 64}
#: A variable that scripts set by the number of clients.
BY_CLIENTS = r"if \[\[ \$CONC -ge (\d+) \]\]; then ; {0}=(\d+) ; else ; {0}=(\d+)"
#: Steps of more requests are in no CUDA graph.
CAPTURED = "cuda-graph-max-bs"


def sglang_options(row: Mapping[str, str]) -> dict[str, Any]:
    """Return kvsim's options for the SGLang flags of a row.

    Raises
    ------
    ValueError
        For a script of an unknown branch.
    """
    flags, found = row["flags"], {"engine": "sglang"}
    for name, kind in FLAGS.items():
        if told := value(flags, name.replace("_", "-"), row):
            found[name] = kind(told)
    if pages := PAGES.get(flag(flags, "attention-backend")):
        found["page_size"] = pages
    if captured := value(flags, CAPTURED, row):
        found["max_cudagraph_capture_size"] = int(captured)
    return found


def value(flags: str, name: str, row: Mapping[str, str]) -> str:
    """Return what a script passes for a flag, through a variable or not; empty if nothing.

    A variable that is set in several branches takes the first value: InferenceX's scripts begin
    with the branch of eight GPUs.

    Raises
    ------
    ValueError
        For another number of GPUs under such a script.
    """
    told = flag(flags, name)
    if not told.startswith("$"):
        return told
    if found := re.search(BY_CLIENTS.format(told.strip("${}")), flags):
        least, many, few = map(int, found.groups())
        return str(many if whole(row["concurrency"]) >= least else few)
    values = re.findall(rf"\b{told.strip('${}')}=(\S+)", flags)
    if not values or (len(set(values)) > 1 and whole(row["tp"]) != 8):
        raise ValueError(f"--{name} {told}: no value in the script for {row['tp']} GPUs")
    return str(values[0])
