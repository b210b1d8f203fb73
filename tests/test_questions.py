"""The guide of twelve questions: its commands are ones that answer."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim.cli import main

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "questions.md"
#: Each command, and the lines that the guide shows of what it prints.
BLOCKS = re.findall(r"^\$ kvsim (.+)\n((?:.*\n)*?)```", PAGE.read_text("utf-8"), re.MULTILINE)
COMMANDS = re.findall(r"^\$ kvsim (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_there_are_twelve_each_with_a_reading_and_a_limit() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(COMMANDS) == len(re.findall(r"^## ", text, re.MULTILINE)) == 12
    assert text.count("- **Read it**") == text.count("- **Do not trust it**") == 12


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
    elif not command.startswith("search"):
        assert printed
    else:
        assert printed.startswith("SLO ")
        assert "\nbest " in printed


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), BLOCKS)
def test_the_guide_shows_what_is_printed(command: str, shown: str) -> None:
    """In full, as a shell would: every line shown is printed, in that order."""
    done = subprocess.run(
        [sys.executable, "-m", "kvsim", *shlex.split(command)],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    printed = iter([line.rstrip() for line in done.stdout.splitlines()])
    for line in filter(None, shown.splitlines()):
        assert line in printed, line
    assert done.stderr.count("requests/s requested") <= 1
