"""A caller's request, checked and converted to the columns of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engines.policies import VLLM
from kvsim.records.samples import MAX_SAMPLES
from kvsim.stepping.tokens import PromptTree, names_content
from kvsim.trace import MAX_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.setup import Setup


@dataclass(frozen=True)
class Asked:
    """The arguments of add_request."""

    prompt_token_ids: Sequence[int] | None
    num_prompt_tokens: int | None
    max_tokens: int
    priority: int
    cache_salt: int | str | None
    lora_id: int | str | None
    session_id: int | None
    num_samples: int
    stop_after: int | None


@dataclass(frozen=True)
class NewRequest:
    """A request in the columns of a trace.

    Parameters
    ----------
    columns : its entries in the integer columns of a trace
    spans : its prompt, as (content, first token, number of tokens)
    salt : number of its combination of salt and adapter, 0 for neither
    max_tokens : largest number of output tokens
    """

    columns: dict[str, int]
    spans: list[tuple[int, int, int]]
    salt: int
    max_tokens: int

    def row(self, number: int) -> dict[str, int]:
        """Return the values that a replica reads for sample ``number``."""
        columns = self.columns
        return {
            "num_prompt_tokens": columns["num_prompt_tokens"],
            "max_tokens": columns["num_output_tokens"],
            "asked_tokens": self.max_tokens,
            "output_content_id": columns["output_content_id"] + number,
            "priority": columns["priority"],
            "cache_salt": self.salt,
            "lora": columns["lora_id"],
        }


class RequestReader:
    """Checks requests, and numbers contents, salts and adapters.

    Parameters
    ----------
    setup : setup of the replica that serves them
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._tree = PromptTree()
        self._next_content = 0
        self._codes: dict[str, dict[str, int]] = {"cache_salt": {}, "lora_id": {}}
        #: Salts and adapters as they were given, by their numbers.
        self.given: dict[str, list[int | str]] = {name: [0] for name in self._codes}
        self._salts: dict[tuple[int, int], int] = {}

    def read(self, asked: Asked) -> NewRequest:
        """Check a request and number its contents, salt and adapter. Mutates.

        Raises
        ------
        ValueError
            The message names the wrong value and what is allowed.
        """
        ids, prompt = self._prompt(asked)
        max_tokens = whole("max_tokens", asked.max_tokens, 1, MAX_TOKENS)
        output = max_tokens
        if asked.stop_after is not None:
            output = whole("stop_after", asked.stop_after, 1, max_tokens)
        samples = self._num_samples(asked.num_samples)
        salt, lora = (self._code(name, getattr(asked, name)) for name in self._codes)
        if lora and not self._setup.config.enable_lora:
            raise ValueError("lora_id: names an adapter, and enable_lora is off")
        columns = {
            "num_prompt_tokens": prompt,
            "num_output_tokens": output,
            "priority": whole("priority", asked.priority, -(2**62), 2**62),
            "cache_salt": salt,
            "lora_id": lora,
            "session_id": -1,
            "num_samples": samples,
            "max_tokens": max_tokens if output < max_tokens else 0,
        }
        if asked.session_id is not None:
            columns["session_id"] = whole("session_id", asked.session_id, 0, 2**62)
        fresh, self._next_content = self._next_content, self._next_content + 1 + samples
        columns["output_content_id"] = fresh + 1
        spans = [(fresh, 0, prompt)] if ids is None else self._tree.spans(ids, fresh)
        if lora:
            salt = self._salts.setdefault((salt, lora), -1 - len(self._salts))
        return NewRequest(columns, spans, salt, max_tokens)

    def _prompt(self, asked: Asked) -> tuple[Any, int]:
        """Return the token ids of a prompt, None if only its length is given, and its length."""
        given, number = asked.prompt_token_ids, asked.num_prompt_tokens
        if (given is None) == (number is None):
            raise ValueError("prompt_token_ids, num_prompt_tokens: give one of the two")
        if given is None:
            return None, whole("num_prompt_tokens", number, 1, MAX_TOKENS)
        ids = np.asarray(given)
        if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
            raise ValueError("prompt_token_ids: must be a list of whole numbers, at least one")
        ids = ids.astype(np.int64)
        if (ids < 0).any() and names_content(ids[ids < 0]) >= self._next_content:
            raise ValueError("prompt_token_ids: a negative id must be one of output_token_ids")
        return ids, whole("the length of prompt_token_ids", len(ids), 1, MAX_TOKENS)

    def _num_samples(self, given: int) -> int:
        """Return the number of samples, or refuse what the scheduler cannot serve."""
        samples = whole("num_samples", given, 1, MAX_SAMPLES)
        kind = self._setup.scheduler_type
        if samples > 1 and (kind.rules_of != VLLM or self._setup.config.use_beam_search):
            raise ValueError(
                f"num_samples: is {samples}, and an engine under scheduler "
                f"{self._setup.scheduler!r} serves one sample per request; vllm serves more"
            )
        return samples

    def _code(self, name: str, given: int | str | None) -> int:
        """Return the number of a salt or an adapter, 0 for none. Mutates."""
        if given is None or given in (0, ""):
            return 0
        if not isinstance(given, int | str) or (isinstance(given, int) and given < 0):
            raise ValueError(f"{name}: is {given!r}, must be a text or a number from 1 on")
        codes, named = self._codes[name], self.given[name]
        if str(given) not in codes:
            codes[str(given)] = len(named)
            named.append(given)
        return codes[str(given)]


def whole(name: str, given: object, least: int, most: int) -> int:
    """Return a whole number within its limits.

    Raises
    ------
    ValueError
        The message names the value and the limits.
    """
    is_whole = isinstance(given, int | np.integer) and not isinstance(given, bool)
    if not is_whole or not least <= given <= most:  # type: ignore[operator]
        raise ValueError(f"{name}: is {given!r}, must be a whole number from {least} to {most:,}")
    return int(given)  # type: ignore[call-overload,no-any-return]
