"""Chooses the constants of B1 on the runs of `precise` alone, one after another.

Host seconds per step: the least squares of relative errors of TPOT over the eight stages. Front
end: the mean difference of TTFT. Then, with both fixed, it tells what the age of the router's
metrics does to the output rate.

    python -m experiments.validation.llmd_routers.fit [--data FOLDER]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.validation.data import command
from experiments.validation.llmd_routers.study import (
    AS_DEPLOYED,
    FRONT_END,
    HOST_SECONDS,
    measured,
    serve,
    trace_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from experiments.validation.llmd_routers.study import Stage

HOSTS = (1.5e-3, 2e-3, 2.5e-3, 3e-3, 3.5e-3)
AGES = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)


def off(pairs: Iterable[tuple[float, float]]) -> float:
    """Return the root mean square of relative errors, percent."""
    return 100 * float(np.sqrt(np.mean([(ours / theirs - 1) ** 2 for theirs, ours in pairs])))


def main() -> None:
    """Print the error of every value that was tried."""
    parser = command("validation.llmd_routers.fit", __doc__)
    options = parser.parse_args()
    theirs, trace = measured(options.data)["precise"], trace_of()

    def pairs(found: dict[int, Stage], field: str) -> list[tuple[float, float]]:
        return [(getattr(theirs[r], field), getattr(found[r], field)) for r in found]

    for host in HOSTS:
        found = serve(trace, "precise", host=host)
        late = np.mean([a - b for a, b in pairs(found, "ttft")]) + FRONT_END
        print(
            f"host {1e3 * host} ms: TPOT {off(pairs(found, 'tpot')):.2f} %, front end {late:.3f} s"
        )
    for age in AGES:
        found = serve(trace, "precise", age=age)
        print(f"age {age} s: output rate {off(pairs(found, 'output_rate')):.2f} %")
    print(f"in use: {1e3 * HOST_SECONDS} ms, {FRONT_END} s, {AS_DEPLOYED} s")


if __name__ == "__main__":
    main()
