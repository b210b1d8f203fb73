"""The guide of eight questions: its commands are ones that answer."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvsim.cli import main

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "questions.md"
COMMANDS = re.findall(r"^\$ kvsim (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_there_are_eight() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(COMMANDS) == len(re.findall(r"^## ", text, re.MULTILINE)) == 8


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_answers(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With fewer requests, which may show no rate: what the guide shows takes minutes."""
    short = re.sub(r"--num-requests \d+", "--num-requests 60", command)
    main(shlex.split(short))
    printed = capsys.readouterr().out
    varied = re.search(r"--vary ([\w-]+)=(\S+)", command)
    if varied:
        assert varied[1] in printed
        assert all(value in printed for value in varied[2].split(","))
    else:
        assert printed.startswith("SLO ")
        assert "\nbest " in printed
