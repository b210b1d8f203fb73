"""Models and GPUs by name, each number with its source.

The tables are ``models.toml`` and ``gpus.toml``, read at the first look-up, not at import. A
model that is not in the table can be read from its Hugging Face ``config.json``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kvsim import errors
from kvsim.catalog.spec import AttentionLayer, GpuSpec, ModelSpec

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = [
    "AttentionLayer",
    "GpuSpec",
    "ModelSpec",
    "get_gpu",
    "get_model",
    "gpu_names",
    "model_names",
]

Spec = TypeVar("Spec", ModelSpec, GpuSpec)

#: Parts of a Hugging Face id that name a fine-tune, not a shape. Versions are not among them:
#: Mistral-7B v0.1 has a sliding window and v0.2 has none.
FINE_TUNES = frozenset({"base", "chat", "hf", "instruct", "it", "pt", "thinking"})

#: A release date at the end of an id: year and month (-2407) or month and day (-0324).
DATE = re.compile(r"-(2[3-9](0[1-9]|1[0-2])|(0[1-9]|1[0-2])([0-2]\d|3[01]))$")

#: Weight formats by the end of an id, most specific first. An 8-bit GPTQ checkpoint has the bytes
#: of int8; a checkpoint of 4-bit integers without a named method has the bytes of GPTQ.
QUANTIZED_ENDINGS: tuple[tuple[re.Pattern[str], str | None], ...] = (
    (re.compile(r"-gptq-(int8|8bit)$"), "int8"),
    (re.compile(r"-gptq(-(int4|4bit|marlin))?$"), "gptq"),
    (re.compile(r"-awq(-(int4|4bit|gemm|marlin))?$"), "awq"),
    (re.compile(r"[-.]fp8([-_](dynamic|static|block|kv|static-pertensor))?$"), "fp8"),
    (re.compile(r"-(quantized\.)?(w8a8|w8a16|int8)$"), "int8"),
    (re.compile(r"-(quantized\.)?w4a16$"), "gptq"),
    (re.compile(r"-(int4-)?(mixed-)?auto-?round(-(int4|gptq|awq))?$"), "gptq"),
    (re.compile(r"(-unsloth)?-bnb-(4bit|nf4)$"), "bitsandbytes"),
    (re.compile(r"(-unsloth)?-bnb-8bit$"), "int8"),
    (re.compile(r"-(nvfp4(a16)?(-v2)?|fp4)$"), "nvfp4"),
    (re.compile(r"-mxfp4$"), "mxfp4"),
    (re.compile(r"-(bf16|fp16)$"), None),
)

#: Words that drivers and shops put before a GPU's name.
GPU_BRANDS = ("nvidia-", "amd-", "tesla-", "geforce-", "quadro-", "instinct-")


class _Catalogue(NamedTuple):
    models: Mapping[str, ModelSpec]
    model_index: Mapping[str, str]  # known names in lower case -> short name
    gpus: Mapping[str, GpuSpec]
    gpu_index: Mapping[str, str]


def get_model(
    model: str | os.PathLike[str] | ModelSpec, overrides: Mapping[str, Any] | None = None
) -> ModelSpec:
    """Find a model by short name, Hugging Face id or ``config.json``.

    Parameters
    ----------
    model
        A catalogue name (``llama-3-8b``), a Hugging Face id without regard to case, organisation,
        ``Meta-``, fine-tune or date (``meta-llama/Meta-Llama-3-8B-Instruct``), a path to a
        ``config.json`` or to the directory that holds it, or a ready spec, returned as it is.
        Endings such as ``-FP8``, ``-AWQ`` or ``-GPTQ-Int4`` set ``quantization``.
    overrides
        Values that replace those of its ``config.json``, as in vLLM's ``--hf-overrides``.

    Returns
    -------
    ModelSpec
        The shape of the text backbone.

    Raises
    ------
    ValueError
        An unknown name (near ones are suggested), or a ``config.json`` that cannot be used.

    Examples
    --------
    >>> get_model("Qwen/Qwen2.5-72B-Instruct-AWQ").quantization
    'awq'
    """
    if not isinstance(model, str | ModelSpec) or (isinstance(model, str) and is_config_path(model)):
        from kvsim.catalog.hf_config import read_hf_config

        return read_hf_config(model, overrides)
    if overrides:
        from kvsim.catalog.hf_overrides import override_fields

        return override_fields(get_model(model), overrides)
    if isinstance(model, ModelSpec):
        return model
    catalogue = _catalogue()
    name = _model_key(model)
    whole = catalogue.model_index.get(model.strip().lower())
    if short := whole or _find_shape(name, catalogue.model_index):
        return catalogue.models[short]
    for pattern, quantization in QUANTIZED_ENDINGS:
        rest = pattern.sub("", name)
        if rest != name and (short := _find_shape(rest, catalogue.model_index)):
            return replace(catalogue.models[short], **_stored(model, quantization))
    near = _bases_of(name, catalogue.model_index) or _near(name, _known(catalogue.models))
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ValueError(
        f"unknown model {model!r}{hint} (kvsim list models shows all); for any other "
        "model, such as a fine-tune, give the path of its config.json, or "
        "--hf-config-path with that path or the name of its base model"
    )


def stored_as_named(name: str) -> dict[str, Any]:
    """Return the fields of a model that the ending of an id determines: the weight format.

    Parameters
    ----------
    name
        An id, known or not, such as ``someone/my-tune-FP8``.

    Returns
    -------
    dict
        ``quantization`` and ``kv_cache_dtype``, or nothing.
    """
    key = _model_key(name)
    for pattern, quantization in QUANTIZED_ENDINGS:
        if pattern.search(key):
            return _stored(name, quantization)
    return {}


def _stored(name: str, quantization: str | None) -> dict[str, Any]:
    # NVIDIA's checkpoints in these formats set the KV dtype to FP8, and vLLM follows them.
    asks = name.lower().startswith("nvidia/") and quantization in ("nvfp4", "fp8")
    return {"quantization": quantization, "kv_cache_dtype": "fp8" if asks else None}


def get_gpu(gpu: str | GpuSpec) -> GpuSpec:
    """Find a GPU by short name, alias or the name its driver reports.

    Parameters
    ----------
    gpu
        A catalogue name (``a100-80gb``), the result of ``torch.cuda.get_device_name`` (``NVIDIA
        A100-SXM4-80GB``), without regard to case, or a ready spec, returned as it is. Figures of a
        card can be changed: ``h200-sxm+memory=96GiB+bandwidth=4TB/s+name=h20``.

    Returns
    -------
    GpuSpec
        Memory in bytes, rates per second.

    Raises
    ------
    ValueError
        An unknown name; near ones are suggested.

    Examples
    --------
    >>> get_gpu("NVIDIA GeForce RTX 4090").name
    'rtx-4090'
    """
    if isinstance(gpu, GpuSpec):
        return gpu
    catalogue = _catalogue()
    if "+" in gpu:
        from kvsim.catalog.changed_card import changed
        from kvsim.registry import parse_spec

        name, changes = parse_spec(gpu)
        return changed(get_gpu(name), changes, gpu)
    short = catalogue.gpu_index.get(_gpu_key(gpu))
    if short is None:
        raise errors.unknown_name("GPU", gpu, _known(catalogue.gpus))
    return catalogue.gpus[short]


def model_names() -> tuple[str, ...]:
    """List the short names of the models, family by family.

    Returns
    -------
    tuple of str
        Every name :func:`get_model` knows without an alias.
    """
    return tuple(_catalogue().models)


def gpu_names() -> tuple[str, ...]:
    """List the short names of the GPUs.

    Returns
    -------
    tuple of str
        The names that :func:`get_gpu` knows, without aliases.
    """
    return tuple(_catalogue().gpus)


# -- names ------------------------------------------------------------------------------------


def is_config_path(text: str) -> bool:
    """Return True if a text is the path of a file, or of a directory with a config."""
    if text.endswith(".json") or text.startswith(("./", "../", "/", "~")):
        return True
    path = Path(text)
    return path.is_file() or (path / "config.json").is_file()


def _model_key(name: str) -> str:
    return name.strip().lower().rsplit("/", 1)[-1].removeprefix("meta-")


def _bases_of(key: str, index: Mapping[str, str]) -> list[str]:
    """Return the models with all name parts in ``key``; of these, those with the most parts."""
    parts = set(re.split(r"[-_]", key))
    found: dict[str, int] = {}
    for name, short in index.items():
        own = name.split("-")
        if _size(name) and len(own) > 1 and "/" not in name and parts.issuperset(own):
            found[short] = max(found.get(short, 0), len(own))
    most = max(found.values(), default=0)
    return [short for short, number in found.items() if number == most][:3]


def _near(key: str, names: list[str]) -> list[str]:
    """Return similar names of the same model size, or else very similar ones of any size."""
    size = _size(key)
    of_size = [one for one in names if not size or _size(one) == size]
    return get_close_matches(key, of_size, cutoff=0.75) or get_close_matches(
        key, names, cutoff=0.85
    )


def _size(name: str) -> str:
    """Return the part of a name that states the number of parameters."""
    found = re.search(r"(?:^|-)(\d+(?:\.\d+)?b)(?:-|$)", name)
    return found[1] if found else ""


def _find_shape(name: str, index: Mapping[str, str]) -> str | None:
    """Drop parts of a name that do not change the shape until the name is known."""
    plain = "-".join(part for part in name.split("-") if part not in FINE_TUNES)
    for candidate in (name, plain, DATE.sub("", plain)):
        if candidate in index:
            return index[candidate]
    return None


def _gpu_key(name: str) -> str:
    key = re.sub(r"[\s_]+", "-", name.strip().lower())
    for brand in GPU_BRANDS:
        key = key.removeprefix(brand)
    return key


def _known(specs: Mapping[str, ModelSpec] | Mapping[str, GpuSpec]) -> list[str]:
    return [*specs, *(alias for spec in specs.values() for alias in spec.aliases)]


# -- tables -----------------------------------------------------------------------------------


@cache
def _catalogue() -> _Catalogue:
    models = {name: _model_spec(name, table) for name, table in _resolved("models.toml")}
    gpus = {name: _gpu_spec(name, table) for name, table in _resolved("gpus.toml")}
    model_index = _index(models)
    for name, spec in models.items():
        model_index.setdefault(spec.hf_id.lower(), name)  # before names without organisation
        model_index.setdefault(_model_key(spec.hf_id), name)
    return _Catalogue(models, model_index, gpus, _index(gpus))


def _resolved(file: str) -> list[tuple[str, dict[str, Any]]]:
    """Read a table; an entry with ``like`` inherits the values of the entry that ``like`` names."""
    import tomllib
    from importlib import resources

    tables = tomllib.loads(resources.files(__package__).joinpath(file).read_text("utf-8"))
    return [(name, _with_base(table, tables)) for name, table in tables.items()]


def _with_base(table: dict[str, Any], tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if "like" not in table:
        return table
    own = {key: value for key, value in table.items() if key != "like"}
    base = _with_base(tables[table["like"]], tables)
    return {key: value for key, value in base.items() if key != "aliases"} | own


def _model_spec(name: str, table: dict[str, Any]) -> ModelSpec:
    fields = {key: value for key, value in table.items() if key != "checkpoint_params"}
    names = ("aliases", "quantized_parts", "compress_ratios")
    lists = {key: tuple(table.get(key, ())) for key in names}
    return ModelSpec(name=name, **fields | lists)


def _gpu_spec(name: str, table: dict[str, Any]) -> GpuSpec:
    lists = {key: tuple(table.get(key, ())) for key in ("aliases", "unverified")}
    return GpuSpec(name=name, **table | lists)


def _index(specs: Mapping[str, Spec]) -> dict[str, str]:
    names = {name: name for name in specs}
    for name, spec in specs.items():
        for alias in spec.aliases:
            if names.setdefault(alias, name) != name:
                raise RuntimeError(f"{alias!r} names both {names[alias]!r} and {name!r}")
    return names
