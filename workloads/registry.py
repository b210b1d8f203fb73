"""Workloads by name: from a text such as ``sharegpt+arrival=gamma+cv=3`` to a trace."""

from __future__ import annotations

from kvsim.registry import Registry, parse_spec
from kvsim.trace import Trace
from workloads.arrivals import ARRIVALS

#: Generators by their command-line names. Each takes num_requests, request_rate, seed and arrival.
WORKLOADS: Registry[Trace] = Registry("workload", "workloads", Trace, "kvsim.workloads")


def generate(spec: str, *, num_requests: int, request_rate: float, seed: int) -> Trace:
    """Generate the requests of a workload.

    Parameters
    ----------
    spec : ``NAME[+KEY=VALUE]...``
        A key is a parameter of the workload or of its arrival process; it overrides the arguments
        below.
    num_requests : number of requests
    request_rate : mean requests per second; ``inf`` sends everything at time 0
    seed : equal seeds give equal traces; the lengths do not depend on the rate

    Raises
    ------
    ValueError
        For an unknown workload or key, or a value of the wrong type or out of range.

    Examples
    --------
    >>> trace = generate("fixed+prompt=512", num_requests=3, request_rate=1.0, seed=0)
    >>> trace.num_prompt_tokens.tolist()
    [512, 512, 512]
    """
    name, keys = parse_spec(spec)
    known = WORKLOADS.parameters(name)
    process = keys.pop("arrival", None) or "poisson"
    of_process = set(ARRIVALS.parameters(process.partition("+")[0])) - set(known)
    for key in keys:
        if keys[key] is None:
            raise ValueError(f"{spec!r}: {key.replace('_', '-')} needs a value, as in KEY=VALUE")
    params: dict[str, object] = {"num_requests": num_requests, "request_rate": request_rate}
    params |= {"seed": seed, **{k: v for k, v in keys.items() if k not in of_process}}
    if "arrival" in known:
        extra = [f"+{k}={v}" for k, v in keys.items() if k in of_process]
        params["arrival"] = process + "".join(extra)
    try:
        return WORKLOADS.create(name, **params)
    except ValueError as error:
        said = str(error)
        raise ValueError(said if name in said else f"workload {name!r}: {said}") from None
