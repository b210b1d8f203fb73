"""Commands that must fail for their user's mistake."""

from __future__ import annotations

import shlex

import pytest

from kvsim.cli import main


def refused(capsys: pytest.CaptureFixture[str], line: str) -> str:
    """Run a command; return the one line that it says, with exit code 2."""
    with pytest.raises(SystemExit) as end:
        main(shlex.split(line))
    assert end.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    return said
