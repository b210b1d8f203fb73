"""Make the sample in tests/data from the whole set of measurements, by rules that draw nothing.

Only sets under Apache-2.0, MIT or CC-BY 4.0, and those recorded for this project, are taken: small
ones as they are, of large tables every tenth row or one engine's, of traces the beginning. A set
that is absent from the whole is an error: half a sample would look like one.

    python -m experiments.sample --data FOLDER [--out DIR]
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.validation.data import SAMPLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Files taken as they are, by pattern.
COPIED = (
    "kernels/gemm.csv.gz",
    "kernels/generation_attention.csv.gz",
    "kernels/context_attention.csv.gz",
    "kernels/custom_allreduce.csv.gz",
    "kernels/nccl.csv.gz",
    "kernels/splitwise_perf_model.csv",
    "kernels/vidur/*_cpu_overheads.csv*",
    "serving/measured_serving_points.csv",
    "serving/sharegpt300_vllm0.19/*/*",
    "vllm_planner.json",
    "fleet/llmd_routing/per_qps.csv",
    "fleet/mooncake_transfer/transfer.csv",
    "fleet/llmd_p2p/pull_vs_recompute.csv",
    "fleet/llmd_p2p/load_balanced_16k.csv",
)
#: Tables of which the header, the first row and every tenth from there is taken.
EVERY = 10
THINNED = ("kernels/vidur/*_attention.csv.gz", "kernels/vidur/*_mlp.csv.gz")
#: Files taken whole, compressed.
COMPRESSED = ("vllm_planner2.json",)
#: A table of which the rows of one engine are taken: the others are not read here.
POINTS, POINTS_OF = "serving/inferencex/points.csv.gz", ("engine", "vllm")
#: Traces: file, how many rows from the beginning, and what the sample's file is called.
HEADS = (
    ("azure2023_conv.csv.gz", 2000, "azure2023_conv_2000.csv.gz"),
    ("mooncake_fast25_conversation.jsonl.gz", 1000, "mooncake_fast25_conversation_1000.jsonl.gz"),
    ("sharegpt_8k_llama2tok.csv.gz", 2000, "sharegpt_8k_llama2tok_2000.csv.gz"),
    ("weka_claudecode_48sessions.jsonl.gz", 4, "weka_claudecode_4sessions.jsonl.gz"),
    (
        "llmservingsim_sharegpt300_llama-3.1-8b.jsonl.gz",
        30,
        "llmservingsim_sharegpt30_llama-3.1-8b.jsonl.gz",
    ),
)
#: Start-up logs from this repository alone; the data state its licence (MIT).
LOGS, LOGS_FROM = "vllm_startup_blocks.csv", "github:casys-kaist/LLMServingSim"


def sampled(data: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the sample's files: path inside it, and content."""
    for pattern in COPIED:
        for path in found(data, pattern):
            yield path.relative_to(data).as_posix(), path.read_bytes()
    for pattern in THINNED:
        for path in found(data, pattern):
            lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
            rows = [lines[0], *lines[1::EVERY]]
            yield path.relative_to(data).as_posix(), packed(rows)
    for pattern in COMPRESSED:
        for path in found(data, pattern):
            yield f"{path.relative_to(data).as_posix()}.gz", packed([path.read_bytes()])
    for source, count, name in HEADS:
        (path,) = found(data, f"traces/{source}")
        header = 1 if ".csv" in source else 0
        with gzip.open(path) as file:
            yield f"traces/{name}", packed(islice(file, header + count))
    column, value = POINTS_OF
    (path,) = found(data, POINTS)
    with gzip.open(path, "rt", newline="") as rows:
        kept = [row for row in csv.DictReader(rows) if row[column] == value]
    yield POINTS, packed([table(kept)])
    yield LOGS, logs(data / LOGS)


def found(data: Path, pattern: str) -> list[Path]:
    """Return the files of a pattern, at least one."""
    paths = sorted(data.glob(pattern))
    if not paths:
        raise SystemExit(f"sample: {data} has no {pattern}")
    return paths


def packed(lines: Iterable[bytes]) -> bytes:
    """Compress lines; without a time in the header equal lines give equal files."""
    return gzip.compress(b"".join(lines), 9, mtime=0)


def logs(path: Path) -> bytes:
    """Return the start-up logs of one repository; ``line`` is where each stands in the whole."""
    with path.open(newline="") as file:
        rows = [{"line": i, **row} for i, row in enumerate(csv.DictReader(file))]
    kept = [row for row in rows if row["source"].startswith(LOGS_FROM)]
    return table(kept)


def table(rows: list[dict[str, Any]]) -> bytes:
    """Write rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def main() -> None:
    """Write the sample."""
    parser = argparse.ArgumentParser(prog="python -m experiments.sample", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="the whole")
    parser.add_argument("--out", type=Path, default=SAMPLE, metavar="DIR", help="tests/data")
    options = parser.parse_args()
    total = 0
    for name, content in sampled(options.data):
        path = options.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        total += len(content)
        print(f"{len(content):9,} {name}")
    print(f"{total:9,} bytes")


if __name__ == "__main__":
    main()
