"""Read a model's shape from its Hugging Face ``config.json``.

Values of a file are used unchanged. A missing key that is needed is an error that names the file
and the key. ``hf_families.py`` reads the keys of each family.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.catalog.hf_experts import EXPERTS
from kvsim.catalog.hf_families import FAMILIES, Config
from kvsim.catalog.hf_hybrids import HYBRIDS
from kvsim.catalog.hf_overrides import merged, scaled_length
from kvsim.catalog.hf_quantization import quantization_of
from kvsim.catalog.hf_towers import num_tower_params, patches_per_token, tower_hidden_size
from kvsim.catalog.spec import ModelSpec

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

#: Families that are refused, with the reasons.
REFUSED = {"deepseek_v41": "KV shared between layers and n-gram memory are not modelled"}

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def read_hf_config(
    path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None
) -> ModelSpec:
    """Read a ``config.json`` of a supported family.

    Parameters
    ----------
    path
        The file, or the directory that holds it. In a multimodal file, ``text_config`` gives
        the shape, the rest the parameters of towers. A ``hf_quant_config.json`` next to the file is
        read, too.
    overrides
        Values that take the place of those in the file.

    Returns
    -------
    ModelSpec
        Named after ``_name_or_path``, or after the file.

    Raises
    ------
    ValueError
        The file is missing or not JSON, lacks a key, or is of a family that is not supported.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "config.json"
    whole = Config(merged(_load(file), overrides or {}), file)
    config = _text_config(whole.values, file)
    model_type = config.get("model_type")
    families = FAMILIES | HYBRIDS | EXPERTS
    family = families.get(str(model_type).removesuffix("_text"))
    if model_type in REFUSED:
        raise config.error(f"model_type {model_type!r}: {REFUSED[model_type]}")
    if family is None:
        known = ", ".join(sorted(families))
        raise config.error(f"model_type {model_type!r} is not supported (one of: {known})")
    given = {key: value for key, value in config.values.items() if key in family.null_means_none}
    present = {key: value for key, value in config.values.items() if value is not None}
    config = Config({**family.defaults, **present, **given}, file)
    fields = family.read(config) | {
        "tie_word_embeddings": config.flag("tie_word_embeddings", family.ties),
        **quantization_of(config),
    }
    longest = fields["max_position_embeddings"]
    fields["max_position_embeddings"] = scaled_length(config.values, longest)
    fields["num_tower_params"] = num_tower_params(whole, fields["hidden_size"])
    if fields["num_tower_params"]:
        fields["patches_per_token"] = patches_per_token(whole)
        fields["tower_hidden_size"] = tower_hidden_size(whole)
    try:
        return ModelSpec(source=str(file), **_names(config, file), **fields)
    except ValueError as error:
        raise config.error(str(error)) from None


def _names(config: Config, file: Path) -> dict[str, Any]:
    """Return the name from ``_name_or_path`` if this is a Hugging Face id, else from the file."""
    hf_id = str(config.get("_name_or_path") or "")
    if HUB_ID.fullmatch(hf_id):
        return {"name": hf_id.rsplit("/", 1)[1], "hf_id": hf_id}
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return {"name": name, "hf_id": ""}


def _load(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{file}: no such file") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: not a readable JSON file ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"{file}: must hold a JSON object, not {type(values).__name__}")
    return values


def _text_config(values: Mapping[str, Any], file: Path) -> Config:
    """Unwrap a multimodal configuration; keys that only the outer level has are kept."""
    text = values.get("text_config")
    if not isinstance(text, dict):
        return Config(values, file)
    outer = ("model_type", "tie_word_embeddings", "quantization_config", "_name_or_path")
    shared = {key: values[key] for key in outer if values.get(key) is not None}
    return Config({**shared, **text}, file)
