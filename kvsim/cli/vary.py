"""``kvsim compare --vary``: values of any option, on the same requests."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from kvsim.api.requests import requests_of
from kvsim.budget.versions import upgrade_notes
from kvsim.cli.answers import print_answer, progress_bar, save_named
from kvsim.cli.policies import bound_notes, bounds_of, names_of, read_policies
from kvsim.cli.report import check_report, with_records, write_report
from kvsim.results.cost import RULE
from kvsim.results.notes import add_notes, merged, notes_of, shared
from kvsim.study.plan import seeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.config import RunConfig
    from kvsim.results.result import Result

#: Default number of seeds: the interval is less than half as wide as with two seeds.
REPLICATIONS = 5


def compare_options(
    vary: Sequence[str],
    given: dict[str, Any],
    flags: Iterable[str],
    *,
    policies: str | None,
    price: Sequence[str],
    replications: int | None,
    json_file: str | None,
    report_file: str | None,
    out: str | None,
) -> None:
    """Serve the same requests under every combination, and report differences from the first.

    ``given`` are options that all share, ``flags`` those that were not read from a file;
    ``policies`` replace ``vary``. A page and a folder show each configuration's first seed.

    Raises
    ------
    ValueError
        For fewer than two configurations.
    """
    from kvsim.config import RunConfig
    from kvsim.fleet.simulate import describe, run
    from kvsim.report.paired import paired_table, sentence, title_of
    from kvsim.report.title import deployments
    from kvsim.results.cost import add_cost, prices_of
    from kvsim.results.replications import average, average_workloads

    check_report(report_file)
    space, options = _space(vary, policies, flags)
    configs = [RunConfig.build(**{**given, **own}) for own in options]
    prices = prices_of(price, configs)
    has_seeds = configs[0].trace is None
    number = replications or (REPLICATIONS if has_seeds else 1)
    titles = [title_of(options) for options in space]
    summaries: list[list[dict[str, Any]]] = [[] for _ in space]
    noted: list[list[list[str]]] = [[] for _ in space]
    first: dict[str, Result] = {}
    described = []
    bounds: list[dict[str, float]] = []

    def serve(seed: RunConfig) -> None:
        requests, said = requests_of(seed)
        described.append(describe(requests))
        for place, config in enumerate(configs):
            again = config.model_copy(update={"seed": seed.seed})
            if len(described) == 1:
                again = with_records(again, report_file, out)
            result = add_cost(run(again, requests), prices)
            add_notes(result.provenance, said)
            summaries[place].append(result.summary)
            noted[place].append(notes_of(result.provenance))
            first.setdefault(titles[place], result)
            tick(sum(map(len, summaries)))
        if policies is not None:
            bounds.append(bounds_of(requests, summaries[0][-1]))

    with progress_bar("simulating", number * len(space), json_file) as tick:
        for seed in seeded(configs[0], number):
            serve(seed)
    answer: dict[str, Any] = {
        "deployment": deployments([(one.config, one.summary) for one in first.values()]),
        "workload": average_workloads(described),
        "replications": number,
        "differences_are": sentence(space),
        "rows": [{"options": o} | average(own) for o, own in zip(space, summaries, strict=True)],
        "differences": _differences(space, summaries),
        **({"bounds": average(bounds)} if bounds else {}),
        "versions": [*upgrade_notes(map(attrgetter("vllm_version"), configs))],
    }
    notes = shared(dict(zip(titles, map(merged, noted), strict=True)))
    notes += _interval_notes(number, has_seeds) + answer["versions"]
    notes += _extra_notes(prices, answer.get("bounds"))
    save_named(first, out, {"comparison.json": answer})
    page = ({**answer, "notes": notes}, first)
    notes += write_report(report_file, lambda compose: compose.varied_page(*page))
    print_answer(answer, json_file, lambda: paired_table(answer), notes, out)


def _space(
    vary: Sequence[str], policies: str | None, flags: Iterable[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the compared values as tables show them, and the options that each selects."""
    from kvsim.study.space import read_varied, refuse_both

    if policies is None:
        space = options = read_varied(vary)
        refuse_both(flags, space[0], "--vary")
    else:
        space, options = [{"policy": one} for one in names_of(policies)], read_policies(policies)
        refuse_both(flags, ("session_policy",), "--policies")
    if len(space) < 2:
        how = "--vary: give two values or more, OPTION=A,B"
        raise ValueError(how if policies is None else "--policies: give two or more, A,B")
    return space, options


def _extra_notes(prices: dict[str, float], bounds: dict[str, Any] | None) -> list[str]:
    notes = [f"cost: {RULE}"] if prices else []
    return notes + (bound_notes(bounds) if bounds else [])


def _interval_notes(number: int, has_seeds: bool) -> list[str]:
    why = "" if has_seeds else "a trace has no seed: "
    return [f"{why}one run per configuration, without an interval"] if number == 1 else []


def _differences(
    space: Sequence[dict[str, str]], summaries: Sequence[Sequence[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the differences of the other configurations from the first one."""
    from kvsim.study.paired import differences

    return [
        {
            "options": options,
            "against": space[0],
            "metrics": {
                name: {**gap._asdict(), "is_certain": gap.is_certain}
                for name, gap in differences(summaries[0], others).items()
            },
        }
        for options, others in zip(space[1:], summaries[1:], strict=True)
    ]
