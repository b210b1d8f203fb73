"""Effects of speculative decoding on scheduler and KV cache: vLLM's SpeculativeConfig."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, get_args, get_type_hints

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from kvsim.allowed import allowed
from kvsim.errors import unknown_name
from kvsim.json_object import read_object

Method = Literal["ngram", "suffix", "draft_model", "eagle", "eagle3", "mtp", "dflash"]

METHODS: tuple[str, ...] = get_args(Method)
#: Methods with a drafter that reads the target's hidden states.
READ_HIDDEN_STATES = ("eagle", "eagle3", "mtp", "dflash")
#: Those of them that recompute the last block of a hit, or hash each block with the tokens after
#: it.
LACK_THE_NEXT = ("eagle", "eagle3", "mtp")
#: Methods that look drafts up in earlier text; they have no weights.
LOOK_UP = ("ngram", "suffix")

#: Most drafts per step and request; vLLM sets no limit.
MAX_DRAFTS = 64

_WITHOUT_EFFECT = """
prompt_lookup_max prompt_lookup_min draft_tensor_parallel_size tensor_parallel_size quantization
max_model_len revision code_revision disable_padded_drafter_batch draft_load_config
draft_sample_method moe_backend attention_backend enforce_eager use_local_argmax_reduction
suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor
suffix_decoding_min_token_prob
"""
#: Keys of vLLM's object that change no number here.
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())


#: Options of speculation.
SPECULATION_FLAGS = ("num_lookahead_tokens", "speculative_config")
#: Options that a KV-cache manager without slots for drafts ignores, with the reason.
KEEPS_NO_DRAFTS = {"num_lookahead_tokens": "it keeps no slots for drafts"}


class Lookahead(BaseModel, defer_build=True):
    """Slots of a request beyond its scheduled tokens, if configured without speculation."""

    num_lookahead_tokens: Annotated[int, Field(ge=0)] = Field(
        0, description="slots to allocate for draft tokens"
    )


@dataclass(frozen=True, kw_only=True)
class DraftSlots:
    """Slots and keys of blocks under speculation, as a KV-cache manager sees them.

    Parameters
    ----------
    num_lookahead_tokens : slots of a request beyond its scheduled tokens
    num_draft_tokens : most draft tokens of a request in a step
    num_hash_lookahead_tokens : tokens after a block that its key covers (lookahead hashes)
    num_unnamed_tokens : last computed tokens of a request that no key covers yet
    num_prefill_lookahead_tokens : tokens that a drafter reads beyond a chunk of a prompt
    drops_last_block : the last block of a hit is computed again (EAGLE without lookahead hashes)
    draft_groups : KV-cache groups of the drafter, which alone drop the last block of a hit; empty:
        all groups drop it
    """

    num_lookahead_tokens: int = 0
    num_draft_tokens: int = 0
    num_hash_lookahead_tokens: int = 0
    num_unnamed_tokens: int = 0
    num_prefill_lookahead_tokens: int = 0
    drops_last_block: bool = False
    draft_groups: tuple[int, ...] = ()

    @property
    def num_slots_ahead(self) -> int:
        """Largest number of slots that a request owns beyond its tokens."""
        return self.num_lookahead_tokens + self.num_draft_tokens


@dataclass(frozen=True)
class SpeculativeConfig:
    """Number of drafted tokens, and the method; names and defaults are vLLM's.

    Parameters
    ----------
    method : drafting method
    num_speculative_tokens : drafts per step and request
    num_speculative_tokens_per_batch_size : optional rows (first, last, drafts): the drafts of steps
        with first to last requests
    mtp_modules : prediction modules of an MTP head
    parallel_drafting : all drafts come from one pass of the drafter
    model : the drafter, for methods that have weights of their own
    rejection_sample_method : ``synthetic`` imposes one of the three acceptances below
    synthetic_acceptance_rates : per position, the share of verifications that accept this draft
        and all drafts before it
    synthetic_acceptance_length : mean tokens of a verification, the target's own token included
    synthetic_acceptance_rate : mean share of the drafts that are accepted
    disable_lookahead_block_hashes : block keys cover no tokens after the block
    disable_eagle_block_drop : no block of a hit is computed again, even without lookahead hashes
    """

    method: Method
    num_speculative_tokens: int
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] = ()
    mtp_modules: int = 1
    parallel_drafting: bool = False
    disable_lookahead_block_hashes: bool = False
    disable_eagle_block_drop: bool = False
    model: str | None = None
    rejection_sample_method: str = "strict"
    synthetic_acceptance_rates: tuple[float, ...] = ()
    synthetic_acceptance_length: float | None = None
    synthetic_acceptance_rate: float | None = None

    @classmethod
    def of(cls, given: object) -> SpeculativeConfig:
        """Read vLLM's JSON object, as text or as a dict.

        Raises
        ------
        ValueError
            If the object is malformed, or has unknown keys or values out of range.
        """
        if isinstance(given, SpeculativeConfig):
            return given
        example = '{"method": "ngram", ...}'
        values = read_object(given, cls, "speculative setting", example, WITHOUT_EFFECT)
        values["method"] = _method(values)
        if values["method"] == "mtp":
            values.setdefault("num_speculative_tokens", values.get("mtp_modules", 1))
        if "num_speculative_tokens" not in values:
            raise ValueError("num_speculative_tokens is missing: give the drafts per step")
        for key in ("synthetic_acceptance_rates", "num_speculative_tokens_per_batch_size"):
            values[key] = _tuples(key, values.get(key, ()))
        try:
            config = TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            what = allowed(get_type_hints(cls, include_extras=True)[name])
            raise ValueError(f"{name} is {first['input']!r}: {what or first['msg']}") from None
        config.check()
        return config

    def check(self) -> None:
        """Raise ValueError for the first wrong value, with its key and what is allowed."""
        most = self.num_speculative_tokens
        _whole("num_speculative_tokens", most, 1, MAX_DRAFTS)
        _whole("mtp_modules", self.mtp_modules, 1, MAX_DRAFTS)
        for row in self.num_speculative_tokens_per_batch_size:
            for number, least in zip(row, (1, 1, 0), strict=True):
                _whole("num_speculative_tokens_per_batch_size", number, least, 2**31)
            _whole("num_speculative_tokens_per_batch_size: drafts", row[2], 0, most)
        if self.method == "draft_model" and self.model is None:
            raise ValueError("model is missing: name the drafter")
        self._check_acceptance()

    def _check_acceptance(self) -> None:
        rates, length = self.synthetic_acceptance_rates, self.synthetic_acceptance_length
        if rates:
            if len(rates) != self.num_speculative_tokens:
                raise ValueError(
                    f"synthetic_acceptance_rates: {len(rates)} rates for "
                    f"{self.num_speculative_tokens} drafts, must be one for each"
                )
            falling = all(a >= b for a, b in pairwise(rates))
            if not (falling and rates[-1] >= 0 and rates[0] <= 1):
                raise ValueError(
                    "synthetic_acceptance_rates: must be 0 to 1 and never rise, as each rate "
                    f"includes the acceptance of all earlier drafts, got {list(rates)}"
                )
        if length is not None and not 1 <= length <= self.num_speculative_tokens + 1:
            raise ValueError(
                f"synthetic_acceptance_length is {length}: must be 1 to "
                f"{self.num_speculative_tokens + 1}, the drafts and the target's own token"
            )
        rate = self.synthetic_acceptance_rate
        if rate is not None and not 0 <= rate <= 1:
            raise ValueError(f"synthetic_acceptance_rate is {rate}: must be 0 to 1")
        given = (bool(rates), length is not None, rate is not None)
        if sum(given) > 1:
            raise ValueError("synthetic_acceptance_*: give one of rates, length and rate")

    @property
    def has_drafter(self) -> bool:
        """Return True if drafts come from a model, not from the text."""
        return self.method not in LOOK_UP

    @property
    def drafts_at_once(self) -> bool:
        """Return True if one pass of the drafter gives all drafts."""
        return self.parallel_drafting or self.method == "dflash"

    @property
    def num_draft_tokens(self) -> int:
        """Largest number of draft tokens per step and request."""
        return self.num_speculative_tokens

    @property
    def num_unnamed_tokens(self) -> int:
        """Number of last computed tokens of a request that no key covers yet."""
        return max(self.num_prefill_lookahead_tokens - 1, 0)

    @property
    def num_lookahead_tokens(self) -> int:
        """Slots of a request beyond its scheduled tokens."""
        if self.method in LOOK_UP:
            return 0
        return self.num_speculative_tokens + (self.method == "dflash")

    @property
    def num_prefill_lookahead_tokens(self) -> int:
        """Tokens that the drafter reads beyond a chunk of a prompt."""
        if self.method not in READ_HIDDEN_STATES:
            return 0
        several = self.method == "mtp" and self.mtp_modules > 1 and self.num_speculative_tokens > 1
        return self.num_speculative_tokens if several else 1

    @property
    def num_hash_lookahead_tokens(self) -> int:
        """Tokens after a block that its key covers."""
        if self.method not in LACK_THE_NEXT or self.disable_lookahead_block_hashes:
            return 0
        return 0 if self.disable_eagle_block_drop else self.num_prefill_lookahead_tokens

    @property
    def with_connector(self) -> Self:
        """The settings beside a KV connector, whose keys cover no later tokens."""
        return replace(self, disable_lookahead_block_hashes=True)

    @property
    def drops_last_block(self) -> bool:
        """Return True if the last block of a hit is computed again."""
        if self.method not in LACK_THE_NEXT or self.disable_eagle_block_drop:
            return False
        return self.disable_lookahead_block_hashes

    @property
    def num_draft_slots(self) -> int:
        """Input slots per request that drafting takes from a step's budget."""
        if self.method == "draft_model":
            return self.num_speculative_tokens if self.parallel_drafting else 1
        if self.parallel_drafting and self.method in LACK_THE_NEXT:
            return self.num_speculative_tokens - 1
        return 0


def _method(values: dict[str, Any]) -> Any:
    """Return the method; if it is not given, derive it from the drafter's name, as vLLM does."""
    method, model = values.get("method"), str(values.get("model", ""))
    if method is None:
        if model.strip("[]") in LOOK_UP:
            return model.strip("[]")
        if not model:
            raise ValueError(f"method is missing (one of: {', '.join(METHODS)})")
        named = [m for m in ("eagle3", "eagle", "dflash", "mtp") if m in model.lower()]
        return named[0] if named else "draft_model"
    if str(method).endswith("_mtp"):
        return "mtp"
    if method not in METHODS:
        raise unknown_name("method", str(method), METHODS)
    return method


def _tuples(key: str, given: Any) -> tuple[Any, ...]:
    """Return a list of lists or of numbers as tuples."""
    if not isinstance(given, list | tuple):
        raise ValueError(f"{key}: must be a list, not {given!r}")
    items = tuple(tuple(item) if isinstance(item, list) else item for item in given)
    if key == "num_speculative_tokens_per_batch_size":
        for item in items:
            if not (isinstance(item, tuple) and len(item) == 3):
                raise ValueError(f"{key}: must be [first, last, drafts] each, not {item!r}")
    if key == "synthetic_acceptance_rates":
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int | float):
                raise ValueError(f"{key}: must be numbers, not {item!r}")
    return items


def _whole(key: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{key} is {value!r}: must be a whole number, {least} to {most}")
