"""Architectures that no prediction covers are traced all the same, where Transformers ships their modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.extras import import_or_skip

import_or_skip("peft")

from torch import nn

from measure.cli.main import main
from measure.trace import foreign
from measure.trace.foreign import described_by_modules
from planner.api import bounded
from planner.catalog.described import Description, description_json
from planner.catalog.hf_config import model_from_config
from planner.cli.main import main as plan
from planner.domain.model import ModelSpec
from planner.errors import ExitCode, InputFileError, NotModelledError, UnknownArchitectureError
from tests.against_libraries.scenarios import GROUPED, SIZES

TINY: dict[str, Any] = {"model_type": "diffllama", **SIZES, **GROUPED, "num_hidden_layers": 8}


def test_what_a_model_is_told_by_its_layers() -> None:
    """Experts and states are told by what layers hold, not by fields that other architectures have, too."""
    dense = {**TINY, "num_experts": 8}
    assert _description(dense).family == "dense"
    experts = {"model_type": "minimax", **SIZES, **GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
    mixture = _description(experts)
    assert mixture.family == "mixture"
    assert (mixture.model.groups[0].block.mlp.n_experts, mixture.model.groups[0].block.mlp.top_k) == (4, 2)
    states = {"model_type": "recurrent_gemma", **SIZES, **GROUPED, "num_hidden_layers": 3}
    assert _description(states).family == "recurrent"
    assert TypeAdapter(Description).validate_json(description_json(mixture)) == mixture


def _description(fields: dict[str, Any]) -> Description:
    return described_by_modules(fields, UnknownArchitectureError("tiny", fields["model_type"]))


def _described(fields: dict[str, Any]) -> ModelSpec:
    return _description(fields).model


def _written(folder: Path, fields: dict[str, Any]) -> str:
    path = folder / "tiny.json"
    path.write_text(json.dumps(fields))
    return str(path)


def _traced(folder: Path, fields: dict[str, Any], *flags: str) -> int:
    job = ["--method", "lora", "--seq", "32", *flags]
    return main(["trace", "--model", _written(folder, fields), *job])


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma"])
def test_modules_describe_a_model_as_its_formulas_do(kind: str) -> None:
    """Where both are there, they agree on every matrix that LoRA reaches, on tables, head,
    tying and the longest text.
    """
    fields = {"model_type": kind, **SIZES, **GROUPED, "head_dim": 32, "max_position_embeddings": 512}
    ours, theirs = model_from_config(fields, "tiny"), _described(fields)
    for name in ("hidden_size", "vocab_size", "n_layers", "tied", "max_position_tokens", "token_embedding"):
        assert getattr(ours, name) == getattr(theirs, name), name

    def shapes(model: ModelSpec) -> list[set[tuple[object, ...]]]:
        blocks = [group.block for group in model.groups for _ in range(group.count)]
        return [
            {(each.name, each.group, each.in_features, each.out_features, each.bias) for each in b.linears}
            for b in blocks
        ]

    assert shapes(ours) == shapes(theirs)
    heads = [model.groups[0].block.attention for model in (ours, theirs)]
    assert len({(each.n_heads, each.n_kv_heads, each.head_dim) for each in heads}) == 1


@pytest.mark.real
def test_an_architecture_without_formulas_is_traced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights are what the modules hold, the note says that no formula covers them,
    and plan itself bounds them and points to the trace.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    assert _traced(tmp_path, TINY, "--lora-targets", "attention", "--json", "--precision", "bf16") == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    weights = next(each["bytes"] for each in document["peak"]["terms"] if each["name"] == "weights")
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY))
    held = sum(-(-each.numel() * 2 // 512) * 512 for each in model.parameters())
    assert held <= weights <= held + 2**21  # a block of more than 1 MiB is not always split
    assert "no reader for 'diffllama'" in err
    job = ["--model", _written(tmp_path, TINY), "--method", "lora", "--gpu", "4090", "--seq", "32"]
    assert plan([*job, "--precision", "bf16", "--json"]) == ExitCode.FITS
    bounds = json.loads(capsys.readouterr().out)["bounds"]
    assert bounds["parameters"] == sum(each.numel() for each in model.parameters())
    assert bounds["certain_bytes"]["weights"] == 2 * bounds["parameters"]
    assert bounds["settle"].endswith("--trace")


@pytest.mark.real
@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"model_type": "nosuch"}, 6, "architecture 'nosuch' is neither modelled"),
        ({"model_type": "bert", "num_hidden_layers": 1}, 6, "'bert' is an encoder"),
        (
            {"model_type": "data2vec-text", "num_hidden_layers": 1},
            6,
            "needs values, which fake tensors do not have",
        ),
        ({"model_type": "rwkv", "num_hidden_layers": 1, "hidden_size": 32}, 6, "it has no attention heads"),
        (
            {"model_type": "timesfm", "auto_map": {"AutoModelForCausalLM": "evil--x.Y"}},
            6,
            "a causal language model cannot be made of it",
        ),
        ({"model_type": "diffllama", "num_hidden_layers": "many"}, 2, "Transformers refuses this config"),
        (
            {**TINY, "num_hidden_layers": 10**9},
            2,
            "field 'num_hidden_layers' is 1000000000, above the limit of 2000",
        ),
        (
            {"model_type": "minimax", **SIZES, **GROUPED, "num_local_experts": 10**6},
            2,
            "field 'num_local_experts' is 1000000, above the limit of 2000",
        ),
        (
            {"model_type": "jamba", **SIZES, **GROUPED, "num_experts": 10**9},
            2,
            "1000000000 experts are above the limit of 4096",
        ),
        ({**TINY, "num_attention_heads": 0}, 2, "Transformers refuses this config"),
    ],
)
def test_what_cannot_be_traced_is_said(
    fields: dict[str, Any], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody's architecture, no causal language model, fields of no use: one sentence, no traceback,
    no code of a checkpoint.
    """
    assert _traced(tmp_path, fields) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_size": 10**30},
        {"vocab_size": -1},
        {"intermediate_size": 0},
        {"num_hidden_layers": 10**9},
        {"num_attention_heads": 7, "num_key_value_heads": 3},
        {"auto_map": {"AutoConfig": "evil--x.Y"}, "hidden_size": "many"},
    ],
    ids="-".join,
)
def test_hostile_numbers_are_refused_in_one_sentence(
    fields: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``plan`` starts the count by itself: nothing of a file makes it long, large or a traceback."""

    def in_process(*_: object, given: str, timeout_s: float) -> Description:
        del timeout_s
        return _description(json.loads(given))

    monkeypatch.setattr(bounded, "run_measure", in_process)
    job = ["--model", _written(tmp_path, {**TINY, **fields}), "--method", "full", "--gpu", "4090"]
    assert plan([*job, "--seq", "32"]) in (ExitCode.USAGE, ExitCode.NOT_MODELLED)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "internal error" not in err


def test_a_model_of_too_many_parts_is_not_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts are counted while the model is made, so no field has to be known by name: exit code 6,
    and nothing left behind.
    """
    monkeypatch.setattr(foreign, "_MAX_PARTS", 40)
    assert _traced(tmp_path, TINY) == ExitCode.NOT_MODELLED
    assert "it has more than 40 modules and parameters" in capsys.readouterr().err.splitlines()[-1]
    assert len(list(nn.Sequential(*(nn.Linear(1, 1) for _ in range(41))))) == 41


def test_a_configuration_that_cannot_be_read_is_no_internal_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some configurations give no one number for layers that differ, as that of Gemma 4: exit code 6,
    with its reason.
    """

    def differs(_text: object, _heads: int) -> object:
        raise AttributeError("'head_dim' is a per-layer attribute")

    monkeypatch.setattr(foreign, "_attention", differs)
    assert _traced(tmp_path, TINY) == ExitCode.NOT_MODELLED
    assert "cannot be traced: 'head_dim' is a per-layer attribute" in capsys.readouterr().err


def test_targets_are_checked_against_the_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """LoRA targets that name no matrix of these modules are refused, as for any model."""
    assert _traced(tmp_path, TINY, "--lora-targets", "nosuch_proj") == ExitCode.USAGE
    assert "nosuch_proj" in capsys.readouterr().err


def test_the_error_that_the_catalog_raises_is_the_one_that_is_caught() -> None:
    """An unknown architecture keeps its name and its place, and is a gap of the model, not of the input."""
    with pytest.raises(UnknownArchitectureError) as caught:
        model_from_config({"model_type": "diffllama"}, "here")
    assert (caught.value.where, caught.value.model_type) == ("here", "diffllama")
    assert isinstance(caught.value, NotModelledError)
    assert not isinstance(caught.value, InputFileError)
