"""Copies and fine-tunes of known models, told by their ids: what counts as one,
and above all what does not.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import estimate
from planner.catalog import hub
from planner.catalog.models import entry_named_in, load_model
from planner.errors import NotModelledError, UsageError


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network and no cache, so that the id is all there is."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    hub.forget()


@pytest.mark.parametrize(("hub_id", "model_id", "stored"), [
    ("NousResearch/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b", "bf16"),
    ("NousResearch/Llama-3.2-1B", "llama-3.2-1b", "bf16"),
    ("casperhansen/llama-3-70b-fp16", "llama-3-70b", "fp16"),
    ("mistral-community/Mixtral-8x22B-v0.1", "mixtral-8x22b", "bf16"),
    ("unsloth/mistral-7b", "mistral-7b-v0.1", "bf16"),
    ("unsloth/gemma-2-9b", "gemma-2-9b", "fp32"),
    ("someone/gemma-2-9b-base", "gemma-2-9b", "fp32"),
    ("someone/gemma-2-9b-it-stories", "gemma-2-9b-it", "bf16"),
    ("allenai/Llama-3.1-Tulu-3-8B-SFT", "llama-3.1-8b", "bf16"),
    ("someone/dolphin-2.9-llama3-8b", "llama-3-8b", "bf16"),
    ("someone/Llama-3_1-8B-stories", "llama-3.1-8b", "bf16"),
    ("someone/llama-7b-stories", "llama-7b", "fp16"),
    ("someone/stories-qwen2-5-3b", "qwen2.5-3b", "bf16"),
    ("someone/Mistral-7B-Instruct-v0.3-stories", "mistral-7b-v0.3", "bf16"),
    ("someone/Qwen3-30B-A3B-stories", "qwen3-30b-a3b", "bf16"),
    ("someone/Qwen2.5-VL-7B-Instruct-stories", "qwen2.5-vl-7b", "bf16"),
    ("NousResearch/Nous-Hermes-2-Yi-34B", "yi-34b", "bf16"),
    ("someone/Qwen-7B-stories", "qwen-7b", "bf16"),
    ("someone/stories-llama-7b", "llama-7b", "fp16"),
    ("unsloth/Ministral-3-8B-Instruct-2512-BF16", "ministral-3-8b", "bf16"),
    ("someone/Ministral-3-8B-Base-2512-stories", "ministral-3-8b", "bf16"),
    ("unsloth/DeepSeek-R1-BF16", "deepseek-v3", "bf16"),
    ("tiiuae/Falcon-H1-1.5B-Deep-Instruct", "falcon-h1-1.5b-deep", "bf16"),
    ("someone/phi-4", "phi-4", "bf16"),
    # A learning rate is no number of experts, and a known fine-tune may be tuned on.
    ("someone/Qwen2.5-3B-Instruct-stories_sft_1e-5", "qwen2.5-3b", "bf16"),
    ("someone/vicuna-7b-v1.5-stories_simpo_2.5_lr_1e-5_epoch_3", "llama-2-7b", "fp16"),
    ("someone/zephyr-7b-beta-stories", "mistral-7b-v0.1", "bf16"),
])  # fmt: skip
def test_copies_and_fine_tunes_have_the_shape_of_their_base(hub_id: str, model_id: str, stored: str) -> None:
    """Owner, suffixes and spelling do not matter; the note names id and base."""
    resolved = load_model(hub_id)
    assert (resolved.how, resolved.spec.id, resolved.spec.checkpoint_dtype) == ("name", model_id, stored)
    assert resolved.spec.groups == load_model(model_id).spec.groups
    assert hub_id in resolved.doubt


@pytest.mark.parametrize("hub_id", [
    # Stored quantised, as the id or its owner says.
    "unsloth/Ministral-3-3B-Instruct-2512-bnb-4bit",
    *("someone/llama-3-8b-bnb-4bit", "someone/Meta-Llama-3-8B-AWQ-8bit", "someone/Llama-3-8B-GPTQ",
    "someone/Qwen3-8B-FP8"),
    *("someone/Meta-Llama-3.1-405B-BNB-NF4-BF16", "some-quants/Llama-3.1-8B",
    "someone/Llama-3.1-8B-Q4_K_M-GGUF"),
    *("someone/Meta-Llama-3-8B-Instruct-AQLM-2Bit-8x8", "someone/Qwen3-8B-MXFP4",
    "someone/Llama3-8B-1.58bit"),
    *("someone/Qwen3-8B-W4A8", "someone/Qwen3-8B-w4g128", "someone/Qwen3-8B-2.4bpw"),
    *("someone/Qwen3-8B-IQ4_XS", "amd/Llama-3.1-8B-WMXFP4FP8-KVFP8"),
    *("someone/Qwen3-8B-q4f16_1-MLC", "someone/Qwen3-8B-DWQ", "someone/Qwen3-8B-SmoothQuant"),
    *("someone/Qwen3-8B-EfficientQAT-g64", "someone/Qwen3-8B-bitsandbytes", "someone/Qwen3-8B-marlin"),
    *("someone/Llama-3-8B-GPTQ-Int3", "some-quants/Llama-3.1-8B-AWQ", "someone/Llama-8B-AWQ"),
    # A maker's own name before a family without its version.
    *("open-r1/OpenR1-Qwen-7B", "someone/R1-Distill-Qwen-72B-stories", "someone/stories-qwen-14b"),
    # Another size, or a second one.
    *("nvidia/Llama-3.1-Minitron-4B-Width-Base", "someone/Llama-3-8B-4x8B"),
    *("someone/Llama3-8B-100B-tokens", "someone/Qwen3-6B", "someone/Llama-3.1-stories"),
    # Two bases fit, or none is named in full.
    # Another version than that of a known model.
    *("someone/Mistral-Small-3.2-24B-chat", "someone/Mistral-Small-4.0-24B"),
    *("someone/DeepSeek-V3.1-stories", "someone/zephyr-7b-beta-2-stories"),
    "someone/zephyr-7b-beta-stories-2x7b",
    *("someone/Stories-2.5-Mistral-7B", "someone/mistral-7b-v0.1-v0.3", "someone/Qwen3-8B-Llama-3-8B"),
    *("someone/gemma-2-9b-stories", "someone/OLMo-2-1124-7B-SFT-stories", "someone/Llama-8B",
    "someone/TinyLlama"),
    # Other modules, or another vocabulary.
    *("Qwen/Qwen3-Embedding-8B", "models/llama3-8b-pro", "someone/llama-2-7b-lora"),
    "ibm-granite/granite-4.0-h-350m",
    *("Qwen/Qwen3-ASR-0.6B", "Qwen/Qwen3-TTS-12Hz-1.7B-Base", "MAGAer13/mplug-owl2-llama2-7b"),
    *("Alibaba-NLP/gte-Qwen2-7B-instruct", "Alibaba-NLP/gme-Qwen2-VL-2B-Instruct",
    "Ray2333/GRM_Llama3.1_8B_rewardmodel-ft", "Qwen/Qwen2.5-Math-7B-PRM800K"),
    *("someone/Falcon-H1-7B-Deep-Base", "BAAI/Bunny-Llama-3-8B-V"),
    *("nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8"),
    *("nvidia/NVIDIA-Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16", "LinkSoul/Chinese-Llama-2-7b"),
    *("google/paligemma2-3b-pt-640", "infly/OpenCoder-3B-Instruct"),
    "zai-org/GLM-4-9B-V",
    *("CohereForAI/aya-vision-32b", "LiquidAI/LFM2-VL-1.6B"),
    *("hfl/chinese-llama-2-7b-16k", "someone/KoreanLM-llama-2-7b", "someone/tiny-random-llama-3-8b",
    "someone/llama-3-8b-reward"),
])  # fmt: skip
def test_what_a_name_does_not_settle_is_refused(hub_id: str) -> None:
    """Nothing is guessed where weights, shapes or the base may be others."""
    with pytest.raises(UsageError, match="neither in the catalog"):
        load_model(hub_id)


@pytest.mark.parametrize("hub_id", [
    # Released in FP8, which the id does not say.
    *("someone/Ministral-3-14B-Instruct-2512", "someone/Devstral-Small-2-24B-Instruct-2512"),
    # Layers, towers or encoders of which there is no prediction.
    *("nvidia/Llama-3.1-Nemotron-51B-Instruct", "Qwen/Qwen2.5-Omni-7B"),
    *("fixie-ai/ultravox-v0_5-llama-3_1-8b", "AIDC-AI/Ovis1.6-Llama3.2-3B"),
])  # fmt: skip
def test_what_is_known_to_be_otherwise_has_no_prediction(hub_id: str) -> None:
    """Whatever its config.json says."""
    with pytest.raises(NotModelledError, match="of which there is no prediction"):
        load_model(hub_id)


def test_a_cached_config_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the checkpoint's own file says is taken, whatever its name."""
    folder = tmp_path / "hub" / "models--someone--Llama-3.1-8B-small" / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    fields = '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, '
    (folder / "config.json").write_text(
        fields + '"num_attention_heads": 4, "vocab_size": 100}', encoding="utf-8"
    )
    refs = folder.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40, encoding="utf-8")
    resolved = load_model("someone/Llama-3.1-8B-small")
    assert (resolved.how, resolved.spec.hidden_size) == ("hub", 64)


def test_every_answer_warns() -> None:
    """The shape was taken from a name, which a verdict must not hide."""
    answer = estimate(model="NousResearch/Meta-Llama-3.1-8B", method="qlora", gpu="4090", seq=1024)
    assert any("NousResearch/Meta-Llama-3.1-8B" in text for text in answer.warnings)
    known = estimate(model="meta-llama/Llama-3.1-8B", method="qlora", gpu="4090", seq=1024)
    assert answer.peak == known.peak
    assert not any("shape" in text for text in known.warnings)


def test_the_entry_of_a_copy_has_the_dtype_that_its_id_says() -> None:
    """The same rule as for a prediction, for those who need the fields of config.json; a path is no id."""
    found = entry_named_in("casperhansen/llama-3-70b-fp16")
    assert found is not None
    assert (found.id, found.config["torch_dtype"]) == ("llama-3-70b", "float16")
    assert entry_named_in("TheBloke/Llama-2-7B-GPTQ") is None
    assert entry_named_in("./saves/llama-3-8b") is None
