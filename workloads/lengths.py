"""Lengths of prompts and outputs: distributions over whole numbers of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.trace import MAX_TOKENS

Ints = NDArray[np.int64]


class Lengths(Protocol):
    """A distribution of lengths."""

    def sample(self, rng: np.random.Generator, n: int) -> Ints:
        """Draw ``n`` lengths in tokens, each at least 1."""


@dataclass(frozen=True)
class Constant:
    """The same length every time, in tokens."""

    num_tokens: int

    def __post_init__(self) -> None:
        _check_range(self.num_tokens, self.num_tokens)

    def sample(self, rng: np.random.Generator, n: int) -> Ints:
        return np.full(n, self.num_tokens, dtype=np.int64)


@dataclass(frozen=True)
class Uniform:
    """Lengths uniform from ``low`` to ``high`` tokens, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def sample(self, rng: np.random.Generator, n: int) -> Ints:
        return rng.integers(self.low, self.high, n, endpoint=True, dtype=np.int64)


@dataclass(frozen=True)
class LogNormal:
    """Log-normal lengths, rounded and clipped to ``low`` .. ``high``.

    Attributes
    ----------
    mean : mean of the rounded and clipped lengths, tokens
    sigma : standard deviation of the logarithm before rounding and clipping; 0 is a constant
    low, high : bounds, tokens
    """

    mean: float
    sigma: float
    low: int = 1
    high: int = 2048

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)
        if not self.low <= self.mean <= self.high:
            raise ValueError(f"mean must be {self.low} to {self.high} tokens, got {self.mean}")
        if not 0 <= self.sigma <= 4:
            raise ValueError(f"sigma must be 0 to 4, got {self.sigma}")

    def sample(self, rng: np.random.Generator, n: int) -> Ints:
        """Draw ``n`` lengths; the number of random draws does not depend on the parameters."""
        normal = rng.standard_normal(n)
        if self.sigma == 0 or self.mean in (self.low, self.high):
            return np.full(n, round(self.mean), dtype=np.int64)
        lengths = np.exp(
            fitted_mu(self.mean, self.sigma, self.low, self.high) + self.sigma * normal
        )
        return np.clip(np.rint(lengths), self.low, self.high).astype(np.int64)


@lru_cache
def fitted_mu(mean: float, sigma: float, low: int, high: int) -> float:
    """Return mu, the mean logarithm, for a mean length after rounding and clipping.

    A bisection finds it to a millionth of a token, since the mean rises with mu.
    """
    below, above = math.log(low) - 8 * sigma - 1, math.log(high) + 8 * sigma + 1
    while above - below > 1e-12 * max(1.0, abs(above)):
        mu = (below + above) / 2
        error = clipped_mean(mu, sigma, low, high) - mean
        if abs(error) < 1e-6:
            return mu
        below, above = (mu, above) if error < 0 else (below, mu)
    return (below + above) / 2


def clipped_mean(mu: float, sigma: float, low: int, high: int) -> float:
    """Return the mean of a log-normal rounded to whole numbers and clipped to ``low`` .. ``high``.

    ``E[X] = low + sum of P(X > k)`` for k from low to high - 1; X > k if the value is at least k +
    1/2. After a thousand terms the integral of the tail, which has a closed form, replaces the sum;
    the difference is below 1e-4 tokens.
    """
    middle = min(high, low + 1000)
    head = sum(_tail(math.log(k + 0.5), mu, sigma) for k in range(low, middle))
    return low + head + _tail_integral(high, mu, sigma) - _tail_integral(middle, mu, sigma)


def _tail(log_x: float, mu: float, sigma: float) -> float:
    """Return the probability of a value above x."""
    return math.erfc((log_x - mu) / (sigma * math.sqrt(2))) / 2


def _tail_integral(x: float, mu: float, sigma: float) -> float:
    """Return the integral of the tail from 0 to x: the mean of min(value, x)."""
    below = 1 - _tail(math.log(x) - sigma**2, mu, sigma)
    return x * _tail(math.log(x), mu, sigma) + math.exp(mu + sigma**2 / 2) * below


def around(mean: float, sigma: float) -> LogNormal:
    """Return log-normal lengths clipped at 8 times their mean."""
    if not 1 <= mean <= MAX_TOKENS // 8:
        raise ValueError(f"a mean length must be 1 to {MAX_TOKENS // 8:,} tokens, got {mean}")
    return LogNormal(mean, sigma, high=int(8 * mean))


def _check_range(low: int, high: int) -> None:
    if not 1 <= low <= high <= MAX_TOKENS:
        raise ValueError(
            f"lengths must be 1 to {MAX_TOKENS:,} tokens, the lowest first, got {low} to {high}"
        )
