"""Options of a vLLM server that are JSON objects, or that say how its kernels are laid out."""

from __future__ import annotations

import json

from pydantic import BaseModel, Field, field_validator


class ServerOptions(BaseModel):
    """What a server is told beside its limits; None means as vLLM would choose."""

    hf_overrides: str | None = Field(
        None, description="values of the model's config.json that are others, vLLM's JSON object"
    )

    @field_validator("hf_overrides", mode="before")
    @classmethod
    def _object(cls, value: object) -> object:
        """Read an object, or its text, and return it as one text."""
        if value is None or value == "none":
            return None
        return json.dumps(json_object(value), sort_keys=True)


def json_object(given: object) -> dict[str, object]:
    """Return a JSON object that is given as such or as a text.

    Raises
    ------
    ValueError
        For what is none.
    """
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise ValueError(f"is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError('must be a JSON object such as {"max_position_embeddings": 32768}')
    return given
