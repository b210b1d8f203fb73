"""Cold start: the time until a new replica accepts requests, a number or the sum of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.parameters import Delay, Limit  # noqa: TC001 - checked when one is made
from kvsim.registry import Registry, parse_spec

if TYPE_CHECKING:
    from collections.abc import Callable


class Parts:
    """The sum ``node + image + weights / bandwidth + compile + graphs + first-request``, seconds.

    Source: vLLM's start of Llama-3-8B takes 19.4 s for compilation (TorchDynamo 4.6, Inductor 14.8)
    and 15 s for CUDA graphs (vllm issue 11005; 7.5 and 17 s with a warm cache, issue 20264). 130 GB
    of weights are read in 26 s, or 5 GB/s. On one cluster a node took 35 to 65 s, its image 300 s.

    Parameters
    ----------
    node, image : seconds to get a node, and to load the container's image onto it
    bandwidth : GB/s at which all GPUs of a replica together read its weights
    compile, graphs : seconds to compile the model, and to capture CUDA graphs
    first_request : seconds of warm-up by the first request
    """

    def __init__(
        self,
        *,
        node: Delay = 0.0,
        image: Delay = 0.0,
        bandwidth: Limit = 5.0,
        compile: Delay = 19.4,
        graphs: Delay = 15.0,
        first_request: Delay = 0.0,
    ) -> None:
        self._fixed = node + image + compile + graphs + first_request
        self._bandwidth = bandwidth * 1e9

    def seconds(self, weight_bytes: int) -> float:
        """Return the seconds of a cold start with ``weight_bytes`` of weights."""
        return self._fixed + weight_bytes / self._bandwidth


#: Factories take keyword parameters only.
COLD_STARTS: Registry[Parts] = Registry("cold start", None, Parts)
COLD_STARTS.register("parts")(Parts)


def make_cold_start(given: float | str) -> Callable[[int], float]:
    """Return a function from the bytes of weights to the seconds of a cold start.

    ``given`` is ``SECONDS`` or ``parts[+KEY=VALUE]...``.

    Raises
    ------
    ValueError
        For any other text, an unknown part, or a value of the wrong type.

    Examples
    --------
    >>> make_cold_start(60.0)(0)
    60.0
    >>> round(make_cold_start("parts+node=50+bandwidth=2")(16_000_000_000), 1)
    92.4
    """
    if not isinstance(given, str):
        return lambda weight_bytes: given
    name, params = parse_spec(given)
    if name != "parts":
        raise ValueError(f"cold_start: {given!r}: must be seconds, at least 0, or parts+KEY=VALUE")
    return COLD_STARTS.create(name, **params).seconds
