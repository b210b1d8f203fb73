"""CUDA's compute capability of a card, by its name; vLLM selects kernels by it."""

from __future__ import annotations

#: Prefixes of card names, and the major number of the capability (NVIDIA's table of CUDA GPUs): 7
#: Volta and Turing, 8 Ampere and Ada, 9 Hopper, 10 Blackwell's data-centre cards, 12 its other
#: cards. The first match counts, so a longer prefix comes first. AMD's cards have none.
CAPABILITIES = (
    *((name, 7) for name in ("v100", "t4", "rtx-20", "titan-rtx", "quadro-rtx")),
    *((name, 12) for name in ("rtx-50", "rtx-pro", "gb10")),
    *((name, 10) for name in ("b100", "b200", "b300", "gb200", "gb300")),
    *((name, 9) for name in ("h100", "h200", "h800", "h20", "gh200")),
    *((name, 8) for name in ("a100", "a800", "a10", "a30", "a40", "rtx-a", "rtx-30", "rtx-40")),
    *((name, 8) for name in ("l4", "l20", "l40", "rtx-6000", "rtx-5000-ada")),
)


def capability(name: str) -> int | None:
    """Return the major number of a card's compute capability, None if unknown.

    Parameters
    ----------
    name : name in the catalogue
    """
    return next((number for begin, number in CAPABILITIES if name.startswith(begin)), None)
