"""Types of routers' parameters; a wrong value is refused in one line."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Delay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Limit = Annotated[float, Field(gt=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]


def refuse_unread(why: str, **given: object) -> None:
    """Refuse a router's parameters that are given where nothing reads them; None is not given.

    Raises
    ------
    ValueError
        Naming the first one, with the reason.
    """
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"router: {name.replace('_', '-')}={value}: is not read {why}")
