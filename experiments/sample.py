"""Make the sample in tests/data from the whole set of measurements, without random choices.

The sample contains only sets under Apache-2.0, MIT or CC-BY 4.0, and sets recorded for this
project: whole small sets, every tenth row or one engine's rows of large tables, and the beginning
of traces. A missing set is an error, so that the sample is never incomplete.

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

#: Patterns of the files that are copied.
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
#: Tables from which the header and every tenth row are taken, beginning with the first row.
EVERY = 10
THINNED = ("kernels/vidur/*_attention.csv.gz", "kernels/vidur/*_mlp.csv.gz")
#: Files that are copied whole and compressed.
COMPRESSED = ("vllm_planner2.json",)
#: A table, and the column and value of the rows that are taken from it.
POINTS, POINTS_OF = "serving/inferencex/points.csv.gz", ("engine", "vllm")
#: Traces: file, number of rows from the beginning, and name of the file in the sample.
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
#: Start-up logs, of which only those from this repository are taken; its licence is MIT.
LOGS, LOGS_FROM = "vllm_startup_blocks.csv", "github:casys-kaist/LLMServingSim"


def sampled(data: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the sample: relative path and content."""
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
    """Return the files that match a pattern; it is an error if there are none."""
    paths = sorted(data.glob(pattern))
    if not paths:
        raise SystemExit(f"sample: {data} has no {pattern}")
    return paths


def packed(lines: Iterable[bytes]) -> bytes:
    """Return gzipped lines, without a time in the header, so that equal lines give equal files."""
    return gzip.compress(b"".join(lines), 9, mtime=0)


def logs(path: Path) -> bytes:
    """Return the start-up logs of one repository; ``line`` is the line in the whole file."""
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
