"""The base of the parts of a case file, and the numbers in them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """A part of a file; an unknown field shows up as a difference, if it matters."""

    model_config = ConfigDict(extra="ignore", frozen=True)
