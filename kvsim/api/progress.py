"""Progress bars on a terminal and in a notebook; a pipe gets none."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def progress_bar(
    what: str, total: int, *, silent: bool = False
) -> Iterator[Callable[[int], object]]:
    """Show a bar during the ``with`` block; yield a function that sets its count."""
    if silent or sys.stderr is None:
        yield lambda count: None
    elif sys.stderr.isatty():
        with _on_terminal(what, total) as tick:
            yield tick
    elif _is_notebook():
        yield _in_notebook(total)
    else:
        yield lambda count: None


@contextmanager
def _on_terminal(what: str, total: int) -> Iterator[Callable[[int], object]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.update(task, completed=count)


def _is_notebook() -> bool:
    if "IPython" not in sys.modules:  # a notebook would have imported it
        return False
    from rich.console import Console

    return Console().is_jupyter


def _in_notebook(total: int) -> Callable[[int], object]:
    """Display IPython's own bar, which unlike Rich's needs no widgets."""
    bar: Any = import_module("IPython.display").ProgressBar(total)
    bar.display()

    def tick(count: int) -> None:
        bar.progress = count

    return tick
