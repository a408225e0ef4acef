"""The shape of a model, as far as a decode step needs it: from the facts or a Hugging Face config."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.decode.facts import read_facts
from tracekit.errors import TracekitError, UnknownNameError

QK_NORM_BY_MODEL_TYPE = {
    "llama": False,
    "mistral": False,
    "qwen2": False,
    "qwen3": True,
    "qwen3_moe": True,
}


@dataclass(frozen=True)
class Experts:
    """The experts of a mixture-of-experts layer; every layer has them, none is shared."""

    count: int
    top_k: int
    intermediate: int


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer with grouped-query attention and a gated feed-forward.

    `intermediate` is that of a dense layer; with `experts`, no layer is dense and it is not used.
    `sliding_window` is the longest context a layer's attention reads, None for all of it.
    """

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    qk_norm: bool
    experts: Experts | None
    sliding_window: int | None
    source: str


def load_model(name_or_path: str) -> ModelShape:
    """The shape of a model named in the facts, in any case, or of a `config.json` (the file or its folder).

    A Hugging Face id counts by its last part: `Qwen/Qwen3-8B` is Qwen3-8B, unless such a path exists.
    Raises UnknownNameError with the names there are; TracekitError for a config it cannot use.
    """
    path = Path(name_or_path)
    if path.is_dir() or path.suffix == ".json":
        return _read_config(path / "config.json" if path.is_dir() else path)
    known = {name.lower(): name for name in model_names()}
    found = known.get(name_or_path.lower()) or known.get(name_or_path.rsplit("/", 1)[-1].lower())
    if found is None:
        names = ", ".join(model_names())
        raise UnknownNameError(
            f"no model named {name_or_path!r}; there are {names}; or give a Hugging Face config.json"
        )
    return _shape_from_facts(found, read_facts("models")[found])


def model_names() -> tuple[str, ...]:
    """The models in the facts, as their makers spell them."""
    return tuple(read_facts("models"))


def _shape_from_facts(name: str, fact: dict[str, Any]) -> ModelShape:
    moe = fact["moe"]
    return ModelShape(
        name=name,
        **{key: fact[key] for key in ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim")},
        vocab=fact["vocab"],
        tied=fact["tie_embeddings"],
        qk_norm=fact["qk_norm"],
        experts=Experts(moe["experts"], moe["top_k"], moe["moe_intermediate"]) if moe else None,
        sliding_window=None,
        source=fact["source"],
    )


def _read_config(path: Path) -> ModelShape:
    """Key names as in transformers' config classes; what they leave out, their defaults fill in."""
    config = _load_json_object(path)
    model_type = config.get("model_type")
    if model_type not in QK_NORM_BY_MODEL_TYPE:
        raise TracekitError(
            f"{path}: model_type {model_type!r} is not supported; "
            f"supported are {', '.join(QK_NORM_BY_MODEL_TYPE)}"
        )
    heads = _whole(path, config, "num_attention_heads")
    hidden = _whole(path, config, "hidden_size")
    shape = ModelShape(
        name=path.parent.resolve().name if path.name == "config.json" else path.stem,
        hidden=hidden,
        intermediate=_whole(path, config, "intermediate_size"),
        layers=_whole(path, config, "num_hidden_layers"),
        heads=heads,
        kv_heads=_whole(path, config, "num_key_value_heads", heads),
        head_dim=_whole(path, config, "head_dim", hidden // heads),
        vocab=_whole(path, config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        qk_norm=QK_NORM_BY_MODEL_TYPE[model_type],
        experts=_read_experts(path, config) if model_type == "qwen3_moe" else None,
        sliding_window=_read_sliding_window(path, config),
        source=str(path),
    )
    if shape.heads % shape.kv_heads:
        raise TracekitError(f"{path}: {shape.kv_heads} KV heads do not divide {shape.heads} heads")
    return shape


def _load_json_object(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TracekitError(f"{path}: cannot be read as a model's config.json: {error.strerror}") from None
    except ValueError:
        raise TracekitError(f"{path}: is not JSON; a Hugging Face config.json is wanted") from None
    if not isinstance(config, dict):
        raise TracekitError(f"{path}: holds no JSON object; a Hugging Face config.json is wanted")
    return config


def _whole(path: Path, config: dict[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        value = default
    if value is None:
        raise TracekitError(f"{path}: {key} is missing")
    if type(value) is not int or value < 1:
        raise TracekitError(f"{path}: {key} is {value!r}, a positive whole number is wanted")
    return value


def _read_experts(path: Path, config: dict[str, Any]) -> Experts:
    if config.get("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers"):
        raise TracekitError(f"{path}: a mix of dense and expert layers is not supported")
    experts = Experts(
        count=_whole(path, config, "num_experts"),
        top_k=_whole(path, config, "num_experts_per_tok"),
        intermediate=_whole(path, config, "moe_intermediate_size"),
    )
    if experts.top_k > experts.count:
        raise TracekitError(f"{path}: num_experts_per_tok {experts.top_k} is above {experts.count} experts")
    return experts


def _read_sliding_window(path: Path, config: dict[str, Any]) -> int | None:
    """Mistral's window holds in every layer; Qwen's in some, and only when switched on."""
    if config.get("sliding_window") is None:
        return None
    if config["model_type"] == "mistral":
        return _whole(path, config, "sliding_window")
    if config.get("use_sliding_window"):
        raise TracekitError(f"{path}: a sliding window in some of the layers is not supported")
    return None
