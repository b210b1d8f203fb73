"""A pasted ``python -m sglang.launch_server ...`` line, in kvsim's words.

Flags for which vLLM has a name get it; what changes neither memory nor schedules is passed over
with a note; what changes them in a way that is not modelled is refused, with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MODULE = "sglang.launch_server"
#: SGLang's names of what kvsim calls as vLLM does.
RENAMED = {
    "--model-path": "--model",
    "--tp": "--tensor-parallel-size",
    "--tp-size": "--tensor-parallel-size",
    "--dp": "--data-parallel-size",
    "--dp-size": "--data-parallel-size",
    "--pp-size": "--pipeline-parallel-size",
    "--context-length": "--max-model-len",
    "--random-seed": "--seed",
    "--disable-cuda-graph": "--enforce-eager",
    "--disable-hybrid-swa-memory": "--disable-hybrid-kv-cache-manager",
    "--cuda-graph-max-bs": "--max-cudagraph-capture-size",
}
#: Values that are called otherwise.
VALUES = {
    "--kv-cache-dtype": {"fp8_e5m2": "fp8", "fp8_e4m3": "fp8", "bf16": "bf16"},
    "--dtype": {"half": "float16"},
}

_WITH_VALUE = """
host port api-key served-model-name tokenizer-path tokenizer-mode load-format revision log-level
log-level-http chat-template reasoning-parser tool-call-parser attention-backend sampling-backend
grammar-backend stream-interval watchdog-timeout download-dir base-gpu-id nccl-port dist-init-addr
nnodes node-rank device fp8-gemm-backend moe-runner-backend decode-attention-backend
prefill-attention-backend completion-template file-storage-path sleep-on-idle hicache-io-backend
hicache-mem-layout
"""
_ALONE = """
trust-remote-code enable-metrics log-requests skip-server-warmup disable-custom-all-reduce
enable-cache-report skip-tokenizer-init enable-torch-compile disable-cuda-graph-padding
enable-flashinfer-allreduce-fusion show-time-cost
"""
WITH_VALUE = frozenset(f"--{name}" for name in _WITH_VALUE.split())
ALONE = frozenset(f"--{name}" for name in _ALONE.split())

#: What would change the numbers and is not modelled under this engine.
NOT_MODELLED = {
    "--hicache-storage-backend": "a storage by that name; --kv-store mooncake is one",
    "--speculative-algorithm": "speculative decoding under sglang",
    "--enable-dp-attention": "data-parallel attention",
    "--disaggregation-mode": "disaggregation of SGLang's servers",
    "--enable-lora": "adapters under sglang",
    "--enable-two-batch-overlap": "two-batch overlap",
    "--cpu-offload-gb": "weights in host memory",
    "--prefill-delayer": "the prefill delayer",
}


def is_pasted(arguments: Sequence[str]) -> bool:
    """Whether a command's arguments begin with SGLang's own line."""
    return MODULE in arguments[1:5]


def translate(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the line as kvsim says it, and what of it has no effect here.

    Raises
    ------
    ValueError
        For a flag that is not modelled.
    """
    rest, taken = [arguments[0], "--engine", "sglang"], []
    items = iter(arguments[list(arguments).index(MODULE) + 1 :])
    for item in items:
        flag, equals, value = item.partition("=")
        flag = flag.replace("_", "-") if item.startswith("--") else item
        if flag in NOT_MODELLED:
            raise ValueError(f"{flag} is not modelled: {NOT_MODELLED[flag]}")
        if flag in ALONE:
            taken.append(item)
        elif flag in WITH_VALUE:
            taken.append(item if equals else f"{item} {next(items, '')}".strip())
        else:
            flag = RENAMED.get(flag, flag)
            rest.append(flag)
            if flag in VALUES:
                value = value if equals else next(items, "")
                rest.append(VALUES[flag].get(value, value))
            elif equals:
                rest.append(value)
    return rest, taken
