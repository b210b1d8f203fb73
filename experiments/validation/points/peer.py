"""Another simulator's estimates of the same points: aiconfigurator 0.12.0's ``cli_estimate``.

Asked for 14 to 26 points of each group, with the newest of its tables, means of the real lengths
and the real KV dtype. Median absolute error, mean absolute error, median error of TPOT; median
absolute error of TTFT; percent.
"""

from __future__ import annotations

from typing import NamedTuple


class Peer(NamedTuple):
    """Errors of the other simulator."""

    tpot: tuple[float, float, float]
    ttft: float


#: By model, format of the weights and card.
PEER = {
    ("qwen3-32b", "bf16", "h100-sxm"): Peer((9.7, 10.5, -9.7), 29),
    ("llama-3.1-70b", "fp8-static", "h100-sxm"): Peer((14.4, 14.1, -14.4), 37),
    ("llama-3.1-70b", "fp8-static", "h200-sxm"): Peer((6.5, 6.9, -6.5), 13),
    ("llama-3.1-70b", "fp8-static", "b200"): Peer((7.3, 9.4, 1.1), 15),
    ("llama-3.1-70b", "nvfp4", "b200"): Peer((9.2, 9.5, -6.6), 19),
    ("gpt-oss-120b", "mxfp4", "h100-sxm"): Peer((6.0, 22.5, -4.6), 40),
    ("gpt-oss-120b", "mxfp4", "h200-sxm"): Peer((6.1, 5.2, -4.3), 36),
    ("gpt-oss-120b", "mxfp4", "b200"): Peer((19.3, 17.8, 19.3), 48),
    ("minimax-m2.5", "fp8-block", "h100-sxm"): Peer((34, 37, 34), 38),
    ("minimax-m2.5", "fp8-block", "h200-sxm"): Peer((42, 38, 42), 7),
    ("minimax-m2.5", "fp8-block", "b200"): Peer((119, 123, 119), 22),
    ("minimax-m2.5", "fp8-block", "b300"): Peer((138, 139, 138), 47),
    ("minimax-m2.5", "nvfp4", "b200"): Peer((15.8, 15.2, -15.8), 37),
    ("minimax-m2.5", "nvfp4", "b300"): Peer((14.6, 14.4, -14.6), 58),
    ("kimi-k2.5", "int4", "h200-sxm"): Peer((23.8, 23.4, 23.8), 18),
    ("kimi-k2.5", "int4", "b200"): Peer((8.9, 9.5, 0.4), 18),
    ("kimi-k2.5", "nvfp4", "b200"): Peer((5.5, 7.5, 1.1), 26),
    ("kimi-k2.5", "nvfp4", "b300"): Peer((43, 43, 43), 32),
}
#: All 321 points that it was asked for.
ALL = Peer((15.7, 33.3, 1.7), 27.5)
