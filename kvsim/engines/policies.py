"""Numbers of the schedulers, on which the rules of a replica branch."""

from __future__ import annotations

from enum import IntEnum


class Policy(IntEnum):
    """The scheduler of a replica; PYTHON is any scheduler in plain Python, without rules."""

    PYTHON = 0
    VLLM = 1
    ORCA = 2
    STATIC = 3
    VLLM_V0 = 4
    SGLANG = 5
    TENSORRT_LLM = 6


SCHEDULED_IN_PYTHON, VLLM, ORCA, STATIC, VLLM_V0, SGLANG, TENSORRT_LLM = (
    int(policy) for policy in Policy
)
#: Schedulers that schedule a step by the loop of vLLM's rules.
BY_LOOP_OF_VLLM = frozenset((VLLM, TENSORRT_LLM))
