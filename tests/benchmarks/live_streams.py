"""Lateness of tokens, errors, and memory of ``kvsim serve`` under many streams at once.

``python tests/benchmarks/live_streams.py 500 100``: 500 streams of 100 tokens at 50 tokens/s, the
server on one core and the client on another. A token is late by the time from the end of its
simulated step to its arrival at the client, whose own delay is included. With ``constant`` as a
third argument the server is a loop that sends a constant text: the least lateness of this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

#: Seconds per step, and the window in which the streams begin.
STEP, WINDOW = 0.02, 0.5
DEPLOYMENT = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu": "h100-sxm",
    "cost_model": f"constant+seconds={STEP}",
    "num_gpu_blocks_override": 200_000,
    "max_model_len": 4096,
    "max_num_seqs": 4096,
    "max_num_batched_tokens": 65_536,
}


def serve(port: int, out: Path) -> None:
    """Serve until a signal, then write when each step's tokens were due, and the cost."""
    from kvsim.serve.live import Live
    from kvsim.serve.start import Endpoint, serve_until_stopped

    due: list[tuple[float, int]] = []
    begun: list[float] = []
    advance = Live.advance

    def noted(self: Live, until: float | None = None) -> None:
        if not begun:
            begun.append(0.0)
            steps_until = self.engine.steps_until

            def steps(until: float):  # type: ignore[no-untyped-def]
                for step in steps_until(until):
                    if len(due) == 8:  # what the first requests compiled is not counted
                        begun[0] = time.process_time()
                    end = self.clock._start + step.time + step.duration
                    due.append((end, sum(step.num_new_tokens.values())))
                    yield step

            self.engine.steps_until = steps
        advance(self, until)

    Live.advance = noted
    serve_until_stopped(Endpoint(names=["m"], port=port), DEPLOYMENT)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cost = time.process_time() - begun[0]
    out.write_text(json.dumps({"due": due, "memory": memory, "cost": cost}))


def serve_constant(port: int, out: Path, tokens: int) -> None:
    """Send a constant chunk to every client at each step; write when each step was due."""
    door = socket.create_server(("127.0.0.1", port), backlog=1000)
    door.setblocking(False)
    chunk, last = b"x" * 210 + b'"finish_reason"\r\n', b"data: [DONE]\r\n"
    left: dict[socket.socket, int] = {}
    due: list[tuple[float, int]] = []
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    end, begun = time.monotonic(), time.process_time()
    while not stopped:
        end += STEP
        time.sleep(max(0.0, end - time.monotonic()))
        if left:
            due.append((end, len(left)))
        for one in list(left):
            left[one] -= 1
            one.send(chunk if left[one] else chunk + last)
            if not left[one]:
                del left[one]
        with contextlib.suppress(BlockingIOError):
            while True:
                one, _ = door.accept()
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if one.recv(65_536):
                    left[one] = tokens
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cost = time.process_time() - begun
    out.write_text(json.dumps({"due": due, "memory": memory, "cost": cost}))


def stream(port: int, number: int, tokens: int) -> tuple[list[float], int]:
    """Return when each token arrived, and how many streams were not answered whole."""
    waiting = select.epoll()
    begin = time.monotonic()
    streams: dict[int, tuple[socket.socket, list[bytes]]] = {}
    arrivals: list[float] = []
    errors = opened = 0
    while opened < number or streams:
        if opened < number and time.monotonic() >= begin + opened * WINDOW / number:
            one = socket.create_connection(("127.0.0.1", port))
            prompt = [100 + opened % 1000] * 16
            body = json.dumps({"prompt": prompt, "max_tokens": tokens, "stream": True}).encode()
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
            one.sendall(head % len(body) + body)
            waiting.register(one, select.EPOLLIN)
            streams[one.fileno()] = (one, [])
            opened += 1
        for place, _ in waiting.poll(0.0 if opened < number else 5.0):
            one, parts = streams[place]
            part = one.recv(65_536)
            arrivals += [time.monotonic()] * part.count(b'"finish_reason"')
            parts.append(part)
            if not part or b"[DONE]" in part:
                errors += b"".join(parts).count(b'"finish_reason"') != tokens
                waiting.unregister(one)
                one.close()
                del streams[place]
    return arrivals, errors


def main(number: int, tokens: int, kind: str = "serve") -> None:
    """Start a server, measure it, and print what came out."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "served.json"
        line = [sys.executable, __file__, f"--{kind}", str(port), str(out), str(tokens)]
        server = subprocess.Popen(line, stderr=subprocess.DEVNULL)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(server.pid, cores[:1])
        os.sched_setaffinity(0, cores[-1:])
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.2)
        stream(port, 2, tokens if kind == "constant" else 4)  # the first requests compile
        arrivals, errors = stream(port, number, tokens)
        server.send_signal(signal.SIGTERM)
        server.wait()
        found = json.loads(out.read_text())
    ends, counts = np.array(found["due"]).T
    due = np.sort(np.repeat(ends, counts.astype(int)))[-len(arrivals) :]
    late = (np.sort(arrivals) - due) * 1e3
    median, p99 = np.percentile(late, [50, 99])
    print(f"{number} streams of {tokens} tokens: {errors} errors, {len(arrivals):,} tokens")
    print(f"late by {median:.1f} ms at the median, {p99:.1f} ms at p99")
    cost = found["cost"] / len(due) * 1e6
    print(f"server: {found['memory']:.0f} MB at most, {cost:.1f} CPU-us per token")


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(int(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1] == "--constant":
        serve_constant(int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
