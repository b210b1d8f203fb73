"""Prompts given as texts: their numbers of tokens, and their common prefixes."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from workloads.draft import Piece, first_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

#: OpenAI's rule of thumb for English (help.openai.com, "What are tokens and how to count them?").
CHARS_PER_TOKEN = 4.0
#: Speaker of an answer.
ASSISTANT = "assistant"
#: Predecessor of a first message, and of a message with an unknown predecessor.
NONE, ELSEWHERE = -1, -2


class Counter(Protocol):
    """Converter of texts to token counts; ``note`` describes it to the user."""

    note: str

    def count(self, text: str) -> int:
        """Return the length of a text in tokens."""

    def tokens(self, text: str) -> Sequence[Any]:
        """Return the tokens of a text; equal entries are equal tokens."""


class Characters:
    """Counts ``chars_per_token`` characters as one token; a text's last token may be shorter."""

    def __init__(self, chars_per_token: float = CHARS_PER_TOKEN) -> None:
        if not 0.1 <= chars_per_token < math.inf:
            raise ValueError(f"chars_per_token must be at least 0.1, got {chars_per_token:g}")
        self._chars = chars_per_token
        self.note = f"token counts estimated: {chars_per_token:g} characters per token, rounded up"

    def count(self, text: str) -> int:
        """Return the number of tokens of a text: its characters / chars_per_token, rounded up."""
        return math.ceil(len(text) / self._chars)

    def tokens(self, text: str) -> list[str]:
        ends = [math.floor(place * self._chars) for place in range(self.count(text))]
        return [text[a:b] for a, b in zip(ends, [*ends[1:], len(text)], strict=True)]


class Tokenized:
    """Counts with a tokenizer.json, each text by itself, without special tokens."""

    def __init__(self, file: str) -> None:
        self._tokenizer = tokenizer_of(file)
        self.note = f"tokens counted by {file}, text by text"

    def count(self, text: str) -> int:
        """Return the number of a text's tokens."""
        return len(self.tokens(text))

    def tokens(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


@lru_cache(maxsize=1)
def tokenizer_of(file: str) -> Any:
    """Return the tokenizer of a file, read by the library ``tokenizers``.

    Raises
    ------
    ValueError
        If the file or the library is missing, or the file is no tokenizer.json.
    """
    if not Path(file).is_file():
        raise ValueError(f"tokenizer {file}: no such file; give the model's tokenizer.json")
    try:
        from tokenizers import Tokenizer  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ValueError(
            f"tokenizer {file}: needs the package tokenizers: pip install 'kvsim[tokenizer]'"
        ) from None
    try:
        return Tokenizer.from_file(file)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"tokenizer {file}: no tokenizer.json ({error})") from None


def counter(chars_per_token: float, tokenizer: str | None) -> Counter:
    """Return the counter of texts: by a tokenizer's file if given, else by characters."""
    return Characters(chars_per_token) if tokenizer is None else Tokenized(tokenizer)


class Messages:
    """Names the content of messages, so that prompts share exactly their common prefixes.

    Two messages are equal if their text, speaker and predecessor are equal. Other messages with
    equal speaker and predecessor share their common prefix. Answers of the model are shared only as
    a whole, so that later prompts can have their content.

    Parameters
    ----------
    count : counter of a text's tokens
    """

    def __init__(self, count: Counter) -> None:
        self._count = count
        self._places: dict[tuple[int, str, str], int] = {}
        self._said: list[tuple[int, str, str]] = []
        self._lengths: list[int] = []
        self._pieces: list[list[Piece]] = []

    def say(self, after: int, speaker: str, text: str) -> int:
        """Return the index of the message that follows message ``after`` (``NONE``: the first)."""
        key = (after, speaker, text)
        if key not in self._places:
            self._places[key] = self._append(*key)
        return self._places[key]

    def unknown_answer(self) -> int:
        """Return the index of an answer with unknown text."""
        return self._append(ELSEWHERE, ASSISTANT, "")

    def _append(self, after: int, speaker: str, text: str) -> int:
        self._said.append((after, speaker, text))
        self._lengths.append(self._count.count(text))
        return len(self._said) - 1

    def num_tokens(self, place: int) -> int:
        """Return the length of one message, tokens."""
        return self._lengths[place]

    def length(self, last: int) -> int:
        """Return the number of tokens of all messages up to ``last``."""
        tokens = 0
        while last >= 0:
            tokens += self._lengths[last]
            last = self._said[last][0]
        return tokens

    def prompt(self, last: int) -> list[Piece]:
        """Return the content of all messages up to ``last``; call it after adding all messages."""
        if not self._pieces:
            self._pieces = self._name()
        chain = []
        while last >= 0:
            chain.append(last)
            last = self._said[last][0]
        return [piece for place in reversed(chain) for piece in self._pieces[place]]

    def _name(self) -> list[list[Piece]]:
        """Return the segments of each message; messages share the content of common prefixes."""
        pieces: list[list[Piece]] = [
            [(place, 0, length)] if length else [] for place, length in enumerate(self._lengths)
        ]
        groups: dict[tuple[int, str], list[int]] = {}
        for place, (after, speaker, _) in enumerate(self._said):
            if speaker != ASSISTANT:
                groups.setdefault((after, speaker), []).append(place)
        for group in groups.values():
            if len(group) > 1:
                self._share(group, pieces)
        return pieces

    def _share(self, group: Sequence[int], pieces: list[list[Piece]]) -> None:
        """Write the segments of a group's messages, which share common prefixes, to ``pieces``."""
        before: Sequence[Any] = ()
        path: list[Piece] = []
        texts = [(self._count.tokens(self._said[place][2]), place) for place in group]
        for tokens, place in sorted(texts):
            shared = common(before, tokens)
            path = first_tokens(path, shared)
            if len(tokens) > shared:
                path.append((place, shared, len(tokens) - shared))
            pieces[place], before = path, tokens


def common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the length of the common prefix of two sequences."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
