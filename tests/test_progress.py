"""Progress bars: in a notebook and on a terminal, nothing in a pipe."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

import kvsim
import workloads
from kvsim.api import progress


def test_a_pipe_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bar("cells", 3) as tick:
        tick(1)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_unless_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress.progress_bar("cells", 3, silent=True) as tick:
        tick(1)
    assert terminal.getvalue() == ""
    with progress.progress_bar("cells", 3) as tick:
        tick(3)
    assert "cells" in terminal.getvalue()


@pytest.mark.long
def test_a_notebook_gets_a_bar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    display: Any = pytest.importorskip("IPython.core.display_functions")
    shown: list[tuple[int, int]] = []

    def show(bar: Any, **_: Any) -> None:
        shown.append((bar.progress, bar.total))

    monkeypatch.setattr(progress, "_is_notebook", lambda: True)
    monkeypatch.setattr(display, "display", show)
    trace = workloads.fixed(prompt=10, output=2, num_requests=2)
    kvsim.sweep(trace, {"block_size": [16, 32]}, model="opt-125m", backend="python")
    assert shown == [(0, 2), (1, 2), (2, 2)]
