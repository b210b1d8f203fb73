"""Texts to token ids and back, by a tokenizer's file or by a stand-in.

The text of an output token, such as ``" ~2a01"``, holds the number of the token. A client that
sends an answer back, as the next turn of a conversation does, thereby names the blocks that hold
the answer's KV.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Ids of output tokens: the first id, the number of contents that ids distinguish, and the bits for
#: the index of a token in its content.
FIRST_OUTPUT, NUM_CONTENTS, INDEX_BITS = 2**31, 2**15, 16
#: A token of an answer, and the pieces of any other text: words of at most six letters, numbers of
#: at most three digits, signs, and white space.
OUTPUT = re.compile(r" ?~([0-9a-f]+)(?![0-9a-z])")
PIECE = re.compile(
    r" ?~[0-9a-f]+(?![0-9a-z])| ?[^\W\d_]{1,6}| ?\d{1,3}| ?[^\w\s]| ?_|\s+(?= \S)|\s+"
)


class Tokenizer(Protocol):
    """Texts as token ids and back."""

    #: Text that ``kvsim serve`` prints at its start.
    described: str

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        ...


def output_id(content_id: int, index: int) -> int:
    """Return the id by which clients know an output token: 32 bits, above every model's."""
    return FIRST_OUTPUT + (content_id % NUM_CONTENTS << INDEX_BITS) + index % (1 << INDEX_BITS)


def named_output(token_id: int, newest: int) -> tuple[int, int] | None:
    """Return content and index of an output token, None for another token.

    Parameters
    ----------
    newest : highest content number; if contents share an id, the newest is returned
    """
    if token_id < FIRST_OUTPUT:
        return None
    content, index = divmod(token_id - FIRST_OUTPUT, 1 << INDEX_BITS)
    last = newest - (newest - content) % NUM_CONTENTS
    return None if last < 0 else (last, index)


def output_text(token_id: int) -> str:
    return f" ~{token_id - FIRST_OUTPUT:x}"


class StandIn:
    """A stand-in tokenizer: pieces of about four characters, numbered by their checksum."""

    described = "a stand-in, about four characters per token; --tokenizer FILE uses the model's own"

    def __init__(self) -> None:
        self._pieces: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        known = self._numbers
        return [known.get(piece) or self._number(piece) for piece in PIECE.findall(text)]

    def _number(self, piece: str) -> int:
        output = OUTPUT.fullmatch(piece)
        if output is not None:
            return FIRST_OUTPUT + int(output[1], 16) % FIRST_OUTPUT
        number = zlib.crc32(piece.encode()) % FIRST_OUTPUT
        self._pieces.setdefault(number, piece)
        self._numbers[piece] = number
        return number

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; unknown ids have none."""
        return "".join(
            output_text(k) if k >= FIRST_OUTPUT else self._pieces.get(k, "") for k in ids
        )


class OfFile:
    """A model's tokenizer.

    Parameters
    ----------
    path : a ``tokenizer.json``, or a folder with one

    Raises
    ------
    ValueError
        If the file is missing, or not a tokenizer.
    """

    def __init__(self, path: str) -> None:
        from tokenizers import Tokenizer as Model

        file = Path(path)
        file = file / "tokenizer.json" if file.is_dir() else file
        if not file.is_file():
            raise ValueError(f"--tokenizer {path}: no such file; must be a tokenizer.json")
        try:
            self._model = Model.from_file(str(file))
        except Exception as error:  # whatever the library raises for a damaged file
            raise ValueError(f"--tokenizer {path}: is not a tokenizer: {error}") from None
        self.described = str(file)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text; texts of output tokens get their own ids."""
        found: list[int] = []
        place = 0
        for output in OUTPUT.finditer(text):
            found += self._ids(text[place : output.start()])
            found.append(FIRST_OUTPUT + int(output[1], 16) % FIRST_OUTPUT)
            place = output.end()
        return found + self._ids(text[place:])

    def _ids(self, text: str) -> list[int]:
        return list(self._model.encode(text, add_special_tokens=False).ids) if text else []

    def decode(self, ids: Sequence[int]) -> str:
        found: list[str] = []
        place = 0
        for k, one in enumerate(ids):
            if one >= FIRST_OUTPUT:
                found += [self._model.decode(list(ids[place:k])), output_text(one)]
                place = k + 1
        return "".join([*found, self._model.decode(list(ids[place:]))])
