"""Make the tutorial's pictures with its own commands: ``python docs/images/tutorial.py``."""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path

from PIL import Image

from kvsim.cli import main as cli

HERE = Path(__file__).parent
TUTORIAL = HERE.parent / "tutorial.md"
COLOURS = 256
MAXCOVERAGE = Image.Quantize.MAXCOVERAGE  # keeps the small patches of a legend

#: Picture of the page: figure in the folders that the commands write.
PICTURES = {
    "tutorial-memory": "found/memory.png",
    "tutorial-latency": "found/latency.png",
    "tutorial-limited": "limited/memory.png",
    "tutorial-mended": "mended/memory.png",
}


def main() -> None:
    """Run the commands with ``--out`` and keep their figures, with few colours."""
    lines = TUTORIAL.read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        for line in lines:
            if line.startswith("kvsim run") and (out := re.search(r"--out (\w+)", line)):
                words = shlex.split(line.replace(out[0], f"--out {folder}/{out[1]}"))
                cli(words[1:])
        for name, figure in PICTURES.items():
            picture = Image.open(Path(folder) / figure).convert("RGB")
            small = picture.quantize(COLOURS, method=MAXCOVERAGE, dither=Image.Dither.NONE)
            small.save(HERE / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
