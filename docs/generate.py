"""Make what is generated from the code.

- ``python docs/generate.py`` writes ``kvsim/options.py``, the types of the options.
- ``python docs/generate.py PAGE`` prints a page of the reference with its generated parts.
- ``python docs/generate.py --check`` changes nothing: it fills every page and compares
  ``kvsim/options.py``. It prints what is wrong, one line each, and exits with 1.

The meanings of columns and keys are the tables ``docs/reference/fields/*.csv``: a new name needs a
row there.
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

from generated_parts import PART, filled  # noqa: E402
from options import FILE, options_file  # noqa: E402


def pages() -> list[Path]:
    """Return the pages with generated parts."""
    found = sorted(DOCS.rglob("*.md"))
    written = [p for p in found if not {"_build", "notebooks"} & set(p.relative_to(DOCS).parts)]
    return [path for path in written if PART.search(path.read_text(encoding="utf-8"))]


def problems() -> list[str]:
    """Return what is out of date or cannot be filled, one line each."""
    found = []
    if options_file() != FILE.read_text(encoding="utf-8"):
        found.append(
            f"{FILE.relative_to(DOCS.parent)}: python docs/generate.py brings it up to date"
        )
    for page in pages():
        try:
            filled(page.read_text(encoding="utf-8"))
        except ValueError as error:
            found.append(f"{page.relative_to(DOCS.parent)}: {error}")
    return found


def main(arguments: list[str]) -> int:
    """Write, print or check, as the arguments say."""
    if arguments == ["--check"]:
        found = problems()
        sys.stdout.write("".join(f"{line}\n" for line in found))
        return 1 if found else 0
    if arguments:
        sys.stdout.write("".join(filled(Path(page).read_text("utf-8")) for page in arguments))
    else:
        FILE.write_text(options_file(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
