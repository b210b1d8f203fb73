"""The command line: the group of commands, and the exit codes."""

from __future__ import annotations

import errno
import gc
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.answers import say_notes, show
from kvsim.cli.deferred import COMMANDS, PASTED, Deferred
from kvsim.cli.pairs import flag, join_pairs
from kvsim.errors import FieldError, UnfinishedError, too_large

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Exit code of a command that Ctrl-C stopped, as in shells.
INTERRUPTED = 130


class Commands(click.Group):
    """The commands; a reader such as ``| head`` may close their output early."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        return found.imported() if isinstance(found, Deferred) else found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line per command, as click does, but import none."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        rows = [(n, self.commands[n].get_short_help_str(limit)) for n in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would exit with 1
            _drop_output()
            raise click.exceptions.Exit(0) from None


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "token_normalize_func": lambda token: token.replace("_", "-"),  # --max_num_seqs works too
    },
    invoke_without_command=True,
)
@click.version_option(package_name="kvsim")
@click.pass_context
def cli(context: click.Context) -> None:
    """Simulate KV-cache managers: requests that fit, memory wasted, latency and throughput.

    Start with `kvsim compare`, which needs no arguments.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _name, (_module, _line) in COMMANDS.items():
    cli.add_command(Deferred(_name, _module, _line))


@cli.command("list")
@click.argument("kind", required=False)
def list_(kind: str | None) -> None:
    """List the names of models, gpus, allocators, routers, ..."""
    from kvsim.report.listing import KINDS, listing

    if kind is None:
        click.echo(f"kvsim list KIND lists the names of a kind: {', '.join(KINDS)}")
        return
    show(listing(kind))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit 0 when done, 2 for a user's mistake, 130 on Ctrl-C, else 1."""
    if arguments is None:
        gc.freeze()  # modules live as long as the process, so the collector may skip them
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        words = join_pairs(given)
        if words and words[0] in PASTED:
            from kvsim.cli.pasted import translate

            line = translate(words, cli)
            say_notes(line.notes())
            words = line.words
        cli.main(words, prog_name="kvsim", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        _fail(f"{error.ctx.command.name} needs a command: {', '.join(_commands(error.ctx))}", 2)
    except click.ClickException as error:
        _fail(" ".join(error.format_message().split()), 2)
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):
            raise error.__cause__ from None
        _fail("interrupted; no file is incomplete", INTERRUPTED)
    except FieldError as error:
        _fail(error.said_of(flag(error.field)), 2)
    except (ValueError, UnfinishedError) as error:
        _fail(" ".join(str(error).split()), 2 if isinstance(error, ValueError) else 1)
    except (MemoryError, OverflowError) as error:
        _fail(str(too_large(error)), 2)
    except OSError as error:
        if error.filename is not None:
            raise
        _end_without_output(error)


def _end_without_output(error: OSError) -> None:
    _drop_output()
    if isinstance(error, BrokenPipeError):  # raised by the last flush
        sys.exit(0)
    if error.errno == errno.ENOMEM:
        _fail(f"too large: {error.strerror}", 2)
    _fail(f"cannot write the output: {error.strerror or error}", 1)


def _drop_output() -> None:
    """Discard buffered output; Python would fail again at exit if it were flushed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _commands(context: click.Context) -> list[str]:
    command = context.command
    return command.list_commands(context) if isinstance(command, click.Group) else []


def _fail(message: str, code: int) -> None:
    click.echo(f"kvsim: {message}", err=True)
    sys.exit(code)
