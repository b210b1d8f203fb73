"""A live engine, which advances in real time and sends its tokens to clients."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kvsim.serve.admission import NO_LIMIT, TURNED_AWAY
from kvsim.serve.block_names import Adapter
from kvsim.serve.messages import Refused
from kvsim.serve.streams import Reply, Sample
from kvsim.serve.tokens import FIRST_OUTPUT, named_output, output_id
from kvsim.stepping.tokens import names_content, names_of

if TYPE_CHECKING:
    from kvsim.pool_config import Role
    from kvsim.results.tables import FinishReason
    from kvsim.serve.admission import Admission
    from kvsim.serve.clock import Clock
    from kvsim.serve.handover import Handover
    from kvsim.serve.messages import Asked
    from kvsim.serve.metrics import Metrics
    from kvsim.serve.publisher import Publisher
    from kvsim.serve.recording import Recording
    from kvsim.stepping.engine import Engine
    from kvsim.stepping.remote import RemoteEngine
    from kvsim.stepping.steps import EngineStep

#: After this number of seconds of processing steps, other clients are served.
LONGEST = 0.05


def content_of(name: int) -> int:
    """Return the content that a negative id names."""
    return names_content(np.array([name]))


class Live:
    """An engine, its clock, and the answers in progress.

    Parameters
    ----------
    longest : max_model_len
    most_waiting : number of waiting requests at which new ones are refused; None for no limit
    admission : limits of the server, checked on arrival
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        metrics: Metrics,
        *,
        longest: int,
        recording: Recording | None = None,
        most_waiting: int | None = None,
        admission: Admission = NO_LIMIT,
    ) -> None:
        self.engine, self.clock, self.metrics, self.longest = engine, clock, metrics, longest
        self._recording, self._most_waiting = recording, most_waiting
        self._admission = admission
        self._samples: dict[int, Sample] = {}
        self._prompts: dict[int, list[int]] = {}  # token ids as clients know them
        self._newest = -1  # highest content number
        self._num_loads = 0  # of adapters
        self.publisher: Publisher | None = None  #: Publishes KV cache events.
        self.adapters: set[str] = set()  #: Names of loaded LoRA adapters.
        self.loads: dict[str, Adapter] = {}  #: Adapters loaded so far, by name.
        self.is_asleep = False
        self.handover: Handover | None = None  #: Transfers between prefill and decode replicas.
        self.role: Role = "mixed"
        #: Parameters with which a decode replica finds this replica's KV.
        self.place: dict[str, Any] = {}
        self._wake, self._is_advancing = asyncio.Event(), False
        # End of the step in flight, and the samples that get a token then which is not their last.
        self._due, self._ready = math.inf, dict[int, Sample]()

    @property
    def remote(self) -> RemoteEngine:
        """The engine of a prefill or a decode replica."""
        return cast("RemoteEngine", self.engine)

    def wake(self) -> None:
        """Let :meth:`run` read the time of the next event again. Mutates."""
        self._wake.set()

    async def run(self) -> None:
        """Advance the engine until the task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self.advance()
            delay = self.clock.delay(self.engine.next_event_time)
            self._wake.clear()
            timer = None if delay is None else loop.call_later(delay, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    def advance(self, until: float | None = None) -> None:
        """Process every step that has ended by a time (default: now); send its tokens. Mutates.

        If the engine is behind its clock, the call returns after LONGEST seconds, so that other
        clients are served. A nested call, such as one from the release of blocks, does nothing.
        """
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            self._advance(self.clock.now if until is None else until)
        finally:
            self._is_advancing = False
        if self.handover is not None and self.role == "decode":
            self.handover.start_loads(self)

    def _advance(self, until: float) -> None:
        begin, ahead, is_kept = time.monotonic(), self._send_ready(until), bool(self._ready)
        for step in self.engine.steps_until(until):
            end, sent = step.time + step.duration, ahead | self._send_next(step, ahead)
            ahead, is_kept = {}, False
            others = dict.fromkeys(step.finished, 0) | step.num_new_tokens
            others = {one: count for one, count in others.items() if one not in sent}
            for request, count in others.items():
                self._note(request, count, end, step.finished.get(request))
            self.metrics.record_next(sent, end)
            self.metrics.note_step(step)
            self.publish()
            for request in step.finished:
                self._prompts.pop(request, None)
            for sample in sent.values():
                sample.count += 1
                sample.prepare()
            for request in others:
                if request in self._samples:
                    self._samples[request].prepare()
            if time.monotonic() - begin > LONGEST:
                break
        if not is_kept:
            self._make_ready()

    def _make_ready(self) -> None:
        """Note whose prepared chunks are sent before their step is processed. Mutates."""
        self._due, requests = self.engine.next_tokens
        found = ((request, self._samples.get(request)) for request in requests)
        self._ready = {
            request: sample
            for request, sample in found
            if sample is not None and sample.next and sample.count + 1 < sample.most
        }

    def _send_ready(self, until: float) -> dict[int, Sample]:
        """Send the tokens of the step in flight if it has ended; return their samples. Mutates."""
        if until < self._due:
            return {}
        ready, self._ready = self._ready, {}
        for request in ready.keys() - self._samples.keys():  # aborted ones
            del ready[request]
        for sample in ready.values():
            sample.send(sample.next)
        return ready

    def _send_next(self, step: EngineStep, ahead: dict[int, Sample]) -> dict[int, Sample]:
        """Send the other tokens with prepared chunks; return their samples by request. Mutates."""
        sent, samples, finished = dict[int, Sample](), self._samples, step.finished
        for request, count in step.num_new_tokens.items():
            if request in ahead:
                continue
            sample = samples.get(request)
            if sample is not None and sample.next and count == 1 and request not in finished:
                sample.send(sample.next)
                sent[request] = sample
        return sent

    def publish(self) -> None:
        """Send the KV cache events since the last step. Mutates."""
        if self.publisher is not None:
            self.publisher.send(self.engine.take_kv_events(self._token_ids))

    def _note(self, request: int, count: int, time: float, ended: FinishReason | None) -> None:
        sample = self._samples.get(request)
        if sample is None:
            return
        if ended is not None and sample.index % (sample.reply.common.n or 1) == 0:
            # The request's row of the requests table is complete now.
            sample.reply.num_cached_tokens += self.engine.row(request)["num_cached_tokens"]
        self.metrics.record_tokens(request, count, time)
        is_stopped = sample.add(count, ended)
        if is_stopped:
            self._abort(request)
        if is_stopped or ended is not None:
            if self.handover is not None:
                reply, size = sample.reply, len(self._prompts[request])
                found = self.handover.ended(self, request, reply.request_id, size)
                reply.kv_transfer_params = found
            del self._samples[request]
            self._record_end(request, sample.reason)

    def _record_end(self, request: int, reason: str) -> None:
        row = self.engine.row(request)
        self.metrics.record_end(row, reason)
        if self._recording is not None:
            self._recording.end(row)

    def _abort(self, request: int) -> None:
        """Abort a request now, and record it. Mutates."""
        self._record_act("abort", request=request)
        self.engine.abort(request)

    def _record_act(self, event: str, **fields: int) -> None:
        """Record an event that changes the engine now. Mutates."""
        if self._recording is not None:
            self._recording.act(event, self.engine, **fields)

    def act(self, event: str, **request: int) -> None:
        """Record and call a method of a replica of P/D pools, such as receive. Mutates."""
        self.advance()
        self._record_act(event, **request)
        getattr(self.remote, event)(**request)
        self.wake()

    def promise(self, event: str, request: int, **fields: int) -> None:
        """Record and do what a new request needs of a transfer: keep or offer. Mutates."""
        if self._recording is not None:
            self._recording.note(event, request=request, **fields)
        getattr(self.remote, event)(request, **fields)

    def submit(self, asked: Asked, reply: Reply) -> list[int]:
        """Add the samples of a request to the engine; return their ids. Mutates.

        The request arrives at the time at which its body was read. If a step was scheduled after
        that time, it arrives just after this schedule.

        Raises
        ------
        Refused
            For a prompt that does not fit, and for a full queue.
        """
        common = asked.common
        self.advance(self.clock.at(reply.arrived))
        if self._most_waiting is not None and self.num_waiting >= self._most_waiting:
            raise Refused(
                f"the queue is full with {self._most_waiting} requests; try again later", 429
            )
        self._admit(asked)
        if self.handover is not None and any((common.kv_transfer_params or {}).values()):
            num_samples = len(asked.prompts) * (common.n or 1)
            self.handover.check(self, common.kv_transfer_params or {}, num_samples)
        added = self._add_all(asked, reply)
        for index, request in enumerate(added):
            content = content_of(self.engine.output_token_id(request, 0))
            echoed = asked.echoes[index // (common.n or 1)] if asked.echoes else ""
            most = self._most_tokens(asked, asked.prompts[index // (common.n or 1)])
            sample = Sample(reply, index, content, echoed, most)
            reply.samples.append(sample)
            self._samples[request] = sample
        self._wake.set()
        return added

    def _admit(self, asked: Asked) -> None:
        """Refuse samples that exceed the limits of the server, as the engine's rules do."""
        sizes = [len(one) for one in asked.prompts for _ in range(asked.common.n or 1)]
        tokens = self._num_tokens_in_line() if self._admission.tokens else 0
        reason = self._admission.exceeded(self.num_open, tokens, sizes)
        if reason:
            self.metrics.record_turned_away(reason)
            raise Refused(TURNED_AWAY[reason], 503)

    def _num_tokens_in_line(self) -> int:
        """Return the tokens of prompts without a first output token."""
        waiting = (key for key, sample in self._samples.items() if not sample.count)
        return sum(len(self._prompts[request]) for request in waiting)

    def _add_all(self, asked: Asked, reply: Reply) -> list[int]:
        """Add all samples of all prompts, or none. Mutates."""
        added, num_samples = list[int](), asked.common.n or 1
        try:
            for prompt in asked.prompts:
                if len(prompt) >= self.longest:
                    raise Refused(
                        f"the prompt has {len(prompt)} tokens, must have fewer than max_model_len "
                        f"{self.longest}"
                    )
                most = self._most_tokens(asked, prompt)
                self.metrics.record_asked(num_samples)
                added += [self._add(prompt, most, reply) for _ in range(num_samples)]
        except Refused:
            for request in added:
                self._abort(request)
            raise
        return added

    def _most_tokens(self, asked: Asked, prompt: list[int]) -> int:
        """Return the most output tokens of a sample."""
        room = self.longest - len(prompt)
        return min(asked.max_tokens or room, room)

    def _add(self, prompt: list[int], max_tokens: int, reply: Reply) -> int:
        common, earliest = reply.common, self.engine.earliest_arrival
        arrived = max(self.clock.at(reply.arrived), earliest)
        try:
            request = self.engine.add_request(
                self._named(prompt),
                max_tokens,
                arrival_time=arrived,
                priority=common.priority or 0,
                cache_salt=common.cache_salt or None,
                lora_id=common.model if common.model in self.adapters else None,
            )
        except ValueError as error:
            raise Refused(str(error)) from None
        self._newest = content_of(self.engine.output_token_id(request, 0))
        self._prompts[request] = prompt
        if self.handover is not None and common.kv_transfer_params:
            self.handover.record_added(self, request, common.kv_transfer_params, len(prompt))
        if self._recording is not None:
            self._recording.add(self.engine, request)
        self.metrics.record_arrival(request, max_tokens, arrived)
        return request

    def _named(self, prompt: list[int]) -> list[int]:
        """Return a prompt in the engine's ids, with output tokens named by their content."""
        if max(prompt) < FIRST_OUTPUT:
            return prompt
        found = []
        for token in prompt:
            output = named_output(token, self._newest)
            found.append(token if output is None else int(names_of(*output, 1)[0]))
        return found

    def _token_ids(self, request: int, first: int, stop: int) -> list[int]:
        """Return the ids of a request's tokens, as clients know them."""
        prompt = self._prompts[request]
        content = content_of(self.engine.output_token_id(request, 0))
        rest = range(max(first - len(prompt), 0), max(stop - len(prompt), 0))
        return prompt[first:stop] + [output_id(content, k) for k in rest]

    def abort(self, requests: list[int]) -> None:
        """Abort the requests of a disconnected client, and free their blocks. Mutates."""
        self.advance()
        for request in requests:
            if self._samples.pop(request, None) is not None:
                self._abort(request)
                if self.handover is not None:
                    self.handover.ended(self, request, "", 0)
                self._record_end(request, "abort")
        self._wake.set()

    @property
    def num_waiting(self) -> int:
        """Answers in progress that the engine does not compute now."""
        return self.num_open - self.engine.num_running

    @property
    def num_open(self) -> int:
        return len(self._samples)

    def reset_prefix_cache(self) -> bool:
        """Clear the prefix cache; False while a block is in use. Mutates.

        Raises
        ------
        Refused
            If the KV memory is no pool of blocks.
        """
        self.advance()
        try:
            is_empty = self.engine.reset_prefix_cache()
        except ValueError as error:
            raise Refused(str(error), 501) from None
        if is_empty:
            self._record_act("reset_prefix_cache")
        if is_empty and self.publisher is not None:
            self.engine.take_kv_events(self._token_ids)
            self.publisher.send_cleared()
        return is_empty

    def load_adapter(self, name: str, path: str) -> None:
        """Add a LoRA adapter, which gets the next number. Mutates."""
        if name not in self.adapters:
            self._num_loads += 1
            self.loads[name] = Adapter(self._num_loads, path)
        self.adapters.add(name)

    def lose_all(self) -> None:
        """Lose all requests, the KV and the adapters, and wake a sleeping engine. Mutates."""
        self.is_asleep = False
        if self.handover is not None:
            self.handover.lose(self)
        self.abort(list(self._samples))
        if self.handover is not None:
            self.act("halt")
        self.reset_prefix_cache()
        self.adapters.clear()
        self._num_loads = 0

    def close(self) -> None:
        """End the record, if one is written."""
        if self._recording is not None:
            self._recording.close()
