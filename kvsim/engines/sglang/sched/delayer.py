"""Settings of SGLang's prefill delayer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.delayer import Delayer


@dataclass(frozen=True)
class DelayerSettings:
    """Limits of the delay of prefills; names are SGLang's, less the prefix ``prefill_delayer_``.

    With ``queue_min_ratio`` None, prefills are delayed only for places in the running batch.
    """

    token_usage_low_watermark: float | None = None
    queue_min_ratio: float | None = None
    max_delay_ms: float = 5000.0

    def init_state(self, delayer: Delayer) -> None:
        """Write the limits into a free record."""
        delayer.is_on = True
        delayer.low_usage = self.token_usage_low_watermark or 0.0
        delayer.queue_ratio = self.queue_min_ratio or 0.0
        delayer.most_waited = self.max_delay_ms / 1000
