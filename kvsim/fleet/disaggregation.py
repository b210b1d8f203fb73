"""When the prompt of a request is computed apart from its output, and when where it will go on."""

from __future__ import annotations

from abc import ABC, abstractmethod

from kvsim.fleet.parameters import Share, Whole  # noqa: TC001 - checked when one is made
from kvsim.registry import Registry, parse_spec


class Disaggregation(ABC):
    """Decides request by request, once its decode replica is chosen.

    Attributes
    ----------
    asks : it wants to know how much of a prompt that replica's prefix cache holds
    """

    asks: bool = True

    @abstractmethod
    def is_apart(self, num_prompt_tokens: int, num_cached_tokens: int) -> bool:
        """Whether a prompt is computed on a prefill replica.

        Parameters
        ----------
        num_prompt_tokens : of the request
        num_cached_tokens : of these, what the decode replica's prefix cache holds
        """


#: Factories take keyword parameters only.
DISAGGREGATIONS: Registry[Disaggregation] = Registry(
    "disaggregation", None, Disaggregation, "kvsim.disaggregations"
)


def make_disaggregation(text: str) -> Disaggregation:
    """Make ``NAME[+KEY=VALUE]...``.

    Raises
    ------
    ValueError
        For an unknown name, an unknown parameter, or a value of the wrong type.
    """
    name, params = parse_spec(text)
    return DISAGGREGATIONS.create(name, **params)


@DISAGGREGATIONS.register("always")
class Always(Disaggregation):
    """Every prompt is computed apart, as vLLM's and SGLang's plain proxies have it."""

    asks = False

    def is_apart(self, num_prompt_tokens: int, num_cached_tokens: int) -> bool:  # noqa: D102
        del num_prompt_tokens, num_cached_tokens
        return True


@DISAGGREGATIONS.register("llm-d")
class Uncached(Disaggregation):
    """Prompts of which the decode replica lacks at least so many tokens.

    Source: the disaggregation handler of llm-d-inference-scheduler, 520af478, whose deployments
    take 16.

    Parameters
    ----------
    tokens : that it must lack
    """

    def __init__(self, *, tokens: Whole = 16) -> None:
        self._tokens = tokens

    def is_apart(self, num_prompt_tokens: int, num_cached_tokens: int) -> bool:  # noqa: D102
        return num_prompt_tokens - num_cached_tokens >= self._tokens


@DISAGGREGATIONS.register("dynamo")
class Conditional(Disaggregation):
    """Prompts that are long, or of which little is cached, where they are decoded.

    Computed in place iff fewer than ``tokens`` are left to compute and these are less than
    ``share`` of the prompt. Source: Dynamo's lib/kv-router/src/conditional_disagg.rs, 088ca50.

    Parameters
    ----------
    tokens : left to compute
    share : of the prompt
    """

    def __init__(self, *, tokens: Whole = 2048, share: Share = 0.7) -> None:
        self._tokens = tokens
        self._share = share

    def is_apart(self, num_prompt_tokens: int, num_cached_tokens: int) -> bool:  # noqa: D102
        left = num_prompt_tokens - num_cached_tokens
        return not (left < self._tokens and left / num_prompt_tokens < self._share)
