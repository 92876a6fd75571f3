"""``planner.precheck`` and its callback read a Trainer's own objects;
real Trainers on the CPU where they are installed.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

import planner
from tests.extras import import_or_skip
from tests.jobs import typed
from tests.planner.trainers import LLAMA, real_model, real_trainer

# The config of Llama 3.1 8B, which the catalog has as well.
LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


class Arguments:
    """Duck-typed arguments: what ``to_dict`` gives, and attributes that the launcher sets."""

    def __init__(self, *, world_size: int = 1, n_gpu: int = 1, **table: Any) -> None:
        self._table, self.world_size, self.n_gpu, self.max_steps = table, world_size, n_gpu, -1

    def to_dict(self) -> dict[str, Any]:
        """The arguments as a table."""
        return dict(self._table)


class TrainingArguments(Arguments):
    """Stands for that of Transformers."""


class SFTConfig(Arguments):
    """Stands for that of TRL, which is told by its name."""


class RewardConfig(Arguments):
    """Stands for that of another trainer of TRL."""


RewardConfig.__module__ = "trl.trainer.reward_config"


class Lora(types.SimpleNamespace):
    """Stands for PEFT's LoraConfig."""

    def __init__(self, **said: Any) -> None:
        rest = {
            "peft_type": "LORA",
            "r": 16,
            "lora_dropout": 0.05,
            "target_modules": "all-linear",
            "modules_to_save": None,
        }
        super().__init__(**(rest | said))


def origin_of(answer: planner.Answer) -> dict[str, str]:
    """Value of each setting."""
    return {entry.name: entry.value for entry in answer.assumptions}


def test_arguments_alone_say_what_the_flags_would() -> None:
    """SFTConfig with a quantised model and PEFT is the job that the same flags describe, byte for byte."""
    quantised = LLAMA_8B | {
        "quantization_config": {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
        }
    }
    args = SFTConfig(
        per_device_train_batch_size=4, bf16=True, gradient_checkpointing=True, max_length=2048, packing=True
    )
    lora = Lora(target_modules={"q_proj", "v_proj"})
    answer = planner.precheck(args, model_config=quantised, peft_config=lora, gpu="4090")
    same = planner.estimate(
        model="llama-3.1-8b",
        method="qlora",
        gpu="4090",
        stack="trl",
        seq=2048,
        batch=4,
        padding="packed",
        precision="bf16-mixed",
        load_dtype="bf16",
        lora_rank=16,
        lora_dropout=0.05,
        lora_targets="q_proj;v_proj",
        gradient_checkpointing=True,
    )
    assert (answer.needs_bytes, answer.peak, answer.step) == (same.needs_bytes, same.peak, same.step)
    assert (answer.verdict, answer.probability) == (same.verdict, same.probability)


def test_flags_win_and_the_length_of_sft_is_read() -> None:
    """``max_length`` and its old name are the length; a flag overrides it."""
    lengths = [
        origin_of(planner.precheck(args, model_config=LLAMA, gpu="4090", **flags))["seq"]
        for args, flags in (
            (SFTConfig(bf16=True, max_length=256), {}),
            (SFTConfig(bf16=True, max_length=256), {"seq": 128}),
            (TrainingArguments(bf16=True), {"seq": 64}),
        )
    ]
    assert lengths == ["256", "128", "64"]


@pytest.mark.parametrize(
    ("args", "said", "words"),
    [
        (TrainingArguments(bf16=True), {"gpu": "4090"}, ("seq=",)),
        (TrainingArguments(bf16=True), {"gpu": "4090", "seq": 64, "model_config": None}, ("missing model",)),
        (TrainingArguments(), {"gpu": "4090", "seq": 64}, ("precision=",)),
        (TrainingArguments(bf16=True), {"gpu": "4090", "seqq": 64}, ("seqq", "seq")),
        (
            TrainingArguments(bf16=True),
            {"gpu": "4090", "seq": 64, "peft_config": Lora(target_modules=None)},
            ("target_modules",),
        ),
        (object(), {"gpu": "4090"}, ("Trainer",)),
    ],
    ids=["length", "model", "precision", "keyword", "targets", "no trainer"],
)
def test_what_is_missing_is_asked_for(args: Any, said: dict[str, Any], words: tuple[str, ...]) -> None:
    """One sentence names the keyword; nothing is guessed."""
    with pytest.raises(planner.UsageError) as raised:
        planner.precheck(args, **({"model_config": LLAMA} | said))
    assert all(word in str(raised.value) for word in words)
    assert "--" not in str(raised.value)


@pytest.mark.parametrize(
    ("args", "peft", "word"),
    [
        (RewardConfig(bf16=True), None, "RewardConfig"),
        (TrainingArguments(bf16=True, n_gpu=2), None, "DataParallel"),
        (TrainingArguments(bf16=True), Lora(peft_type="PREFIX_TUNING"), "PREFIX_TUNING"),
        (TrainingArguments(bf16=True), Lora(rank_pattern={"q_proj": 64}), "rank_pattern"),
        (TrainingArguments(bf16=True), Lora(target_modules=r".*\.0\.self_attn\.q_proj"), "some places"),
        (TrainingArguments(bf16=True, optim="grokadamw"), None, "grokadamw"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_is_not_modelled_gets_no_number(args: Any, peft: Any, word: str) -> None:
    """Other trainers, other adapters and several GPUs in one process end without a verdict."""
    with pytest.raises(planner.NotModelledError, match=word):
        planner.precheck(args, model_config=LLAMA, peft_config=peft, gpu="4090", seq=64)


@pytest.mark.parametrize(
    ("args", "loaded", "stack", "versions"),
    [
        (SFTConfig(bf16=True), {"trl": "0.22.1"}, "trl@0.24", "trl==0.22.1"),
        (SFTConfig(bf16=True), {"trl": "0.17.0"}, "trl@0", "trl==0.17.0"),
        (
            TrainingArguments(bf16=True),
            {"transformers": "4.57.1", "peft": "0.17.1"},
            "hf-trainer@4",
            "peft==0.17.1;transformers==4.57.1",
        ),
        (TrainingArguments(bf16=True), {"transformers": "5.23.0+local"}, "hf-trainer@5", None),
    ],
)
def test_the_software_is_that_which_is_imported(
    args: Any, loaded: dict[str, str], stack: str, versions: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stack of the nearest version, with the versions that are here."""
    modules = {name: types.SimpleNamespace(__version__=version) for name, version in loaded.items()}
    monkeypatch.setattr("planner.api.held.sys", types.SimpleNamespace(modules=modules))
    said = origin_of(planner.precheck(args, model_config=LLAMA, gpu="4090", seq=64))
    assert (said["stack"], said.get("versions")) == (stack, versions)
    mine = origin_of(planner.precheck(args, model_config=LLAMA, gpu="4090", seq=64, stack="axolotl"))
    assert (mine["stack"], mine.get("versions")) == ("axolotl", None)


def test_dora_is_read() -> None:
    """A setting of PEFT's LoRA that changes what is trained and kept."""
    args, dora = TrainingArguments(bf16=True), Lora(use_dora=True)
    said = origin_of(planner.precheck(args, model_config=LLAMA, peft_config=dora, gpu="4090", seq=64))
    assert said["dora"] == "true"


def test_a_real_model_with_vera_is_read(tmp_path: Path) -> None:
    """Its rank and its dropout have names of their own; the count of trained parameters agrees."""
    peft = import_or_skip("peft")
    vera = peft.VeraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM", vera_dropout=0.1)
    trainer = real_trainer(peft.get_peft_model(real_model(), vera), tmp_path, bf16=True)
    answer = planner.precheck(trainer, gpu="4090", seq=16)
    said = origin_of(answer)
    asked = ("vera", "lora_rank", "lora_dropout", "adapter_dtype")
    assert [said[name] for name in asked] == ["true", "8", "0.1", "fp32"]
    assert not any("parameters" in warning for warning in answer.warnings)


def test_other_quantisations_are_read_from_the_config_or_not_modelled() -> None:
    """A base that came packed is counted as it is stored; one of another library gets no number."""
    packed, other = (
        LLAMA | {"quantization_config": {"quant_method": method, "bits": 4, "group_size": 32}}
        for method in ("gptq", "hqq")
    )
    args = TrainingArguments(bf16=True)
    answer = planner.precheck(args, model_config=packed, peft_config=Lora(), gpu="4090", seq=64)
    assert origin_of(answer)["quantization"] == "gptq-int4"
    with pytest.raises(planner.NotModelledError, match="'hqq' is not modelled"):
        planner.precheck(args, model_config=other, peft_config=Lora(), gpu="4090", seq=64)


def test_the_launcher_says_how_many_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes over nodes follow the environment of the launcher; without an engine that is DDP."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    args = TrainingArguments(bf16=True, world_size=8)
    said = origin_of(planner.precheck(args, model_config=LLAMA, gpu="4090", seq=64))
    assert (said["gpus"], said["nodes"], said["sharding"]) == ("4", "2", "ddp")
    zero = TrainingArguments(
        bf16=True, world_size=8, deepspeed={"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}
    )
    assert origin_of(planner.precheck(zero, model_config=LLAMA, gpu="4090", seq=64))["sharding"] == "zero3"
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(planner.UsageError, match="FSDP"):
        planner.precheck(args, model_config=LLAMA, gpu="4090", seq=64)


def test_what_accelerate_was_told_is_read_from_the_trainer() -> None:
    """FSDP that ``accelerate launch`` switched on stands in the accelerator's state, not in the arguments."""
    plugin = types.SimpleNamespace(
        fsdp_version=2,
        sharding_strategy=None,
        reshard_after_forward=True,
        cpu_offload=types.SimpleNamespace(offload_params=False),
        activation_checkpointing=True,
    )
    state = types.SimpleNamespace(deepspeed_plugin=None, fsdp_plugin=plugin)
    args = TrainingArguments(bf16=True, world_size=2)
    trainer = types.SimpleNamespace(args=args, model=None, accelerator=types.SimpleNamespace(state=state))
    said = origin_of(planner.precheck(trainer, model_config=LLAMA, gpu="4090", seq=64))
    assert (said["sharding"], said["gradient_checkpointing"]) == ("fsdp", "true")


def test_the_card_is_the_one_that_torch_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``gpu=`` the card of this process is asked for its name and memory; without one,
    the answer is a question.
    """
    args, seen = TrainingArguments(bf16=True), 23 * 2**30
    properties = types.SimpleNamespace(name="NVIDIA GeForce RTX 4090", total_memory=seen)
    cuda = types.SimpleNamespace(
        is_available=lambda: True, current_device=lambda: 0, get_device_properties=lambda _: properties
    )
    monkeypatch.setitem(
        planner.precheck.__globals__["sys"].modules, "torch", types.SimpleNamespace(cuda=cuda)
    )
    answer = planner.precheck(args, model_config=LLAMA, seq=64)
    assert origin_of(answer)["gpu"] == "rtx4090"
    assert answer.limit_bytes == seen
    cuda.is_available = lambda: False
    with pytest.raises(planner.UsageError, match="no CUDA device is visible"):
        planner.precheck(args, model_config=LLAMA, seq=64)


def test_a_real_trainer_is_read(tmp_path: Path) -> None:
    """Dtype, kernel, checkpointing that the model was told, batch and samples come from the objects."""
    model = real_model()
    model.gradient_checkpointing_enable()
    trainer = real_trainer(model, tmp_path, per_device_train_batch_size=2, num_train_epochs=2)
    said = origin_of(planner.precheck(trainer, gpu="4090", seq=16))
    expected = typed("--method full --batch 2 --samples 4 --epochs 2.0 --precision fp32 --load-dtype fp32")
    expected |= typed("--attention sdpa --gradient-checkpointing true --stack hf-trainer@5 --sharding none")
    assert {name: said[name] for name in expected} == expected


def test_a_frozen_part_without_adapters_is_not_modelled(tmp_path: Path) -> None:
    """A model whose embeddings are frozen is no full fine-tune."""
    model = real_model()
    model.get_input_embeddings().weight.requires_grad_(False)
    with pytest.raises(planner.NotModelledError, match="frozen"):
        planner.precheck(real_trainer(model, tmp_path), gpu="4090", seq=16)


def test_a_real_peft_model_is_read(tmp_path: Path) -> None:
    """Rank, matrices and dtype come from PEFT; the count of trained parameters agrees, or is warned about."""
    peft = import_or_skip("peft")
    lora = peft.LoraConfig(
        r=4, target_modules="all-linear", task_type="CAUSAL_LM", modules_to_save=["lm_head"]
    )
    trainer = real_trainer(peft.get_peft_model(real_model(), lora), tmp_path, bf16=True)
    answer = planner.precheck(trainer, gpu="4090", seq=16)
    said = origin_of(answer)
    assert (said["method"], said["lora_rank"], said["modules_to_save"], said["adapter_dtype"]) == (
        "lora",
        "4",
        "lm_head",
        "fp32",
    )
    assert not any("parameters" in warning for warning in answer.warnings)
    next(
        value for name, value in trainer.model.named_parameters() if ".modules_to_save." in name
    ).requires_grad_(False)
    assert any("trains" in warning for warning in planner.precheck(trainer, gpu="4090", seq=16).warnings)
