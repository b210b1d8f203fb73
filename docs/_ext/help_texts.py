"""The help of every command, as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click

#: Columns of a help text, whatever the terminal.
WIDTH = 100


def commands() -> str:
    """Return a heading and the help of kvsim and each of its commands."""
    pieces = [f"## `{path}`\n\n```text\n{text}\n```" for path, text in _helps(cli, "kvsim", None)]
    return "\n\n".join(pieces)


def _helps(
    command: click.Command, path: str, parent: click.Context | None
) -> Iterator[tuple[str, str]]:
    context = command.context_class(
        command, info_name=path.rpartition(" ")[2], parent=parent, **command.context_settings
    )
    context.terminal_width = context.max_content_width = WIDTH
    yield path, command.get_help(context).rstrip()
    for name in getattr(command, "list_commands", lambda _: [])(context):
        inner = command.get_command(context, name)  # type: ignore[attr-defined]
        yield from _helps(inner, f"{path} {name}", context)
