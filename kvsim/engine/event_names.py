"""The fields of a run's KV cache events, except keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.engine.contents import Contents
    from kvsim.engine.setup import Setup
    from kvsim.trace import Trace

#: Upper bound of the stand-ins for token ids.
NUM_TOKEN_IDS = 2**31
#: Difference between the stand-ins of two consecutive contents at the same position.
BETWEEN_CONTENTS = 1_000_003


class RunNames:
    """Names of a run's groups, adapters and tokens.

    Parameters
    ----------
    token_ids : True if events have the ids of their tokens
    """

    def __init__(
        self, setup: Setup, trace: Trace, contents: Contents, *, token_ids: bool = False
    ) -> None:
        latent = all(layer.num_tensors == 1 for layer in setup.kv_config.layout.layers)
        self._trace, self._loras = trace, contents.lists.get("lora")
        self._tells_tokens = token_ids
        self.kinds = [
            (spec.event_names[latent], spec.event_window)
            for spec in getattr(setup.kv, "groups", ())
        ]

    def lora(self, row: int) -> tuple[int | None, str | None]:
        """Return number and name of a request's adapter; both None if it has none."""
        number = 0 if self._loras is None else int(self._loras[row])
        return (number, f"lora{number}") if number else (None, None)

    def extra_keys(self, row: int, first: int, stop: int) -> list[Any] | None:
        """Return the adapter's name and, for the first block, the cache salt, or None."""
        del stop
        name, salt = self.lora(row)[1], self.salt(row)
        keys: list[Any] = [] if name is None else [name]
        if salt and first == 0:
            keys.append(str(salt))
        return keys or None

    def salt(self, row: int) -> int | str:
        """Return a request's cache salt, 0 without one."""
        return int(self._trace.cache_salt[row])

    def token_ids(self, row: int, first: int, stop: int) -> list[int]:
        """Return stand-ins for token ids, equal for equal content."""
        if not self._tells_tokens:
            return []
        output = int(self._trace.output_content_id[row])
        ids, begin = [], 0
        for content, start, count in [*self._trace.segments_of(row), (output, 0, stop)]:
            low, high = max(first - begin, 0), min(stop - begin, count)
            base = content * BETWEEN_CONTENTS + start
            ids += [(base + place) % NUM_TOKEN_IDS for place in range(low, high)]
            begin += count
        return ids
