"""KV that a replica finds beyond its own memory: at other replicas, or in a store of the fleet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from kvsim.registry import Registry, parse_spec

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from kvsim.fleet.prefix_index.event_reader import EventReader

#: Whether KV is fetched whenever it is found, or where that is faster than to compute it.
PULLS = ("cheaper", "always")


class Portion(NamedTuple):
    """Entries of a prompt, one after another, that lie in one place.

    ``tier`` says which fabric they come over; those of one ``source`` share its link, and None is
    a source that nobody else reads.
    """

    tier: str
    source: Hashable
    num_entries: int


class Store(ABC):
    """Knows where the prefixes of prompts lie.

    An entry is a block of the replicas, named by a key that covers all tokens before it.

    Attributes
    ----------
    fabrics : by tier; a tier that is not there uses the fleet's own
    event_delay : seconds from the end of a step until the store knows what it computed
    pull : ``cheaper`` or ``always``
    num_evicted : entries that left it for want of room
    reads_replicas : it holds nothing but what other replicas do
    serves_hosts : it may stand behind the host tier of SGLang's replicas, and get what that has:
        it needs no more of a feed than listeners
    """

    reads_replicas: ClassVar[bool] = False
    serves_hosts: ClassVar[bool] = False
    fabrics: ClassVar[Mapping[str, str]] = {}
    event_delay: float = 0.0
    pull: str = "cheaper"
    num_evicted: int = 0

    @abstractmethod
    def start(self, reader: EventReader, entry_bytes: float) -> None:
        """Begin a run. Mutates.

        Parameters
        ----------
        feed : what the replicas tell of their caches
        entry_bytes : of KV in an entry, all layers and GPUs
        """

    @abstractmethod
    def look_up(self, keys: Sequence[int], replica: int, now: float) -> list[Portion]:
        """Find the first entries of a prompt, from its front without a gap. May mutate.

        Parameters
        ----------
        keys : of all its entries
        replica : place of the one that asks
        now : seconds
        """

    def own_tiers(self, keys: Sequence[int], replica: int, now: float) -> list[Portion]:
        """Say what of a prompt lies in a replica's own tiers, as routers are told; may mutate.

        Nothing is used by that.
        """
        del keys, replica, now
        return []

    def read(self, keys: Sequence[int], replica: int, now: float) -> None:
        """Learn that a replica has read the first entries of a prompt. May mutate."""
        del keys, replica, now

    def forget(self, replica: int) -> None:
        """Learn that the replica at a place is gone, with what was its own. May mutate."""
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
