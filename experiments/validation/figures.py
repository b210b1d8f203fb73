"""Pictures of measured against predicted, for the experiments that validate and calibrate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.validate_kernels import Held
    from experiments.validate_serving import Pair

#: One colour per card, or per number of GPUs; all are told apart in greyscale too.
COLOURS = ("#1b4f9c", "#e08214", "#4d9221", "#8c2d7e")
GREY = "0.55"


def plain(axis: Any, *, base: int = 10) -> None:
    """Write a logarithmic axis in plain numbers; over few decades also at twos and fives."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    few = base == 10 and high < 300 * low
    axis.set_major_locator(LogLocator(base, subs=(1, 2, 5) if few else (1,), numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(labelsize=8)


def diagonal(axes: Any, percent: int) -> None:
    """Draw the line of equality and a band of +-percent around it into the existing axes."""
    limits = [*axes.get_xlim(), *axes.get_ylim()]
    ends = np.array([min(limits), max(limits)])
    axes.plot(ends, ends, color="black", linewidth=0.8, zorder=0)
    room = ends * percent / 100
    axes.fill_between(ends, ends - room, ends + room, color="0.88", zorder=-1)
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal")
    plain(axes.xaxis)
    plain(axes.yaxis)


def kernels_against_measured(figure: Any, found: Sequence[Held]) -> None:
    """Draw every held-out kernel, a panel per kind."""
    figure.set_size_inches(10.5, 7)
    kinds = list(dict.fromkeys(held.kind for held in found))
    cards = list(dict.fromkeys(held.card for held in found))
    panels = figure.subplots(2, -(-len(kinds) // 2), squeeze=False).flat
    for axes, kind in zip(panels, kinds, strict=False):
        for held in found:
            if held.kind == kind:
                axes.loglog(
                    held.table.seconds * 1e6,
                    held.ours * 1e6,
                    ".",
                    markersize=2.5,
                    alpha=0.6,
                    color=COLOURS[cards.index(held.card)],
                    label=f"{held.card}: {np.median(held.errors):.1f} %",
                )
        diagonal(axes, 20)
        axes.set_title(kind, fontsize=10)
        # Looking for the best place among thousands of points takes seconds.
        axes.legend(
            fontsize=8, markerscale=4, title="median error", title_fontsize=8, loc="upper left"
        )
    for axes in list(panels):
        axes.set_axis_off()
    figure.supxlabel("measured, µs")
    figure.supylabel("predicted, µs")
    figure.suptitle("Kernels that no constant was fitted on (grey: within 20 %)")


#: Batch size by kind: its column, and its name on the axis.
SIZES = {
    "GEMM": ("m", "tokens in the batch"),
    "decode attention": ("batch_size", "requests in the batch"),
    "prefill attention": ("tokens", "tokens in the batch"),
}


def kernel_errors_by_size(figure: Any, found: Sequence[Held]) -> None:
    """Draw the median absolute error over the size of the batch, a panel per kind."""
    figure.set_size_inches(11, 3.9)
    cards = list(dict.fromkeys(held.card for held in found))
    panels = figure.subplots(1, len(SIZES))
    for axes, (kind, (column, label)) in zip(panels, SIZES.items(), strict=True):
        for held in found:
            if held.kind.partition(",")[0] != kind:
                continue
            narrow = held.kind.endswith("FP8 KV")
            table = held.table
            sizes = table.batch_size * table.isl if column == "tokens" else table[column]
            middles, medians = by_octave(sizes.to_numpy(), held.errors)
            axes.semilogx(
                middles,
                medians,
                marker="o",
                markersize=4,
                linestyle="--" if narrow else "-",
                color=COLOURS[cards.index(held.card)],
                label=f"{held.card}{', FP8 KV' if narrow else ''}",
                base=2,
            )
        axes.set_ylim(0)
        plain(axes.xaxis, base=2)
        axes.set_title(kind, fontsize=10)
        axes.set_xlabel(label, fontsize=9)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8)
    panels[0].set_ylabel("median absolute error, %")
    figure.suptitle("Error of kernels that no constant was fitted on, by size of the batch")


def by_octave(sizes: Any, errors: Any, fewest: int = 5) -> tuple[list[float], list[float]]:
    """Return median size and median error of each factor of two that has a few kernels."""
    octaves = np.floor(np.log2(sizes))
    groups = [octaves == octave for octave in np.unique(octaves)]
    groups = [group for group in groups if group.sum() >= fewest]
    middles = [float(np.median(sizes[group])) for group in groups]
    return middles, [float(np.median(errors[group])) for group in groups]


def kind_of_run(name: str) -> str:
    """Return model and GPUs, the beginning of a run's name."""
    words = name.replace(" x H100", "xH100").split()
    return f"{words[0]}, {words[1].replace('xH100', ' x H100')}"


def runs_against_measured(figure: Any, pairs: Sequence[Pair]) -> None:
    """Draw the mean end-to-end latency of every run."""
    figure.set_size_inches(6.6, 6.8)
    axes = figure.subplots()
    kinds = sorted({kind_of_run(p.run.name) for p in pairs})
    colours = [f"C{i}" for i in range(10)]
    for kind, colour in zip(kinds, colours, strict=False):
        for fitted in (False, True):
            of = [p for p in pairs if kind_of_run(p.run.name) == kind and p.fitted == fitted]
            if not of:
                continue
            axes.loglog(
                [p.run.e2e.mean() for p in of],
                [p.found.e2e.mean() for p in of],
                "o",
                markersize=6,
                color=colour,
                fillstyle="none" if fitted else "full",
                label=f"{kind}: {len(of)}{' (fitted)' if fitted else ''}",
            )
    diagonal(axes, 10)
    axes.set_xlabel("measured, s")
    axes.set_ylabel("simulated, s")
    axes.legend(fontsize=8, title="runs", title_fontsize=8)
    axes.set_title("Mean end-to-end latency of whole serving runs (grey: within 10 %)")


def loop_errors_by_batch(figure: Any, loops: Sequence[Pair]) -> None:
    """Draw the error of closed loops over the requests in flight, a panel per prompt length."""
    figure.set_size_inches(10, 4.2)
    prompts = sorted({int(p.run.trace.num_prompt_tokens[0]) for p in loops})
    panels = figure.subplots(1, len(prompts), sharey=True, squeeze=False)[0]
    gpus = sorted({p.run.options["tensor_parallel_size"] for p in loops})
    for axes, prompt in zip(panels, prompts, strict=True):
        axes.axhline(0, color="black", linewidth=0.8)
        for n, colour in zip(gpus, COLOURS, strict=False):
            of = [
                p
                for p in loops
                if p.run.options["tensor_parallel_size"] == n
                and p.run.trace.num_prompt_tokens[0] == prompt
            ]
            axes.semilogx(
                [p.run.options["max_concurrency"] for p in of],
                [p.errors["E2E"] for p in of],
                "o",
                base=2,
                color=colour,
                alpha=0.8,
                fillstyle="none" if of and of[0].fitted else "full",
                label=f"{n} GPUs{' (fitted)' if of and of[0].fitted else ''}",
            )
        plain(axes.xaxis, base=2)
        axes.set_title(f"prompts of {prompt:,} tokens", fontsize=10)
        axes.set_xlabel("requests in flight")
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8)
    panels[0].set_ylabel("simulated over measured, %")
    figure.suptitle("End-to-end latency of closed loops: Qwen3-32B on H100s, vLLM 0.12")


def second_by_second(figure: Any, pair: Pair) -> None:
    """Draw what a server logged each second, and what was simulated."""
    figure.set_size_inches(9, 6)
    series, memory = pair.run.series, pair.found.memory
    panels = figure.subplots(3, 1, sharex=True)
    for axes, theirs, ours, factor, label in zip(
        panels,
        ("running", "waiting", "kv_cache_pct"),
        ("num_running", "num_waiting", "kv_usage"),
        (1, 1, 100),
        ("running requests", "waiting requests", "KV blocks in use, %"),
        strict=True,
    ):
        axes.step(series.t, series[theirs], where="post", color=GREY, linewidth=2, label="measured")
        axes.plot(
            memory["time"],
            factor * memory[ours],
            color=COLOURS[0],
            linewidth=1,
            label="simulated",
        )
        axes.set_ylim(0)
        axes.set_ylabel(label, fontsize=9)
        axes.grid(alpha=0.25)
    panels[0].legend(fontsize=8)
    panels[-1].set_xlabel("seconds since the first request")
    figure.suptitle("300 ShareGPT requests, Llama-3.1-8B on an RTX 4090 short of memory")


def capacity_errors(figure: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Draw how far predicted blocks are off, a line per start-up log."""
    figure.set_size_inches(8, 1.4 + 0.35 * len(rows))
    axes = figure.subplots()
    places = np.arange(len(rows))[::-1]
    axes.axvspan(-3, 3, color="0.9", zorder=-1)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.plot(
        [row["as_shipped_percent"] for row in rows],
        places,
        "o",
        fillstyle="none",
        color=GREY,
        label="as shipped",
    )
    axes.plot(
        [row["left_out_percent"] for row in rows],
        places,
        "o",
        color=COLOURS[0],
        label="its own log left out of the base overhead",
    )
    axes.set_yticks(places, [f"{row['log']}: {row['logged_blocks']:,}" for row in rows], fontsize=8)
    axes.set_ylabel("model, card, version of vLLM: blocks it logged", fontsize=9)
    axes.set_xlabel("predicted over logged KV blocks, %")
    axes.legend(fontsize=8, loc="lower left")
    figure.suptitle("KV blocks at start-up, without any logged memory figure (grey: within 3 %)")


def fit_errors(figure: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Draw the error of each fit on its own half and on the other."""
    figure.set_size_inches(9, 1.2 + 0.4 * len(rows))
    axes = figure.subplots()
    places = np.arange(len(rows))[::-1]
    for name, shift, colour, label in (
        ("fitted", 0.2, GREY, "on the half that it was fitted on"),
        ("held_out", -0.2, COLOURS[0], "on the other half"),
    ):
        bars = axes.barh(
            places + shift,
            [row[f"{name}_percent"] for row in rows],
            0.38,
            color=colour,
            label=label,
        )
        axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
    axes.set_yticks(places, [f"{row['card']}, {row['kernels']}" for row in rows], fontsize=8)
    axes.set_xlabel("median absolute error, %")
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    axes.set_title("Error of each fit of kernel times")
