"""Types of the parameters of routers, failures and other policies; a wrong value is refused."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kvsim.pool_config import MOST_REPLICAS

Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: Seconds between two checks; with shorter intervals, a run would take too long.
Interval = Annotated[float, Field(ge=0.001, allow_inf_nan=False)]
Delay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Limit = Annotated[float, Field(gt=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
#: Points of a replica on a hash ring; each one is stored.
Points = Annotated[int, Field(ge=1, le=10_000)]
Whole = Annotated[int, Field(ge=0)]


def refuse_unread(why: str, what: str = "router", /, **given: object) -> None:
    """Refuse parameters that are given but not read; None means not given.

    ``what`` is the kind of policy that the parameters belong to.

    Raises
    ------
    ValueError
        If a parameter is given; the message has its name, and the reason ``why``.
    """
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{what}: {name.replace('_', '-')}={value}: is not read {why}")


def number_of_replicas(given: str, text: str | None) -> int:
    """Parse a number of replicas or gateways; ``given`` names it in errors.

    Raises
    ------
    ValueError
        If ``text`` is no whole number from 1 to MOST_REPLICAS.
    """
    if not (text or "").isdecimal() or not 1 <= int(text or 0) <= MOST_REPLICAS:
        raise ValueError(f"{given}: must be a whole number from 1 to {MOST_REPLICAS}")
    return int(text or 1)
