"""The base of the parts of a case file, and their number types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """A part of a file; unknown fields are ignored; if they matter, the replay differs."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class RecordedCase(Part):
    """A recorded schedule, or recorded operations, with the log entry of each step.

    ``engine`` names the engine that defines the form of the case and plays it.
    """

    engine: ClassVar[str] = "vllm"
    name: str = "case"

    if TYPE_CHECKING:

        @property
        def steps(self) -> list[dict[str, Any]]:
            """The log, by step."""
