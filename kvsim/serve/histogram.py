"""A histogram of Prometheus that counts its values in bulk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client import Metric
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from prometheus_client.registry import CollectorRegistry

#: Maximum number of values that wait to be counted.
MOST_WAITING = 1000


class Histogram:
    """The histogram of prometheus_client, at a tenth of its cost per value.

    An engine adds a value per token, and adds those of a step together at its end.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: Mapping[str, str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._text, self._labels = name, text, dict(labels)
        self._bounds = np.array([*bounds, np.inf])
        self._counts = np.zeros(len(self._bounds), np.int64)
        self._sum, self._created = 0.0, time.time()
        self._waiting: list[float] = []
        registry.register(self)

    def observe(self, value: float) -> None:
        self.observe_all([value])

    def observe_all(self, values: Sequence[float]) -> None:
        self._waiting += values
        if len(self._waiting) >= MOST_WAITING:
            self._count()

    def _count(self) -> None:
        values, self._waiting = self._waiting, []
        places = np.searchsorted(self._bounds, values)
        self._counts += np.bincount(places, minlength=len(self._bounds))
        # Added one after another, as single observations would be.
        self._sum = float(np.add.accumulate([self._sum, *values])[-1])

    def collect(self) -> Iterable[Metric]:
        if self._waiting:
            self._count()
        metric = Metric(self._name, self._text, "histogram")
        totals = np.cumsum(self._counts)
        for bound, total in zip(self._bounds, totals, strict=True):
            text = floatToGoString(bound)  # type: ignore[no-untyped-call]
            labels = self._labels | {"le": text}
            metric.add_sample(f"{self._name}_bucket", labels, float(total))
        metric.add_sample(f"{self._name}_count", self._labels, float(totals[-1]))
        metric.add_sample(f"{self._name}_sum", self._labels, self._sum)
        metric.add_sample(f"{self._name}_created", self._labels, self._created)
        return [metric]
