"""Caller of the compiled loop over arrivals, for one gateway with a compiled router."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.compiled.variants import variant_of
from kvsim.engine.replica import STEPS_PER_CALL
from kvsim.fleet.routers.chwbl import PIECE, BoundedLoads
from kvsim.fleet.routing.rule_router import RuleRouter, draw_words
from kvsim.fleet.routing.text_tree import TextTree
from kvsim.records.memory import Flat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.engine.replica import Replica
    from kvsim.engine.replica_set import ReplicaSet
    from kvsim.fleet.gateways import Gateways
    from kvsim.fleet.prefix_index.event_reader import EventReader
    from kvsim.fleet.routing.prefix_affinity import PrefixAffinity

#: Decisions after which the loop returns, so that progress shows and Ctrl-C works.
DECISIONS_PER_CALL = 1024
#: Initial number of prompts per replica for which there is room.
FIRST_ROOM = 64
#: Largest number of bits of a row number in the table of sent prompts: 8 MB.
MOST_SENT = 20
#: Package of the routers that the loop supports; a subclass elsewhere may choose differently.
BUILT_IN = "kvsim.fleet.routers."


def can_route(gateways: Gateways, replicas: Sequence[Replica]) -> bool:
    """Return True if the loop supports the gateways' router, its inputs, and all replicas."""
    router, reader = gateways.alone()
    if not isinstance(router, RuleRouter) or not type(router).__module__.startswith(BUILT_IN):
        return False
    if not router.is_plain or not all(one.entry_address for one in replicas):
        return False
    if router.hashes_sessions and gateways.session_ids.min(initial=0) < 0:
        return False  # it chooses by the time of requests
    return _reads_known(router, reader) and router.entry_address() != 0


def _reads_known(router: RuleRouter, reader: EventReader | None) -> bool:
    """Return True if the loop supports the index from which the router predicts cached prefixes."""
    affinity = affinity_of(router)
    if affinity is None:
        return True
    if not affinity.is_precise:
        return affinity.ttl == math.inf
    from kvsim.fleet.prefix_index.live_reader import LiveReader

    return isinstance(reader, LiveReader) and reader.names_whole_blocks


def affinity_of(router: RuleRouter) -> PrefixAffinity | None:
    """Return the router's prediction of cached prefixes; None if it has none."""
    known = router.prefixes
    return known.affinity if isinstance(known, TextTree) else known


class ArrivalLoop:
    """Routes requests at their times, and advances the replicas to these times.

    Parameters
    ----------
    gateways : the gateways that decide
    replicas : the replicas, by slot
    replica_set : the set of these replicas
    table : the run's requests table
    rows : the requests in order, all admissible
    planned : their arrival times, seconds
    outputs : content of the output of each request
    start_time : time of the world before the first request, seconds

    Attributes
    ----------
    may_lag : replicas may be behind the last arrival, if nobody can see that
    """

    may_lag = True

    def __init__(
        self,
        gateways: Gateways,
        replicas: Sequence[Replica],
        replica_set: ReplicaSet,
        table: NDArray[Any],
        rows: NDArray[np.int64],
        planned: NDArray[np.float64],
        outputs: NDArray[np.int64],
        start_time: float,
    ) -> None:
        from kvsim.compiled import arrival_loop, loops
        from kvsim.fleet.prefix_index.key_tables import SentIndex
        from kvsim.fleet.tracking.compiled_lifecycle_events import CompiledLifecycleEvents

        self._gateways, self._replicas, self._replica_set = gateways, replicas, replica_set
        self._router, self._reader = gateways.alone()
        self._memory = Flat()
        self._router.init_state(self._memory)
        self._code = arrival_loop
        self._route = loops.translated(arrival_loop.route)
        self._rule = self._router.entry_address()
        self._tracker = CompiledLifecycleEvents(replicas, table)
        self._rows, self._planned = rows, planned
        self._arrivals = rows, planned, outputs, start_time
        self._rooms = np.array([one.room for one in replicas], np.int64)
        self._index = SentIndex(len(replicas))
        room = FIRST_ROOM if self._router.follows_prompts else 1
        self._there = np.zeros((len(replicas), room), np.int32)
        self._cursor = np.zeros(4, np.int64)
        first = self._router.prefixes
        due = first.due if isinstance(first, TextTree) else math.inf
        self._moments = np.array([-math.inf, 0.0, due])

    def run(self) -> None:
        """Route all requests. Mutates."""
        number, code = self._gateways.num_requests, self._code
        branches, uncached = np.zeros((2, number), np.int64)
        expected = uncached, np.zeros(number if self._router.predicts_seconds else 0)
        predicted, best, stride = self._gateways.decisions.columns()
        heard, quiet, due = np.full((3, len(self._replicas)), -math.inf)
        fleet = (*self._replica_set.columns(), self._rooms, heard, quiet, due)
        router, state = self._router, self._router.state
        addresses = self._rule, 0 if state is None else state.address, router.placement.address
        prompts, known = self._prompts(), self._known(number)
        options = self._gateways.scrape_times(), self._kinds()
        finest = min(PIECE, router.facts.block_size, options[1][1])
        most = int(prompts[5].max()) // finest + 1
        keys = tuple(np.zeros((2, most), np.int64))  # of a prompt's entries and of its blocks
        counting = router.counts_misses, self._tracker.num_output_tokens
        noted = predicted, best, branches, stride
        counts, outcome = np.zeros(len(self._replicas), np.int64), code.MAKE_ROOM
        scratch = self._scratch(known[1], 0)
        while outcome != code.DONE:
            lines = 2 * (int(self._tracker.columns()[5][:, 0].max()) + DECISIONS_PER_CALL)
            if len(scratch[0][0]) < lines:
                scratch = self._scratch(known[1], 2 * lines)
                outcome = code.MAKE_ROOM
            if outcome in (code.MAKE_ROOM, code.MAKE_PLACES):  # else the call is faster
                paths = router.follows_prompts, self._there, counts
                loop = (
                    *(fleet, addresses, self._tracker.columns(), expected, prompts, known),
                    *(self._index.columns(), self._limits(), paths, counting, self._arrivals),
                    *(noted, *options, self._cursor, self._moments, (*keys, *scratch)),
                )
            outcome = self._route(loop, STEPS_PER_CALL, DECISIONS_PER_CALL)
            self._serve(outcome)
            self._replica_set.report_ended()
        for number in (branches.min(initial=0), branches.max(initial=0)):
            router.branch_name(int(number))
        rows = self._rows[: self._cursor[0]]
        self._gateways.decisions.record_branches(rows, branches, router.branches)

    def _serve(self, outcome: int) -> None:
        """Do the work that the compiled loop leaves to Python. Mutates."""
        code, (at, place, wanted, _) = self._code, self._cursor.tolist()
        if outcome == code.ADVANCE_ONE:
            self._replica_set.bring_one(place, float(self._moments[code.TARGET]))
        elif outcome == code.SUBMIT:
            replica = self._replicas[wanted]
            replica.submit(self._rows[at - 1 : at], self._planned[at - 1 : at])
            self._rooms[wanted] = replica.room
            self._replica_set.touch(wanted)
        elif outcome == code.DRAW:
            draw_words(self._router.placement.draws, self._router.facts.rng, self._memory)
        elif outcome == code.MAKE_ROOM:
            self._index.reserve(wanted)
            self._router.reserve(self._memory, wanted)
        elif outcome == code.MAKE_PLACES:
            self._there = np.concatenate((self._there, np.zeros_like(self._there)), axis=1)
        elif outcome == code.WRONG_CHOICE:
            raise self._router.wrong_choice(wanted)

    def _scratch(self, guesses: NDArray[np.int64], lines: int) -> tuple[Any, ...]:
        """Return scratch memory of the loop, except for keys; a replica has up to ``lines`` events.

        It is empty for 0 lines, and then replaced before the first call.
        """
        places = len(self._replicas)
        told = np.empty(lines), np.empty((lines, 3), np.int64)
        matched, bounds, chosen, now_held = np.zeros((4, places), np.int64)
        unseen = np.full(places, math.nan)
        looked = guesses, now_held, np.full(places, -1), unseen, unseen.copy()
        return told, (matched, bounds, chosen, looked)

    def _prompts(self) -> tuple[NDArray[Any], ...]:
        columns = self._gateways.prompts()
        tokens = np.ascontiguousarray(self._gateways.num_prompt_tokens, np.int64)
        sessions = self._gateways.session_ids if self._router.hashes_sessions else tokens[:0]
        return *columns, tokens, np.ascontiguousarray(sessions, np.int64)

    def _known(self, number: int) -> tuple[Any, ...]:
        affinity = affinity_of(self._router)
        if affinity is None or not affinity.is_precise:
            none = np.zeros(len(self._replicas), np.int64)
            return none, none.copy(), 0.0, np.zeros(1, np.int64)
        sent = np.zeros(1 << min(max(number, 2).bit_length(), MOST_SENT), np.int64)
        return *self._reader.columns(), sent

    def _limits(self) -> tuple[float, float, float, float]:
        affinity, tree = affinity_of(self._router), self._router.prefixes
        most = math.inf if affinity is None else float(affinity.max_entries)
        if not isinstance(tree, TextTree):
            return most, 0.0, math.inf, math.inf
        return most, float(tree.interval), float(tree.most), float(tree.target)

    def _kinds(self) -> tuple[int, int, int, int, bool, bool, int, bool]:
        code, affinity = self._code, affinity_of(self._router)
        simple = all(
            variant_of(one.state) in ("specialized", "with-events") for one in self._replicas
        )
        block_size = self._router.facts.block_size
        pieces = self._router.num_pieces if isinstance(self._router, BoundedLoads) else 0
        if affinity is None:
            source, size, most = code.NOTHING, PIECE, None
        else:
            source = code.LIVE if affinity.is_precise else code.SENT
            size, most = affinity.entry_tokens, affinity.max_prompt_entries
        most = np.iinfo(np.int64).max if most is None else most
        may_lag = self.may_lag and simple and source != code.LIVE  # events come with every step
        watches = self._router.watches_requests
        return source, size, most, block_size, simple, watches, pieces, may_lag
