"""A ``[[pool]]`` of a fleet's TOML file: replicas of one role, with options of their own."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from kvsim.errors import unknown_name

#: Most replicas of a pool; each takes memory for its own lists.
MOST_REPLICAS = 4096
#: Work of replicas: whole requests, prefill only, or decode only.
Role = Literal["mixed", "prefill", "decode"]


@dataclass(frozen=True)
class PoolConfig:
    """A pool of identical replicas.

    Parameters
    ----------
    role : ``mixed`` replicas serve whole requests, ``prefill`` prompts, ``decode`` outputs
    replicas : number of replicas at the start
    name : name of the pool in tables; the role by default
    router : routing policy of the pool; that of the run by default
    autoscaler : autoscaling policy of the pool; that of the run by default
    options : options that differ from those of the run, as (name, value)
    """

    role: Role = "mixed"
    replicas: int = 1
    name: str = ""
    router: str | None = None
    autoscaler: str | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, given: object) -> PoolConfig:
        """Read a TOML table.

        Raises
        ------
        ValueError
            For a value that is not a table, and for wrong values.
        """
        if isinstance(given, PoolConfig):
            return given
        if not isinstance(given, dict):
            raise ValueError("must be tables: [[pool]] with role, replicas and options")
        values: dict[str, Any] = {}
        for key, value in given.items():
            name = str(key).replace("-", "_")
            if name in values:
                raise ValueError(f"{key}: is there twice, once as {name}")
            values[name] = value
        own = {f.name for f in fields(cls)} - {"options"}
        options = tuple((key, value) for key, value in values.items() if key not in own)
        pool = cls(**{k: v for k, v in values.items() if k in own}, options=options)
        pool.check()
        return pool if pool.name else replace(pool, name=pool.role)

    def check(self) -> None:
        """Raise ValueError for the first wrong value, with its key and what is allowed."""
        if self.role not in get_args(Role):
            raise unknown_name("role", str(self.role), get_args(Role))
        if isinstance(self.replicas, bool) or not isinstance(self.replicas, int):
            raise ValueError(f"replicas is {self.replicas!r}: must be a whole number")
        if self.replicas < 1:
            raise ValueError(f"replicas is {self.replicas}: must be at least 1")
        if self.replicas > MOST_REPLICAS:
            raise ValueError(f"replicas is {self.replicas}: must be at most {MOST_REPLICAS:,}")
        for key in ("name", "router", "autoscaler"):
            if not isinstance(getattr(self, key), str | None):
                raise ValueError(f"{key} is {getattr(self, key)!r}: must be a text")

    def to_toml(self) -> dict[str, Any]:
        values = {k: v for k, v in vars(self).items() if v is not None and k != "options"}
        return values | dict(self.options)
