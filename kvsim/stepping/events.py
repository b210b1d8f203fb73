"""The KV cache events of an engine that is stepped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kvsim.engine.event_names import RunNames

if TYPE_CHECKING:
    from kvsim.config import Config
    from kvsim.engine.setup import Setup
    from kvsim.stepping.growing import GrowingContents, GrowingTrace

#: Function of (row, first, stop) that returns the ids of these tokens of a request.
TokenIds: TypeAlias = Callable[[int, int, int], list[int]]


def has_events(config: Config) -> bool:
    """Return True if a configuration enables KV cache events."""
    asked = config.kv_events_config
    return asked is not None and asked.enable_kv_cache_events and asked.publisher != "null"


class StepNames(RunNames):
    """Names of groups, adapters and tokens of requests that arrive while the engine runs."""

    def __init__(
        self,
        setup: Setup,
        contents: GrowingContents,
        tokens: TokenIds,
        requests: GrowingTrace,
        request_of: Sequence[int],
    ) -> None:
        super().__init__(setup, contents, contents)  # type: ignore[arg-type]
        self._tokens, self._requests, self._request_of = tokens, requests, request_of

    def lora(self, row: int) -> tuple[int | None, str | None]:
        number, _ = super().lora(row)
        if number is None:
            return None, None
        name = self._requests.given("lora_id", self._request_of[row])
        return number, name if isinstance(name, str) else f"lora{name}"

    def salt(self, row: int) -> int | str:
        return self._requests.given("cache_salt", self._request_of[row])

    def token_ids(self, row: int, first: int, stop: int) -> list[int]:
        return self._tokens(row, first, stop)
