"""Models that no prediction covers: each id is met with what it is and one way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.catalog.hf_config import model_from_config
from planner.catalog.models import load_model, model_entry, model_ids
from planner.catalog.refused_models import DRY_RUN, kinds, what_has, what_is
from planner.errors import ExitCode, InputFileError, NotModelledError, UnknownArchitectureError

ENCODER, BOTH = "an encoder", "an encoder with a decoder"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))


@pytest.mark.parametrize(("name", "what"), [
    ("google-bert/bert-base-uncased", ENCODER),
    ("bert-base-uncased", ENCODER),
    ("microsoft/deberta-v3-base", ENCODER),
    ("hfl/chinese-roberta-wwm-ext", ENCODER),
    ("BAAI/bge-m3", ENCODER),
    ("google/flan-t5-large", BOTH),
    ("facebook/bart-large", BOTH),
    ("openai/whisper-large-v3", BOTH),
])  # fmt: skip
def test_encoders_are_named_as_such_and_the_dry_run_is_offered(name: str, what: str) -> None:
    """With the exit code of no verdict, not that of a wrong call."""
    with pytest.raises(NotModelledError) as caught:
        load_model(name)
    assert caught.value.exit_code == ExitCode.NOT_MODELLED
    assert f"is {what}, " in str(caught.value)
    assert str(caught.value).endswith(DRY_RUN)


@pytest.mark.parametrize("name", [
    *("Qwen/Qwen2.5-Omni-7B", "Qwen/Qwen2-Audio-7B-Instruct", "moonshotai/Kimi-VL-A3B-Instruct"),
    *("openbmb/MiniCPM-V-4_5", "microsoft/Phi-3.5-vision-instruct", "OpenGVLab/InternVL2_5-8B"),
    *("deepseek-ai/DeepSeek-V3.2-Exp", "zai-org/GLM-5", "moonshotai/Kimi-Linear-48B-A3B-Instruct"),
    "state-spaces/mamba-2.8b",
    *("inclusionAI/Ling-mini-2.0", "nvidia/Llama-3_3-Nemotron-Super-49B-v1", "XiaomiMiMo/MiMo-7B-RL"),
    *("deepseek-ai/Janus-Pro-7B", "google/recurrentgemma-2b", "Zyphra/Zamba2-2.7B", "RWKV/rwkv-4-169m-pile"),
    *("microsoft/bitnet-b1.58-2B-4T", "GSAI-ML/LLaDA-8B-Instruct", "unsloth/csm-1b", "openvla/openvla-7b"),
    *("LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct", "deepseek-ai/DeepSeek-OCR", "microsoft/Phi-mini-MoE-instruct"),
])  # fmt: skip
def test_other_kinds_are_refused_with_the_same_way_out(name: str) -> None:
    """Decoders and towers that nobody read."""
    with pytest.raises(NotModelledError) as caught:
        load_model(name)
    assert str(caught.value).endswith(DRY_RUN)


@pytest.mark.parametrize("name", [
    *("bertin-project/bertin-gpt-j-6B", "BAAI/bge-multilingual-gemma2", "intfloat/e5-mistral-7b-instruct"),
    *("TeichAI/Qwen3-8B-Claude-4.5-Opus-High-Reasoning-Distill", "owner/granite-4-claude-opus-distill"),
    *("owner/pegasus-llama-8b", "nlpconnect/vit-gpt2-image-captioning"),
    *("BAAI/bge-en-icl", "bigcode/starcoder2-15b", "Qwen/Qwen3-Embedding-8B", "EleutherAI/gpt-neox-20b"),
])  # fmt: skip
def test_decoders_with_such_a_word_are_no_encoders(name: str) -> None:
    """Their families say so."""
    assert what_is(name) == ""


def test_no_known_model_is_refused() -> None:
    """Neither by a name of its own nor by its architecture."""
    entries = [model_entry(model_id) for model_id in model_ids()]
    names = {name for entry in entries for name in (entry.id, entry.hub_id, *entry.aliases) if name}
    assert [name for name in names if what_is(name)] == []
    assert {what_has(entry.config["model_type"]) for entry in entries} == {""}


def test_a_checkpoint_in_fp8_is_met_with_its_copy_that_is_not() -> None:
    """Where that is known; else with the dry run."""
    with pytest.raises(NotModelledError, match="give mistralai/Ministral-3-8B-Instruct-2512-BF16, "):
        load_model("someone/Ministral-3-8B-Instruct-2512")
    with pytest.raises(NotModelledError) as caught:
        load_model("someone/Devstral-Small-2-24B-Instruct-2512")
    assert str(caught.value).endswith(DRY_RUN)


def test_the_config_of_an_encoder_gets_no_bounds() -> None:
    """A decoder's bounds would be about another training; those of an unread decoder are not refused."""
    with pytest.raises(NotModelledError) as caught:
        model_from_config({"model_type": "bert"}, "config.json")
    assert not isinstance(caught.value, UnknownArchitectureError)
    assert str(caught.value).endswith(DRY_RUN)
    with pytest.raises(UnknownArchitectureError):
        model_from_config({"model_type": "xlstm"}, "config.json")


def test_the_table_is_read_strictly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is no regular expression is an error that names the key."""
    table = 'schema = 1\n[[kinds]]\nwhat = "a thing"\nnames = "("\n'
    (tmp_path / "refused_models.toml").write_text(table)
    monkeypatch.setattr("planner.catalog.refused_models.data_dir", lambda: tmp_path)
    kinds.cache_clear()
    try:
        with pytest.raises(InputFileError, match=r"kinds\.0\.names"):
            kinds()
    finally:
        kinds.cache_clear()
