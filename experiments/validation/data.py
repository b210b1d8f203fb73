"""The measurements that an experiment reads: the sample in tests/data, or a folder with all."""

from __future__ import annotations

import argparse
from pathlib import Path

#: The measured sets with licences that allow redistribution; tests/data/README.md lists them.
SAMPLE = Path(__file__).resolve().parents[2] / "tests" / "data"

#: Data sets that an experiment reads and the sample lacks, with the reason.
LEFT_OUT = {
    "serving/qwen3-14b_h100_vllm0.23": "no licence stated",
    "serving/h100_vllm0.15": "no licence stated",
    "vllm_startup_blocks.csv": "all logs but one: no licence stated",
}


def folder(text: str) -> Path:
    """Return a folder to write to, which need not be there yet."""
    if Path(text).exists() and not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a file, not a folder")
    return Path(text)


def command(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Return the command line of a script, with --data and --out."""
    parser = argparse.ArgumentParser(prog=f"python -m experiments.{name}", description=doc)
    parser.add_argument(
        "--data",
        type=Path,
        default=SAMPLE,
        metavar="FOLDER",
        help="the folder with all measurements (default: the sample in tests/data)",
    )
    parser.add_argument("--out", type=folder, metavar="DIR", help="write JSON and pictures there")
    return parser


def is_sample(data: Path) -> bool:
    """Return True if the folder is the sample in tests/data."""
    return data.resolve() == SAMPLE


def absent(data: Path, sets: tuple[str, ...]) -> dict[str, str]:
    """Return which of the sets a folder lacks, all or most of it, and why."""
    left_out = LEFT_OUT if is_sample(data) else {}
    lacking = {name: "no such file or folder" for name in sets if not (data / name).exists()}
    return lacking | {name: left_out[name] for name in sets if name in left_out}


def opening(data: Path, sets: tuple[str, ...]) -> str:
    """Return a script's first line: what it reads, and what it has to do without."""
    lacking = ", ".join(f"{name} ({why})" for name, why in absent(data, sets).items())
    text = f"Data: {'the sample in tests/data' if is_sample(data) else data}; "
    text += f"absent: {lacking}." if lacking else "nothing absent."
    return text + (" --data FOLDER reads the whole." if is_sample(data) and lacking else "")


def require(parser: argparse.ArgumentParser, data: Path, sets: tuple[str, ...]) -> None:
    """End a script with a message if a folder has none of the sets."""
    if not any((data / name).exists() for name in sets):
        parser.error(f"{data}: has none of {', '.join(sets)}; --data names the measurements")
