"""The command ``kvsim serve``: a live endpoint."""

from __future__ import annotations

from typing import Any

import click

from kvsim.cli.options import (
    ENGINE_SECTIONS,
    SectionedCommand,
    config_options,
    options_given,
    with_beginning,
)
from kvsim.config import Config
from kvsim.kv_events import KVEventsConfig


@click.command(cls=SectionedCommand)
@click.argument("model_name", metavar="[CONFIG.toml | MODEL]", required=False)
@config_options(
    only=(
        *("Model and GPU", "KV memory", "Scheduler limits", "Speculation and adapters"),
        *("Scheduling", *ENGINE_SECTIONS, "Records"),
    ),
    leave_out=(
        *("num_samples", "ends_by", "use_beam_search", "beam_switch", "horizon", "goodput"),
        *("record_steps", "record_memory_map", "record_block_events"),
    ),
)
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="port; 0: any free one")
@click.option("--served-model-name", multiple=True, metavar="NAME", help="names that clients use")
@click.option("--api-key", metavar="KEY", help="clients must send this key")
@click.option("--tokenizer", metavar="FILE", help="a model's tokenizer.json")
@click.option("--clock", default="wall", metavar="wall|SPEED", help="real time, or SPEED times it")
@click.option("--record", metavar="FILE.jsonl.gz", help="trace file for the served requests")
@click.option(
    "--queue-limit", type=click.IntRange(1), help="answer 429 while this many requests wait"
)
@click.option(
    "--hold-limit",
    type=click.IntRange(1, 65536),
    default=256,
    help="requests of P/D pools that may hold blocks for transfers; then 503 (vLLM has no limit)",
)
@click.option(
    "--router", metavar="NAME", help="router of the replicas, with a port of its own after theirs"
)
def serve(model_name: str | None, **options: Any) -> None:
    """Serve a model over vLLM's HTTP protocol, without a GPU.

    It answers in real time, or with --clock 10 ten times faster.
    """
    own = ("host", "port", "served_model_name", "api_key", "tokenizer", "clock", "record")
    mine = {name: options.pop(name) for name in (*own, "queue_limit", "hold_limit", "router")}
    given = with_beginning(model_name, options_given(options))
    try:
        from kvsim.serve.publisher import Transport
        from kvsim.serve.start import Endpoint, serve_until_stopped
    except ModuleNotFoundError as error:
        raise ValueError(
            f"kvsim serve needs {error.name}: pip install 'kvsim[serve]' brings it"
        ) from None
    deployment = {name: value for name, value in given.items() if name in Config.model_fields}
    names = list(mine.pop("served_model_name")) or [str(deployment.get("model", ""))]
    deployment, events = with_events(deployment)
    transport = None if events is None else Transport.of(events)
    serve_until_stopped(Endpoint(names=names, events=transport, **mine), deployment)


def with_events(deployment: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return a deployment's options, and its configuration of KV cache events if it publishes.

    Raises
    ------
    ValueError
        If the configuration of events is wrong.
    """
    given = deployment.get("kv_events_config")
    if given is None:
        return deployment, None
    config = KVEventsConfig.of(given)
    if config.path is not None:
        raise ValueError("--kv-events-config: path is for kvsim run; a server publishes over ZMQ")
    publishes = config.enable_kv_cache_events and config.publisher != "null"
    return deployment, given if publishes else None
