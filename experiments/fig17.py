"""Fig. 17 of the PagedAttention paper: a chatbot, OPT-13B.

Prompts are the last 1,024 tokens of the conversation; outputs have at most 1,024. The buddy
allocator takes 2,048 slots for any reservation with such a prompt, so the three Orca variants are
equal if every prompt has 1,024 tokens. Bands, stated before the first run: on chats their sustained
rates are within 3 % of each other, and vLLM's is 1.5 to 2.5 times as high (in the paper, 2 times).

Missed band: vLLM's ratio. vLLM runs 12 to 13 requests, Orca 7; but vLLM reads 1,200 tokens of each
through the slower kernel (43 ms per step against 34), so 1.8 times the requests give 1.35 times the
rate. The paper's step time hardly depended on the batch. As rows show, the band holds with 0.05 s
more per step, at any batch size (1.50; with 0.1 s, 1.55), but not without the kernel's overhead
(1.43).

    python -m experiments.fig17 [--quick] [--out DIR]
"""

from __future__ import annotations

from typing import Any

import numpy as np

import workloads
from experiments._setting import (
    HOST_SECONDS,
    ORCAS,
    PAGED_OVERHEAD,
    Check,
    Figure,
    lines,
    main,
    normalized_latency,
    serve,
    sustained_rate,
)
from kvsim.testing import equal_tables
from kvsim.trace import Trace

#: Long conversations, as in the paper: most prompts are cut.
CHAT = {"turns": 40.0, "system": 0, "user": 161.31, "output": 337.99, "sigma": 0.72}


#: Possible causes of vLLM's miss: host seconds per step, and the kernel's overhead.
TRIED = {
    "no kernel overhead": (HOST_SECONDS, 0.0),
    "0.05 s more per step": (HOST_SECONDS + 0.05, PAGED_OVERHEAD),
    "0.1 s more per step": (HOST_SECONDS + 0.1, PAGED_OVERHEAD),
}


def full_prompts(num_requests: int) -> Trace:
    """Return requests with prompts of 1,024 tokens, and ShareGPT's outputs up to 1,024."""
    drawn = workloads.sharegpt(num_requests=num_requests, request_rate=1.0, seed=0)
    output = np.minimum(drawn.num_output_tokens, 1024)
    return Trace.from_arrays(drawn.arrival_time, np.full(num_requests, 1024), output)


def measure(quick: bool) -> Figure:
    """Compare the Orca variants with each other, and vLLM with them."""
    n = 300 if quick else 1500
    full = full_prompts(n)
    tables = [serve(system, full).requests for system in ORCAS]
    same = all(equal_tables(tables[0], table) for table in tables[1:])
    checks = [Check("full prompts: the variants coincide", float(same), 1, 1, 1)]
    chat = workloads.multi_turn(num_requests=n, request_rate=1.0, max_prompt=1024, seed=0, **CHAT)
    rates = {system: sustained_rate(system, chat) for system in (*ORCAS, "vLLM")}
    slowest, fastest = (f(rates[system] for system in ORCAS) for f in (min, max))
    checks.append(Check("chats: fastest / slowest Orca", fastest / slowest, 1, 1, 1.03))
    checks.append(Check("vLLM / fastest Orca", rates["vLLM"] / fastest, 2, 1.5, 2.5))
    for name, (host, overhead) in TRIED.items():
        cost = f"roofline+host-seconds={host}+paged-overhead={overhead}"
        ours, *theirs = (sustained_rate(s, chat, cost_model=cost) for s in ("vLLM", *ORCAS))
        checks.append(Check(f"vLLM / fastest Orca, {name}", ours / max(theirs)))
    rows, curves = [{"load": "sustained", **rates}], {}
    if not quick:
        for system in rates:
            loads = np.array([0.2, 0.4, 0.6, 0.8, 1.0]) * rates["vLLM"]
            results = [serve(system, chat.with_request_rate(rate)) for rate in loads]
            curves[system] = (loads, [normalized_latency(result) for result in results])

    def draw(picture: Any) -> None:
        axes = picture.subplots()
        lines(axes, curves)
        axes.set_xlabel("request rate, 1/s")
        axes.set_ylabel("normalised latency, s/token")
        axes.set_ylim(0, 1)

    return Figure("Fig. 17: chatbot", checks, rows, None if quick else draw)


if __name__ == "__main__":
    main("fig17", measure, __doc__)
