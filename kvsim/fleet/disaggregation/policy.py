"""Disaggregation policies: where the prompt and the output of a request are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, get_args

from kvsim.fleet.parameters import Share, Weight, Whole  # noqa: TC001 - checked when one is made
from kvsim.parametric import Parametric
from kvsim.registry import Registry

if TYPE_CHECKING:
    from kvsim.fleet.disaggregation.placement_context import PlacementContext


#: Placement of a request: ``apart`` computes its prompt on a prefill replica and its output on a
#: decode replica; ``decode`` and ``prefill`` serve all of it on one replica of that pool.
Place = Literal["apart", "decode", "prefill"]


class Disaggregation(Parametric, ABC):
    """Places each request, once its decode replica is chosen.

    Attributes
    ----------
    stays : the policy may return ``prefill``
    """

    stays: bool = False

    @abstractmethod
    def place(self, request: PlacementContext) -> Place:
        """Return where a request is served; ``prefill`` only for one that ``can_stay``."""


#: Factories take keyword parameters only.
DISAGGREGATIONS: Registry[Disaggregation] = Registry(
    "disaggregation", None, Disaggregation, "kvsim.disaggregations"
)


def placed(rule: Disaggregation, request: PlacementContext) -> Place:
    """Return a policy's placement of a request.

    Raises
    ------
    ValueError
        If the policy returns no placement, or one that cannot serve this request.
    """
    place = rule.place(request)
    said = f"disaggregation {type(rule).__name__} answered {place!r}"
    if place not in get_args(Place):
        raise ValueError(f"{said} (one of: {', '.join(get_args(Place))})")
    if place == "prefill" and not request.can_stay:
        why = "its can_stay is False" if rule.stays else "the rule's stays must be True for that"
        raise ValueError(f"{said}: {why}")
    return place


@DISAGGREGATIONS.register("always")
class Always(Disaggregation):
    """Disaggregate every prompt, as the plain proxies of the engines do."""

    def place(self, request: PlacementContext) -> Place:
        del request
        return "apart"


@DISAGGREGATIONS.register("llm-d")
class Uncached(Disaggregation):
    """Disaggregate a prompt if the decode replica lacks at least ``tokens`` tokens of it.

    Source: the disaggregation handler of llm-d-inference-scheduler, 520af478; its deployments use
    16.

    Parameters
    ----------
    tokens : smallest number of missing tokens; 0 disaggregates no prompt
    """

    def __init__(self, *, tokens: Whole = 16) -> None:
        self._tokens = tokens

    def place(self, request: PlacementContext) -> Place:
        left = request.num_prompt_tokens - request.num_cached_tokens
        return "apart" if 0 < self._tokens <= left else "decode"


@DISAGGREGATIONS.register("dynamo")
class Conditional(Disaggregation):
    """Disaggregate prompts that are long, or of which the decode replica has little cached.

    The decode replica computes a prompt if fewer than ``tokens`` tokens are left to compute, and
    these are less than ``share`` of the prompt. With ``prefill-busy``, another rule applies: it
    computes a prompt if every prefill replica has more than ``prefill-busy`` full steps of pending
    prompt tokens. A busy decode replica computes no prompts.

    Source: Dynamo's lib/kv-router/src/conditional_disagg.rs, 088ca50. There, ``prefill-busy`` is
    16 if it is used, and only the chosen prefill worker is checked.

    Parameters
    ----------
    tokens : limit on the tokens left to compute
    share : limit on the share of the prompt that is left to compute
    prefill_busy : full steps of pending prompt tokens from which a prefill replica is busy; 0: the
        rule by tokens and share
    decode_busy : ratio of the tokens of the requests at the decode replica to its KV slots, above
        which it is busy; 0 for never
    """

    def __init__(
        self,
        *,
        tokens: Whole = 2048,
        share: Share = 0.7,
        prefill_busy: Weight = 0.0,
        decode_busy: Weight = 0.0,
    ) -> None:
        self._tokens = tokens
        self._share = share
        self._prefill_busy = prefill_busy
        self._decode_busy = decode_busy

    def place(self, request: PlacementContext) -> Place:
        most = self._decode_busy * request.num_kv_tokens
        if self._decode_busy and request.num_scheduled_tokens > most:
            return "apart"
        return "decode" if self._is_for_decode(request) else "apart"

    def _is_for_decode(self, request: PlacementContext) -> bool:
        if self._prefill_busy:
            most = self._prefill_busy * request.max_num_batched_tokens
            return request.num_pending_tokens > most
        left = request.num_prompt_tokens - request.num_cached_tokens
        return left < self._tokens and left / request.num_prompt_tokens < self._share


@DISAGGREGATIONS.register("splitwise")
class MixedPool(Disaggregation):
    """Splitwise's mixed pool: replicas of either pool help the other pool when it is full.

    The decode replica serves the whole request if every prefill replica has pending prompts, and
    the least loaded would have more than ``tokens`` pending tokens with this prompt. Otherwise a
    prefill replica computes the prompt. It also decodes if the decode replica, with the requests on
    its way, lacks KV slots or has ``max_num_seqs`` requests. A replica is mixed while it serves
    whole requests.

    Source: Splitwise (Patel et al., ISCA 2024, section 4), and the mixed pool scheduler of its
    simulator. There a third replica may help, and the KV moves on from it; here the helping replica
    serves the request to its end.

    Parameters
    ----------
    tokens : limit on the pending prompt tokens of the least loaded prefill replica
    """

    stays = True

    def __init__(self, *, tokens: Whole = 8192) -> None:
        self._tokens = tokens

    def place(self, request: PlacementContext) -> Place:
        prompt, pending = request.num_prompt_tokens, request.num_pending_tokens
        if pending and pending + prompt > self._tokens:
            return "decode"
        is_full = request.num_scheduled >= request.max_num_seqs
        is_full |= request.num_scheduled_tokens + prompt > request.num_kv_tokens
        return "prefill" if is_full and request.can_stay else "apart"
