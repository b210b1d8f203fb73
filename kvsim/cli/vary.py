"""``kvsim compare --vary``: values of any option, on the same requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.cli.answers import print_answer, progress_bar
from kvsim.cli.beginning import refuse_both
from kvsim.cli.report import check_report, with_records, write_varied_report
from kvsim.cli.requests import requests_of, seeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.results.result import Result

#: Seeds when none are told: enough for an interval of less than half its width with two.
REPLICATIONS = 5


def compare_options(
    vary: Sequence[str],
    given: dict[str, Any],
    flags: Iterable[str],
    *,
    replications: int | None,
    json_file: str | None,
    report_file: str | None = None,
) -> None:
    """Serve the same requests under every combination, and tell the differences from the first.

    ``given`` are options of all of them, ``flags`` those that were not read from a file.

    Raises
    ------
    ValueError
        For fewer than two configurations, or one replication of requests that have seeds.
    """
    from kvsim.config import RunConfig
    from kvsim.fleet.simulate import describe, run
    from kvsim.report.paired import paired_table, sentence, title_of
    from kvsim.results.replications import average, average_workloads
    from kvsim.study.paired import differences
    from kvsim.study.space import read_varied

    if replications == 1 and "trace" not in given:
        raise ValueError("--replications 1: a difference has no interval then; give 2 or more")
    check_report(report_file)
    space = read_varied(vary)
    refuse_both(flags, space[0], "--vary")
    if len(space) < 2:
        raise ValueError("--vary: give two values or more, OPTION=A,B")
    configs = [RunConfig.build(**{**given, **options}) for options in space]
    has_seeds = configs[0].trace is None
    number = (replications or REPLICATIONS) if has_seeds else replications or 1
    summaries: list[list[dict[str, Any]]] = [[] for _ in space]
    shown: dict[str, Result] = {}
    described, done = [], 0
    notes: list[str] = []
    with progress_bar("simulating", number * len(space), json_file) as tick:
        for one in seeded(configs[0], number):
            requests, said = requests_of(one)
            described.append(describe(requests))
            notes = notes or list(said)  # seeds differ in a digit of it
            for place, config in enumerate(configs):
                again = config.model_copy(update={"seed": one.seed})
                is_shown = report_file is not None and len(described) == 1
                result = run(with_records(again, report_file) if is_shown else again, requests)
                summaries[place].append(result.summary)
                if is_shown:
                    shown[title_of(space[place])] = result
                tick(done := done + 1)
    found = [differences(summaries[0], others) for others in summaries[1:]]
    answer = {
        "workload": average_workloads(described),
        "replications": number,
        "differences_are": sentence(space),
        "rows": [
            {"options": options, **average(own)}
            for options, own in zip(space, summaries, strict=True)
        ],
        "differences": [
            {
                "options": options,
                "against": space[0],
                "metrics": {
                    name: {**gap._asdict(), "is_certain": gap.is_certain}
                    for name, gap in gaps.items()
                },
            }
            for options, gaps in zip(space[1:], found, strict=True)
        ],
    }
    if not has_seeds:
        notes.append("a trace has no seed: one run each, and no interval")
    notes += write_varied_report(answer, shown, report_file)
    print_answer(answer, json_file, lambda: paired_table(answer), notes)
