"""Model shapes: what the facts say, and what a Hugging Face config.json must hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from tracekit.decode.facts import read_facts
from tracekit.decode.kernels import Step, list_kernels
from tracekit.decode.models import Experts, load_model, model_names
from tracekit.errors import TracekitError, UnknownNameError

QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}


def write_config(folder: Path, **changes: Any) -> Path:
    config = {key: value for key, value in {**QWEN3, **changes}.items() if value != "left out"}
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", model_names())
def test_every_model_reads_the_weights_that_its_facts_derive(name: str) -> None:
    model = load_model(name)
    norms = model.layers * (2 * model.hidden + 2 * model.head_dim * model.qk_norm) + model.hidden

    weight_bytes = sum(kernel.weight_bytes for kernel in list_kernels(Step(model)))

    derived = read_facts("models")[name]["derived"]["decode_weight_bytes_bf16_batch1"]
    assert weight_bytes + 2 * norms == derived


@pytest.mark.parametrize("name", ["qwen3-8b", "QWEN3-8B", "Qwen/Qwen3-8B"])
def test_a_model_is_found_however_it_is_spelled(name: str) -> None:
    assert load_model(name).name == "Qwen3-8B"


def test_an_unknown_model_lists_what_there_is() -> None:
    with pytest.raises(UnknownNameError, match=r"no model named 'gpt-2'; there are Qwen3-0\.6B, .*Llama"):
        load_model("gpt-2")


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_config_gives_the_same_shape_as_the_facts(tmp_path: Path, as_folder: bool) -> None:
    path = write_config(tmp_path)

    model = load_model(str(tmp_path if as_folder else path))

    assert list_kernels(Step(model)) == list_kernels(Step(load_model("Qwen3-0.6B")))
    assert model.name == tmp_path.name
    assert model.tied


def test_what_a_config_leaves_out_gets_the_defaults_of_transformers(tmp_path: Path) -> None:
    path = write_config(
        tmp_path,
        model_type="llama",
        head_dim="left out",
        num_key_value_heads=None,
        tie_word_embeddings="left out",
    )

    model = load_model(str(path))

    assert (model.head_dim, model.kv_heads, model.tied, model.qk_norm) == (64, 16, False, False)


def test_a_config_with_experts(tmp_path: Path) -> None:
    moe = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}

    model = load_model(str(write_config(tmp_path, model_type="qwen3_moe", **moe)))

    assert model.experts == Experts(count=128, top_k=8, intermediate=768)


def test_mistral_reads_no_more_than_its_sliding_window(tmp_path: Path) -> None:
    path = write_config(tmp_path, model_type="mistral", sliding_window=100)

    (attention, *_) = [k for k in list_kernels(Step(load_model(str(path)))) if k.name == "attention"]

    assert attention.kv_bytes == 100 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported; supported are llama, mistral"),
        ({"model_type": "left out"}, "model_type None is not supported"),
        ({"hidden_size": "left out"}, "hidden_size is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, a positive whole number is wanted"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"num_key_value_heads": 5}, "5 KV heads do not divide 16 heads"),
        ({"model_type": "qwen3_moe"}, "num_experts is missing"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, "dense and expert layers is not supported"),
        ({"sliding_window": 10, "use_sliding_window": True}, "in some of the layers is not supported"),
    ],
)
def test_a_config_that_cannot_be_used_says_why(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_config(tmp_path, **changes)

    with pytest.raises(TracekitError, match=message) as error:
        load_model(str(path))

    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("text", ["", "not json", "[1]", "\ufeff"])
def test_a_file_that_is_no_config(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(TracekitError, match=r"config\.json is wanted"):
        load_model(str(path))


def test_a_config_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TracekitError, match="cannot be read"):
        load_model(str(tmp_path))
