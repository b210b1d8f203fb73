"""CPU time of the whole command ``kvsim hits``: LRU alone, the six usual policies, and all nine.

``python tests/benchmarks/hits_command.py TRACE [BLOCK_SIZE]``: a line per case with the first run,
which may compile, the median of five further runs, and the digest of the answer, which an edit for
speed must not change. Mooncake's conversation trace has blocks of 512 tokens.
"""

from __future__ import annotations

import hashlib
import resource
import subprocess
import sys
from statistics import median

from kvsim.hits.policies import POLICIES, USUAL

CASES = {"lru": ("lru",), "usual": USUAL, "all": POLICIES}
NUM_RUNS = 5


def measure(words: list[str]) -> tuple[float, str]:
    """Return the CPU seconds of a command, and the digest of its output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "kvsim", *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, hashlib.sha256(done.stdout).hexdigest()[:10]


def main(trace: str, block_size: str = "512") -> None:
    """Print a line per case."""
    for name, policies in CASES.items():
        words = ["hits", trace, "--block-size", block_size, "--policies", ",".join(policies)]
        first, digest = measure([*words, "--json", "-"])
        later = median(measure([*words, "--json", "-"])[0] for _ in range(NUM_RUNS))
        print(f"{name}: first run {first:.2f}, median {later:.2f} CPU-s, digest {digest}")


if __name__ == "__main__":
    main(*sys.argv[1:])
