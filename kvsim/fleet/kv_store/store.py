"""KV outside a replica's own memory: on other replicas, or in a store of the fleet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from kvsim.parametric import Parametric
from kvsim.registry import Registry, parse_spec

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from kvsim.fleet.prefix_index.event_reader import EventReader

#: Fetch KV only where that is faster than computing it, or whenever it is found.
PULLS = ("cheaper", "always")


class Portion(NamedTuple):
    """Consecutive entries of a prompt that one source holds.

    ``tier`` names the fabric that carries them. Fetches from one ``source`` share its link; with
    the source None each fetch has its own link.
    """

    tier: str
    source: Hashable
    num_entries: int


class Store(Parametric, ABC):
    """Locates the prefixes of prompts.

    An entry is a block of the replicas, named by a key that covers all tokens before it.

    Attributes
    ----------
    fabrics : fabrics by tier; a missing tier uses the fleet's fabric
    event_delay : seconds from the end of a step until the store has its blocks
    pull : ``cheaper`` or ``always``
    num_evicted : entries evicted for lack of room
    reads_replicas : the store has no memory, and finds the entries of other replicas
    serves_hosts : the store can hold the pages of replicas' host tiers; it then uses only the
        listeners of its reader
    """

    reads_replicas: ClassVar[bool] = False
    serves_hosts: ClassVar[bool] = False
    fabrics: ClassVar[Mapping[str, str]] = {}
    event_delay: float = 0.0
    pull: str = "cheaper"
    num_evicted: int = 0

    @abstractmethod
    def start(self, reader: EventReader, entry_bytes: float) -> None:
        """Start a run. Mutates.

        Parameters
        ----------
        reader : the events of the replicas' caches
        entry_bytes : bytes of KV in an entry, over all layers and GPUs
        """

    @abstractmethod
    def look_up(self, keys: Sequence[int], replica: int, now: float) -> list[Portion]:
        """Return the leading entries of a prompt, up to the first one not stored. May mutate.

        Parameters
        ----------
        keys : keys of all entries of the prompt
        replica : slot of the replica that reads
        now : seconds
        """

    def own_tiers(self, keys: Sequence[int], replica: int, now: float) -> list[Portion]:
        """Return a prompt's portions in a replica's own tiers, for routers; may mutate.

        This does not mark the entries as used.
        """
        del keys, replica, now
        return []

    def read(self, keys: Sequence[int], replica: int, now: float) -> None:
        """Handle a replica's read of the first entries of a prompt. May mutate."""
        del keys, replica, now

    def forget(self, replica: int) -> None:
        """Handle the loss of the replica in a slot, and of its own entries. May mutate."""
        del replica


#: Factories take keyword parameters only.
STORES: Registry[Store] = Registry("KV store", "kvsim.fleet.stores", Store, "kvsim.stores")


def make_store(text: str) -> Store:
    """Make ``NAME[+pull=cheaper|always][+KEY=VALUE]...``.

    Raises
    ------
    ValueError
        For an unknown name, an unknown parameter, or a value of the wrong type.
    """
    name, params = parse_spec(text)
    pull = params.pop("pull", Store.pull)
    made = STORES.create(name, **params)
    if pull not in PULLS:
        raise ValueError(f"KV store {name!r}: pull={pull}: must be one of {', '.join(PULLS)}")
    made.pull = str(pull)
    return made
