"""Flags of ``vllm serve`` that kvsim has no use for, so that a whole command line can be pasted.

What changes neither memory nor schedules is passed over with a note; what changes them in a way
that is not modelled is refused, with the reason.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvsim.cli import sglang_flags

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Commands that take a deployment.
COMMANDS = ("run", "compare", "sweep", "search", "calibrate", "capacity", "roofline")

#: Without effect here, with a value.
_WITH_VALUE = """
host port uds api-key served-model-name tokenizer tokenizer-mode tokenizer-revision revision
code-revision load-format download-dir hf-token config-format
chat-template chat-template-content-format response-role root-path middleware allowed-origins
allowed-methods allowed-headers ssl-keyfile ssl-certfile ssl-ca-certs ssl-cert-reqs
uvicorn-log-level log-config-file max-log-len otlp-traces-endpoint collect-detailed-traces
tool-call-parser tool-parser-plugin tool-server reasoning-parser reasoning-parser-plugin
generation-config override-generation-config guided-decoding-backend structured-outputs-config
max-logprobs logprobs-mode logits-processors logits-processor-pattern task runner convert
model-impl model-loader-extra-config ignore-patterns distributed-executor-backend worker-cls
worker-extension-cls scheduler-cls data-parallel-address data-parallel-rpc-port
data-parallel-backend data-parallel-rank data-parallel-size-local master-addr master-port nnodes
node-rank attention-backend attention-config
cuda-graph-sizes prefix-caching-hash-algo
stream-interval max-parallel-loading-workers ray-workers-use-nsight additional-config
api-server-count mm-processor-kwargs limit-mm-per-prompt allowed-local-media-path
media-io-kwargs profiler-config shutdown-timeout
"""

#: Without effect here, alone; each also as --no-...
_ALONE = """
trust-remote-code disable-log-requests disable-log-stats enable-log-requests
disable-uvicorn-access-log disable-fastapi-docs disable-frontend-multiprocessing headless
enable-auto-tool-choice enable-request-id-headers enable-server-load-tracking
enable-force-include-usage enable-prompt-tokens-details enable-tokenizer-info-endpoint
enable-log-outputs exclude-tools-when-tool-choice-none return-tokens-as-token-ids
allow-credentials enable-ssl-refresh log-error-stack show-hidden-metrics-for-version
skip-tokenizer-init skip-mm-profiling use-tqdm-on-load disable-custom-all-reduce
disable-cascade-attn calculate-kv-scales use-v2-block-manager disable-sliding-window-warnings
enable-mfu-metrics kv-cache-metrics cudagraph-metrics enable-logging-iteration-details
"""

#: Of these, what one command knows.
OWN = {("run", "--kv-events-config")}
#: Commands that count a trace's texts by a tokenizer's file; a server's tokenizer has a name.
TOKENIZES = ("run", "compare", "sweep", "search")

WITH_VALUE = frozenset(f"--{name}" for name in _WITH_VALUE.split())
ALONE = frozenset(f"--{name}" for name in _ALONE.split())

#: What would change the numbers and is not modelled.
NOT_MODELLED = {
    "--cpu-offload-gb": "weights in host memory",
    "--max-num-partial-prefills": "several partial prefills at once",
    "--max-long-partial-prefills": "several partial prefills at once",
    "--decode-context-parallel-size": "context parallelism",
    "--prefill-context-parallel-size": "context parallelism",
    "--enable-dbo": "dual batch overlap",
    "--enable-sleep-mode": "sleep mode",
}


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take out what has no effect here; returns the rest, and what was taken.

    Raises
    ------
    ValueError
        For a flag that is not modelled.
    """
    if not arguments or arguments[0] not in COMMANDS:
        return list(arguments), []
    if sglang_flags.is_pasted(arguments):
        return sglang_flags.translate(arguments)
    rest, taken = [], []
    if tuple(arguments[1:3]) == ("vllm", "serve"):  # the line was pasted from its beginning
        arguments = [arguments[0], *arguments[3:]]
    items = iter(arguments)
    for item in items:
        flag, equals, value = item.partition("=")
        flag = flag.replace("_", "-")
        flag = flag if item.startswith("--") else item
        if flag in NOT_MODELLED:
            raise ValueError(f"{flag} is not modelled: {NOT_MODELLED[flag]}")
        if flag in ALONE or flag.replace("--no-", "--", 1) in ALONE:
            taken.append(item)
        elif found := re.fullmatch(r"-O=?([0-3])", item):
            rest += ["--optimization-level", found[1]]
        elif flag in WITH_VALUE and (arguments[0], flag) not in OWN:
            value = value if equals else next(items, "")
            if flag == "--tokenizer" and value.endswith(".json") and arguments[0] in TOKENIZES:
                rest += ["--tokenizer", value]
                continue
            taken.append(item if equals else f"{item} {value}".strip())
        else:
            rest.append(item)
    return rest, taken
