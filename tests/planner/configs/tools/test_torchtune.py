"""Files of torchtune: what a key means there, and what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.errors import InputFileError, NotModelledError, UsageError
from planner.intake.given.config_file import overruled, read_config_file, with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.predicting import estimate
from tests.files import filled
from tests.files import reading_of as read

LORA = {
    "_component_": "torchtune.models.llama3_1.lora_llama3_1_8b",
    "lora_attn_modules": ["q_proj", "output_proj"],
    "apply_lora_to_output": True,
    "lora_rank": 8,
}
BASE: dict[str, Any] = {
    "model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"},
    "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 1024},
    "dataset": {"_component_": "torchtune.datasets.alpaca_dataset"},
    "batch_size": 2,
    "epochs": 1,
    "gradient_accumulation_steps": 1,
    "optimizer": {"_component_": "torch.optim.AdamW", "fused": True, "lr": 2e-5},
    "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
    "dtype": "bf16",
}
WHOLE: dict[str, Any] = {"loss": {"_component_": "torch.nn.CrossEntropyLoss"}}
OLD: dict[str, Any] = WHOLE | {
    "checkpointer": {"_component_": "torchtune.utils.FullModelHFCheckpointer"},
    "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "path": "t"},
}


@pytest.mark.parametrize(
    ("added", "text"),
    [
        ({"ac_mode": "selective", "ac_option": "op"}, "every so many layers"),
        ({"ac_mode": "selective", "enable_activation_checkpointing": True}, "full and selective are, alone"),
        ({"cudnn_deterministic_mode": "warn"}, "deterministic kernels"),
        ({"device": "mps"}, "trains without CUDA, on no card that --gpu names: say cuda there"),
        (
            {"quantizer": {"_component_": "torchtune.training.quantization.Int4WeightOnlyQATQuantizer"}},
            "Int4WeightOnlyQATQuantizer is not modelled",
        ),
        ({"teacher_model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"}}, "distillation"),
        (
            {"ref_checkpointer": {"checkpoint_dir": "a"}},
            "a second model to compare with is not modelled",
        ),
        ({"loss": {"_component_": "torchtune.rlhf.loss.RSOLoss"}}, "RSOLoss is not modelled; DPOLoss is"),
        ({"loss": {"_component_": "torch.nn.NLLLoss"}}, "the loss torch.nn.NLLLoss is not modelled"),
        (WHOLE | {"compile": True}, "a loss over all logits"),
        (OLD | {"compile": True}, "torch.compile of torchtune up to 0.2"),
        (OLD | {"memory_efficient_fsdp_wrap": True}, "table and head as units"),
        (OLD | {"fsdp_sharding_strategy": "NO_SHARD"}, "NO_SHARD is not modelled"),
        (
            {
                "loss": {
                    "_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss",
                    "num_output_chunks": 4,
                }
            },
            "eight pieces",
        ),
        ({"num_generations": 4}, "reinforcement learning"),
        ({"tensor_parallel_dim": 2}, "a tensor-parallel degree of 2"),
        ({"model": {"_component_": "torchtune.models.t5.t5_v1_1_xxl"}}, "t5_v1_1_xxl is not modelled"),
        ({"model": {"_component_": "mine.models.model"}}, "not a builder of torchtune.models"),
        (
            {"optimizer": {"_component_": "torchao.optim.AdamW4bit"}},
            "optimizer torchao.optim.AdamW4bit is not modelled",
        ),
        ({"optimizer": {"_component_": "torch.optim.SGD", "momentum": 0.9}}, "a state more than usual"),
        ({"enable_fp8_training": True}, "fp8"),
        ({"early_exit_loss": {"layers": "0::4", "scale": 1.0}}, "a loss after several layers"),
        ({"layer_dropout": {"prob": 0.2}}, "layers that a step leaves out"),
        ({"activation_offload_streams": 2}, "unknown key"),
        ({"model": LORA | {"lora_layers": 2}}, "unknown key"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path: Path, added: dict[str, Any], text: str) -> None:
    """Each by a sentence of its own."""
    with pytest.raises(NotModelledError, match=text):
        read(tmp_path, BASE | added)


@pytest.mark.parametrize(
    ("added", "text"),
    [
        ({"dtype": "fp16"}, "bf16 or fp32"),
        ({"model": LORA | {"lora_attn_modules": ["o_proj"]}}, "q_proj, k_proj, v_proj, output_proj"),
    ],
)
def test_values_that_cannot_be_used(tmp_path: Path, added: dict[str, Any], text: str) -> None:
    """As torchtune refuses them."""
    with pytest.raises(InputFileError, match=text):
        read(tmp_path, BASE | added)


def test_the_builder_says_model_and_method(tmp_path: Path) -> None:
    """Adapters by the names of Transformers; a 4-bit base by the builder or by its argument."""
    assert read(tmp_path, BASE).value("method") == "full"
    lora = read(tmp_path, BASE | {"model": LORA})
    assert lora.value("lora_targets") == ("q_proj", "o_proj", "lm_head")
    assert lora.value("quantization") is None
    assert read(tmp_path, BASE | {"model": LORA | {"quantize_base": True}}).value("quantization") == "nf4"
    mistral = LORA | {"_component_": "torchtune.models.mistral.qlora_mistral_7b", "apply_lora_to_mlp": True}
    found = read(tmp_path, BASE | {"model": mistral})
    assert (found.value("model"), found.value("quantization")) == ("mistralai/Mistral-7B-v0.1", "nf4")


def test_phi3_of_torchtune_has_separate_matrices(tmp_path: Path) -> None:
    """So it is read as a checkpoint with the modules of Llama, up to the builder's own 4,096 positions."""
    model = LORA | {"_component_": "torchtune.models.phi3.lora_phi3_mini"}
    table = BASE | {"model": model, "tokenizer": {"max_seq_len": 4096}}
    read(tmp_path, table)
    request = with_flags(read_config_file(tmp_path / "train.yaml"), from_flags({"gpu": "h100-sxm"}))
    names = {linear.name for group in resolve(request).model.groups for linear in group.block.linears}
    assert {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"} <= names


@pytest.mark.parametrize(
    ("said", "flags", "place"),
    [(8192, {}, "tokenizer.max_seq_len"), (None, {"seq": 16_384}, "cli"), (2048, {"seq": 4097}, "cli")],
)
def test_samples_longer_than_the_builder_takes_are_refused(
    tmp_path: Path, said: int | None, flags: dict[str, int], place: str
) -> None:
    """By the file or by a flag; a flag may also say less than the file."""
    model = {"_component_": "torchtune.models.phi3.phi3_mini"}
    read(tmp_path, BASE | {"model": model, "tokenizer": {"max_seq_len": said}})
    config = read_config_file(tmp_path / "train.yaml")
    with pytest.raises(UsageError, match=rf"above 4096 tokens, .*{place}\): say --seq 4096"):
        with_flags(config, from_flags({"gpu": "h100-sxm", **flags}))
    assert with_flags(config, from_flags({"gpu": "h100-sxm", "seq": 4096})).get("seq") == 4096


@pytest.mark.parametrize(
    ("builder", "tables", "rows"),
    [
        ("llama3_2.lora_llama3_2_1b", "pairs", 131_072),
        ("llama3.lora_llama3_8b", "pairs_of_layers", 8_192),
        ("gemma2.gemma2_9b", "pairs", 8_192),
        ("qwen2_5.lora_qwen2_5_7b_base", "halves_of_layers", 131_072),
        ("qwen2_5.lora_qwen2_5_7b_instruct", "halves_of_layers", 32_768),
        ("phi4.phi4_14b", "halves", 16_384),
    ],
)
def test_builders_say_their_tables_of_positions(tmp_path: Path, builder: str, tables: str, rows: int) -> None:
    """One for all layers, or one in each attention with adapters."""
    model = (LORA if "lora" in builder else {}) | {"_component_": f"torchtune.models.{builder}"}
    read(tmp_path, BASE | {"model": model})
    request = with_flags(read_config_file(tmp_path / "train.yaml"), from_flags({"gpu": "h100-sxm"}))
    stack = resolve(request).stack
    assert (stack.rotary_tables, stack.rotary_positions) == ((tables,), rows)


def test_dpo_is_told_by_its_loss(tmp_path: Path) -> None:
    """A pair is two sequences."""
    loss = {"_component_": "torchtune.rlhf.loss.DPOLoss", "beta": 0.1}
    assert read(tmp_path, BASE | {"loss": loss, "model": LORA}).value("task") == "dpo"
    with pytest.raises(UsageError, match="without adapters and without a ref_checkpointer"):
        read(tmp_path, BASE | {"loss": loss})


def test_dora_is_read(tmp_path: Path) -> None:
    """As an argument of the builder."""
    assert read(tmp_path, BASE | {"model": LORA | {"use_dora": True}}).value("dora")
    assert read(tmp_path, BASE | {"model": LORA | {"use_dora": False}}).value("dora") is None


def test_the_optimizer_may_step_in_the_backward_pass(tmp_path: Path) -> None:
    """As the recipes of full fine-tuning on one card say."""
    assert read(tmp_path, BASE | {"optimizer_in_bwd": True}).value("optimizer_in_backward")
    assert read(tmp_path, BASE).value("optimizer_in_backward") is None


def test_a_4_bit_base_that_trains_in_fp32_is_loaded_so(tmp_path: Path) -> None:
    """What is not quantised has the dtype of the file; in bf16 the stack's own default says the same."""
    table = BASE | {"model": LORA | {"quantize_base": True}}
    assert read(tmp_path, table | {"dtype": "fp32"}).value("load_dtype") == "fp32"
    assert read(tmp_path, table).value("load_dtype") is None


def test_matrices_may_be_rounded_as_if_quantised(tmp_path: Path) -> None:
    """In groups of 256, unless the file says another number."""
    kind = "torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer"
    found = read(tmp_path, BASE | {"quantizer": {"_component_": kind}, "fake_quant_after_n_steps": 100})
    assert (found.value("qat"), found.value("qat_group")) == ("int8-int4", None)
    found = read(tmp_path, BASE | {"quantizer": {"_component_": f"{kind}ModuleSwap", "groupsize": 32}})
    assert (found.value("qat"), found.value("qat_group")) == ("int8-int4", 32)


def test_a_file_without_an_optimizer_does_not_train(tmp_path: Path) -> None:
    """It generates, evaluates or quantises."""
    table = {name: value for name, value in BASE.items() if name != "optimizer"}
    with pytest.raises(NotModelledError, match="does not train"):
        read(tmp_path, table)


def test_a_recipe_for_one_device_uses_one(tmp_path: Path) -> None:
    """Comments say which recipe runs the file; ``--sharding`` says that another one does."""
    path = tmp_path / "train.yaml"
    command = "# tune run {} --config llama3_1/8B_lora\n"
    text = yaml.safe_dump(BASE | {"optimizer_in_bwd": True})
    path.write_text(command.format("full_finetune_single_device") + text, encoding="utf-8")
    config = read_config_file(path)
    request = with_flags(config, from_flags({"gpu": "h100-sxm:8"}))
    assert resolve(request).hardware.world_size == 1
    assert "uses 1 of the 8 GPUs" in overruled(config, request)[0].text
    divided = with_flags(config, from_flags({"gpu": "h100-sxm:8", "sharding": "fsdp"}))
    assert (divided.get("gpu"), overruled(config, divided)) == ("h100-sxm:8", ())
    both = command.format("--nproc_per_node 2 full_finetune_distributed")
    path.write_text(command.format("full_finetune_single_device") + both + text, encoding="utf-8")
    assert with_flags(read_config_file(path), from_flags({"gpu": "h100-sxm:8"})).get("sharding") == "fsdp"


def test_what_is_a_unit_of_fsdp2(tmp_path: Path) -> None:
    """Layers, and what ``custom_sharded_layers`` names; nothing stays whole when the model returns."""
    path = tmp_path / "train.yaml"
    for named, units in ((["tok_embeddings", "output"], "ends_returned"), (None, "root_returned")):
        read(tmp_path, BASE | {"custom_sharded_layers": named})
        request = with_flags(read_config_file(path), from_flags({"gpu": "h100-sxm:8"}))
        assert resolve(request).stack.fsdp2_units == units


def test_several_gpus_mean_fsdp2(tmp_path: Path) -> None:
    """Also where no key of the distributed recipes is there; one card alone is the single-device recipe."""
    read(tmp_path, BASE)
    config = read_config_file(tmp_path / "train.yaml")
    for flags, sharding in (({"gpu": "h100-sxm"}, None), ({"gpu": "h100-sxm:8"}, "fsdp")):
        assert with_flags(config, from_flags(flags)).get("sharding") == sharding
    assert with_flags(config, from_flags({"gpu": "h100-sxm:8", "sharding": "ddp"})).get("sharding") == "ddp"
    assert read(tmp_path, BASE | {"custom_sharded_layers": ["output"]}).value("sharding") == "fsdp"
    kept = read(tmp_path, BASE | {"fsdp_reshard_after_forward": False, "fsdp_cpu_offload": True})
    assert (kept.value("sharding"), kept.value("offload")) == ("fsdp-grad-op", "optimizer+params")


def test_what_has_no_default_is_asked_for(tmp_path: Path) -> None:
    """Batch and accumulation; the length, where the tokenizer has none."""
    table = {
        name: value
        for name, value in BASE.items()
        if name not in ("batch_size", "gradient_accumulation_steps")
    }
    found = read(tmp_path, table | {"tokenizer": {"_component_": "a", "max_seq_len": None}})
    assert found.needs.keys() == {"batch", "grad_accum", "seq"}


LINEAR_LOSS = {"loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"}}


def test_a_newer_loss_keeps_the_log_softmax_alone(tmp_path: Path) -> None:
    """Dry runs of both over this head (torchtune bd2a0fc7c modules/loss) differ by 6.44 GB."""
    small = {
        "model": {"_component_": "torchtune.models.llama3_2.llama3_2_1b"},
        "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 4096},
        "batch_size": 8,
        "enable_activation_checkpointing": True,
    }
    peaks = []
    for table in (small, small | LINEAR_LOSS):
        read(tmp_path, BASE | table)
        request = with_flags(read_config_file(tmp_path / "train.yaml"), from_flags({"gpu": "a100-80-sxm"}))
        peaks.append(float(estimate(resolve(request)).memory.allocated_peak_bytes))
    assert peaks[0] - peaks[1] == pytest.approx(6.44e9, rel=0.01)


def test_a_compiled_newer_loss_is_counted_as_the_older_one(tmp_path: Path) -> None:
    """Which is more."""
    found = read(tmp_path, BASE | LINEAR_LOSS | {"compile": True})
    assert "which is more" in found.remarks[-1].text


@pytest.mark.parametrize(
    ("table", "stack", "fits"),
    [
        ({}, "torchtune", ()),
        ({"metric_logger": {"log_dir": "${output_dir}"}}, "torchtune@0.4", ("torchtune",)),
        ({"metric_logger": {"log_dir": "${output_dir}/logs"}}, "torchtune@0.5", ("torchtune",)),
        ({"metric_logger": {"log_dir": "${output_dir}"}, "clip_grad_norm": None}, "torchtune", ()),
        (LINEAR_LOSS, "torchtune@2025", ()),
    ],
)
def test_keys_tell_the_version(
    tmp_path: Path, table: dict[str, Any], stack: str, fits: tuple[str, ...]
) -> None:
    """Where logs go, and the keys of 0.6 and of the main branch."""
    found = read(tmp_path, BASE | table)
    assert (found.value("stack"), found.fits) == (stack, fits)


@pytest.mark.parametrize(
    ("builder", "tables"),
    [
        ("qwen2.qwen2_1_5b", "halves_of_layers"),
        ("llama3_2.llama3_2_1b", "pairs"),
        ("gemma2.gemma2_2b", "pairs"),
    ],
)
def test_builders_up_to_0_5_copy_layers(tmp_path: Path, builder: str, tables: str) -> None:
    """Each copy has its tables of positions; Llama's from 3.1 on and Gemma 2's make lists of layers."""
    old = {
        "metric_logger": {"log_dir": "${output_dir}"},
        "model": {"_component_": f"torchtune.models.{builder}"},
    }
    assert read(tmp_path, BASE | old).switches["rotary_tables"][0] == tables


def test_optimizers_by_their_class(tmp_path: Path) -> None:
    """Torch's own has two implementations."""
    for kind, fused, ours in (
        ("torch.optim.AdamW", True, "adamw_torch_fused"),
        ("torch.optim.AdamW", False, "adamw_torch"),
        ("bitsandbytes.optim.PagedAdamW8bit", None, "paged_adamw_8bit"),
        ("torchao.prototype.low_bit_optim.AdamW8bit", None, "adamw_torch_8bit"),
    ):
        table = {"_component_": kind} if fused is None else {"_component_": kind, "fused": fused}
        assert read(tmp_path, BASE | {"optimizer": table}).value("optimizer") == ours


def test_keys_of_newer_recipes(tmp_path: Path) -> None:
    """When checkpoints are written changes nothing; offload runs on a stream of its own."""
    table = {**BASE, "save_every_n_steps": 100, "resize_token_embeddings": True}
    found = read(tmp_path, table)
    assert not found.ignored
    assert any(each.origin.endswith("resize_token_embeddings") for each in found.remarks)
    again = {"enable_activation_checkpointing": True, "enable_activation_offloading": True}
    found = read(tmp_path, {**BASE, **again, "activation_offloading_use_streams": True})
    assert found.value("offload") == "activations"
    with pytest.raises(NotModelledError, match="stream of its own"):
        read(tmp_path, {**BASE, **again, "activation_offloading_use_streams": False})


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"optimizer_in_bwd": True, "clip_grad_norm": 1.0}, "clips no gradients beside optimizer_in_bwd"),
        (
            {"model": {"_component_": "torchtune.models.gemma.lora_gemma_2b", "apply_lora_to_output": False}},
            "builders of Gemma have no such argument",
        ),
        (
            {
                "dataset": {"_component_": "torchtune.datasets.alpaca_dataset", "packed": True},
                "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": None},
            },
            "packs samples up to tokenizer.max_seq_len alone",
        ),
    ],
)
def test_what_torchtune_stops_at_is_refused(changed: dict[str, object], says: str, tmp_path: Path) -> None:
    """As its recipes and builders stop."""
    with pytest.raises(UsageError, match=rf"{says}.*refused-by-its-tool"):
        read(tmp_path, BASE | changed)


@pytest.mark.parametrize(("builder", "stops"), [("gemma2.gemma2_2b", True), ("gemma.gemma_2b", False)])
def test_gemma_2_takes_no_packed_samples(builder: str, stops: bool, tmp_path: Path) -> None:
    """Its attention raises at a mask of blocks."""
    model = {"_component_": f"torchtune.models.{builder}"}
    packed = {"_component_": "torchtune.datasets.alpaca_dataset", "packed": True}
    read(tmp_path, BASE | {"model": model, "dataset": packed})
    config = read_config_file(tmp_path / "train.yaml")
    with pytest.raises(UsageError, match="takes no packed samples") if stops else nullcontext():
        with_flags(config, from_flags({"gpu": "a100-80-sxm"}))


def test_every_second_layer_is_checkpointed(tmp_path: Path) -> None:
    """By recipes for several GPUs without adapters; others do not read the key."""
    chosen = {"ac_mode": "selective", "ac_option": 2}
    found = read(tmp_path, BASE | chosen)
    assert (found.value("gradient_checkpointing"), found.value("checkpoint_every")) == (True, 2)
    assert not read(tmp_path, BASE | chosen | {"model": LORA}).value("gradient_checkpointing")


def test_a_loss_over_all_logits(tmp_path: Path) -> None:
    """Its copies are those of torch, and nothing is cut in eighths."""
    switches = read(tmp_path, BASE | WHOLE).switches
    assert switches["loss_forward"][0] == "float+log_softmax"
    assert switches["loss_backward"][0] == "log_softmax+nll_grad+log_softmax_grad"


@pytest.mark.parametrize(
    ("data", "length"),
    [
        ({"_component_": "torchtune.datasets.alpaca_dataset"}, 512),
        ({"_component_": "torchtune.datasets.alpaca_dataset", "max_seq_len": 2048, "packed": True}, 2048),
        ({"_component_": "torchtune.datasets.slimorca_dataset"}, 1024),
        ({"_component_": "torchtune.datasets.grammar_dataset"}, None),
    ],
)
def test_builders_of_data_up_to_0_2_cut_samples(
    tmp_path: Path, data: dict[str, Any], length: int | None
) -> None:
    """By a length of their own; later ones leave it to the tokenizer."""
    assert read(tmp_path, BASE | OLD | {"dataset": data}).value("seq") == length


@pytest.mark.parametrize(
    ("added", "comment", "sharding", "keeps"),
    [
        ({}, "", "fsdp1", True),
        ({}, "# tune run --nproc_per_node 2 lora_finetune_distributed --config mine", "fsdp1", False),
        ({}, "# tune run --nproc_per_node 2 lora_finetune_fsdp2 --config mine", "fsdp", False),
        ({"custom_sharded_layers": ["tok_embeddings"]}, "", "fsdp", False),
        ({"fsdp": {"cpu_offload": False}}, "", "fsdp", False),
    ],
)
def test_recipes_up_to_0_2(
    tmp_path: Path, added: dict[str, Any], comment: str, sharding: str, keeps: bool
) -> None:
    """FSDP1, but for keys of the recipe of 2024-08; layers are copies, each with its tables."""
    path = tmp_path / "train.yaml"
    table = BASE | OLD | added | {"model": LORA}
    path.write_text(f"{comment}\n{yaml.safe_dump(table)}", encoding="utf-8")
    found = filled(read_config_file(path), {"gpu": "h100-sxm:8"})
    assert (found.stack.id, found.recipe.sharding.name) == ("torchtune@0.2", sharding)
    assert found.stack.keeps_outputs is keeps
    assert found.stack.rotary_tables == ("pairs_of_layers",)
    assert "nll_grad" in found.stack.loss_backward


def test_a_step_without_foreach_is_one_parameter_after_the_other(tmp_path: Path) -> None:
    """Of torch's own AdamW that is not fused; other optimizers have no such step."""
    alone = {"optimizer": {"_component_": "torch.optim.AdamW", "foreach": False}}
    fused = {"optimizer": alone["optimizer"] | {"fused": True}}
    assert read(tmp_path, BASE | alone).switches["foreach_step_copies"][0] == "0"
    assert "foreach_step_copies" not in read(tmp_path, BASE | fused).switches


def test_batches_that_are_evaluated(tmp_path: Path) -> None:
    """They have a size of their own, where the recipe evaluates at all (full_finetune_distributed.py)."""
    val = {"dataset_val": {"_component_": "torchtune.datasets.alpaca_dataset"}, "batch_size_val": 16}
    assert read(tmp_path, BASE | val).value("eval_batch") is None
    val["run_val_every_n_steps"] = 10
    assert read(tmp_path, BASE | val).value("eval_batch") == 16
    assert read(tmp_path, BASE | val | {"batch_size_val": "${batch_size}"}).value("eval_batch") == 2


def test_packed_matrices_of_qwen(tmp_path: Path) -> None:
    """Its builders pack those with adapters alone."""
    qwen: dict[str, Any] = {
        "_component_": "torchtune.models.qwen2_5.lora_qwen2_5_7b_base",
        "lora_attn_modules": ["q_proj", "v_proj", "output_proj"],
        "apply_lora_to_mlp": True,
        "quantize_base": True,
    }
    with pytest.raises(NotModelledError, match="those without adapters"):
        read(tmp_path, BASE | {"model": qwen})
    qwen["lora_attn_modules"].append("k_proj")
    assert read(tmp_path, BASE | {"model": qwen}).value("quantization") == "nf4"
