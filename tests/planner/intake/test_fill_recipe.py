"""Defaults of the recipe, by method, card, model and stack."""

from __future__ import annotations

import pytest

from planner.catalog.stacks import load_stack, stack_ids
from planner.errors import RefusedCombinationError
from tests.planner.intake.jobs import assumption, scenario_of


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"load_dtype": "bf16"}, "bf16"),
        ({"load_dtype": "fp32"}, "fp32"),
        ({}, "fp32"),
        ({"load_dtype": "bf16", "adapter_dtype": "fp32"}, "fp32"),
        ({"quantization": "nf4"}, "fp32"),
        ({"load_dtype": "fp16", "precision": "fp16-mixed"}, "fp32"),
        ({"load_dtype": "fp16", "precision": "fp16-mixed", "sharding": "zero2", "gpus": 2}, "fp16"),
        ({"load_dtype": "fp16", "switches": "prepares_unquantized=true"}, "fp32"),
        ({"load_dtype": "bf16", "stack": "hf-trainer@5"}, "fp32"),
    ],
)
def test_adapters_follow_the_base_before_peft_0_12(flags: dict[str, object], expected: str) -> None:
    """Under Transformers 4 a 16-bit base has 16-bit adapters,
    unless the base is prepared or gradients are scaled natively.
    """
    adapter = scenario_of(**{"method": "lora", "stack": "hf-trainer@4", **flags}).recipe.adapter
    assert adapter is not None
    assert adapter.dtype == expected


def test_method_names_that_mean_a_quantisation() -> None:
    """`qlora` is lora over nf4 with double quantisation, `int8` lora over int8;
    the rest says its own quantisation.
    """
    for method, base, doubled in [
        ("qlora", "nf4", True),
        ("int8", "int8", False),
        ("lora", "none", False),
        ("full", "none", False),
    ]:
        recipe = scenario_of(method=method).recipe
        assert (recipe.numerics.quantization, recipe.numerics.double_quant) == (base, doubled)
        assert recipe.method == ("full" if method == "full" else "lora")
        assert (recipe.adapter is None) == (method == "full")


def test_qlora_takes_another_4_bit_format() -> None:
    """fp4 keeps the double quantisation of the name; GPTQ has none; int8 contradicts it."""
    assert scenario_of(method="qlora", quantization="fp4").recipe.numerics.double_quant
    assert not scenario_of(method="qlora", quantization="gptq-int4").recipe.numerics.double_quant
    assert not scenario_of(method="lora", quantization="nf4").recipe.numerics.double_quant
    with pytest.raises(
        RefusedCombinationError, match=r"qlora allows nf4, fp4, .*gptq-int4, .*quantization says int8"
    ):
        scenario_of(method="qlora", quantization="int8")


def test_a_quantised_base_may_have_other_defaults() -> None:
    """k-bit preparation turns checkpointing on where the Trainer alone leaves it off."""
    assert not scenario_of(method="lora").recipe.gradient_checkpointing
    assert scenario_of(method="qlora").recipe.gradient_checkpointing
    assert not scenario_of(method="qlora", gradient_checkpointing=False).recipe.gradient_checkpointing


def test_torchtune_writes_capped_attention_out() -> None:
    """Gemma 2 has none of torch's kernels there, by flags as by a file; Gemma 1 has."""
    job = {"method": "lora", "stack": "torchtune"}
    assert scenario_of(model="gemma-2-9b", **job).recipe.attention == "eager"
    assert scenario_of(model="gemma-2b", **job).recipe.attention == "sdpa"
    with pytest.raises(RefusedCombinationError, match="no such attention kernel: use eager"):
        scenario_of(model="gemma-2-9b", attention="sdpa", **job)


def test_ms_swift_writes_attention_of_gemma_3_out() -> None:
    """Its loader does so where no kernel is named, text or vision; a named one is taken."""
    for model in ("gemma-3-270m", "gemma-3-4b"):
        job = {"method": "lora", "model": model}
        assert scenario_of(stack="swift", **job).recipe.attention == "eager"
        assert scenario_of(stack="swift@3", **job).recipe.attention == "eager"
        assert scenario_of(stack="swift", attention="sdpa", **job).recipe.attention == "sdpa"
        assert scenario_of(stack="trl", **job).recipe.attention == "sdpa"
    assert scenario_of(stack="swift", method="lora", model="gemma-2b").recipe.attention == "sdpa"


def test_a_card_without_bf16_gets_fp16() -> None:
    """Where nobody asked for bf16, a T4 computes and loads in fp16, and says why;
    with loss scaling a full fine-tune is fp32.
    """
    scenario = scenario_of(gpu="t4")
    assert (scenario.recipe.numerics.precision, scenario.recipe.numerics.load_dtype) == ("fp16-mixed", "fp16")
    assert assumption(scenario, "precision").origin == "assumed"
    assert "no bf16" in assumption(scenario, "precision").note
    assert scenario_of(gpu="t4", method="full").recipe.numerics.load_dtype == "fp32"
    assert scenario_of(gpu="t4", precision="bf16-mixed").recipe.numerics.precision == "bf16-mixed"


def test_the_load_dtype_is_that_of_the_checkpoint_or_of_the_stack() -> None:
    """Transformers 5 takes the checkpoint's dtype, TRL fp32."""
    assert scenario_of(model="qwen2.5-7b").recipe.numerics.load_dtype == "bf16"
    assert "checkpoint" in assumption(scenario_of(model="qwen2.5-7b"), "load_dtype").note
    assert scenario_of(model="qwen2.5-7b", stack="trl").recipe.numerics.load_dtype == "fp32"


def test_attention_falls_back_where_the_code_has_no_kernel() -> None:
    """BLOOM has only eager attention in Transformers;
    a default of flash attention gives way on an old card.
    """
    assert scenario_of(model="bloom-3b").recipe.attention == "eager"
    assert scenario_of(model="paligemma2-3b-224").recipe.attention == "eager"
    assert scenario_of(model="paligemma-3b-224").recipe.attention == "sdpa"
    assert scenario_of(model="qwen-7b", stack="qwen-finetune").recipe.attention == "flash2"
    assert scenario_of(model="qwen-7b", stack="qwen-finetune", gpu="t4").recipe.attention == "sdpa"


def test_deepspeed_has_masters_unless_told_otherwise() -> None:
    """A stack that trains in pure bf16 keeps fp32 masters once DeepSpeed runs the step."""
    pure = next(name for name in stack_ids() if load_stack(name).defaults.precision == "bf16")
    assert scenario_of(stack=pure).recipe.numerics.precision == "bf16"
    assert scenario_of(stack=pure, sharding="zero2").recipe.numerics.precision == "bf16-mixed"


def test_sizes_that_nobody_says() -> None:
    """One sample, one micro-step, every sample as long as the sequence: assumed."""
    scenario = scenario_of(padding="packed")
    batch = scenario.recipe.batch
    assert (batch.micro_batch, batch.grad_accum, batch.tokens_per_sample, batch.padding) == (
        1,
        1,
        1024,
        "packed",
    )
    assert {assumption(scenario, name).origin for name in ("batch", "grad_accum", "tokens_per_sample")} == {
        "assumed"
    }


def test_the_weights_may_be_loaded_in_the_dtype_of_the_checkpoint() -> None:
    """``checkpoint`` is the dtype that the model's file names, with the place where it was asked for."""
    entry = assumption(scenario_of(stack="trl", load_dtype="checkpoint"), "load_dtype")
    assert (entry.value, entry.origin, entry.note) == ("fp16", "cli", "the dtype of the checkpoint")


@pytest.mark.parametrize(
    ("flags", "offload"),
    [
        ({}, "activations"),
        ({"method": "lora"}, "activations"),
        ({"offload": "none"}, "none"),
        ({"gradient_checkpointing": False}, "none"),
        ({"checkpoint_every": 2}, "none"),
        ({"stack": "trl"}, "none"),
    ],
)
def test_inputs_of_layers_leave_by_themselves_where_every_layer_is_checkpointed(
    flags: dict[str, object], offload: str
) -> None:
    """Unsloth's default, unless it is said otherwise or there is nothing that it could move."""
    assert scenario_of(**{"method": "qlora", "stack": "unsloth", **flags}).recipe.offload == offload


def test_a_step_without_autocast_is_loaded_in_its_own_dtype() -> None:
    """Where nothing casts, a step computes in the dtype of its weights: fp32 is not what was asked."""
    given = {"stack": "trl", "method": "full"}
    assert scenario_of(**given).recipe.numerics.load_dtype == "fp32"
    asked = scenario_of(**given, precision="bf16")
    assert asked.recipe.numerics.load_dtype == "bf16"
    assert "dtype of its weights" in assumption(asked, "load_dtype").note
    said = scenario_of(**given, precision="bf16", load_dtype="fp32")
    assert said.recipe.numerics.load_dtype == "fp32"


def test_several_gpus_share_a_model_as_their_stack_does() -> None:
    """torchtitan divides a model unless told otherwise; a Trainer gives each GPU all of it."""
    titan = scenario_of(stack="torchtitan", gpus=2, method="full")
    assert titan.recipe.sharding.name == "fsdp"
    assert assumption(titan, "sharding").origin == assumption(titan, "optimizer").origin
    assert (
        scenario_of(stack="torchtitan", gpus=2, method="full", sharding="ddp").recipe.sharding.name == "ddp"
    )
    assert scenario_of(stack="torchtitan", method="full").recipe.sharding.name == "none"
    trainer = scenario_of(stack="hf-trainer@5", gpus=2)
    assert (trainer.recipe.sharding.name, assumption(trainer, "sharding").origin) == ("ddp", "assumed")


@pytest.mark.parametrize(
    ("version", "chosen", "takes"),
    [
        ("4.44.2", "sdpa", True),
        ("4.46.3", "eager", True),
        ("4.57.6", "sdpa", True),
        ("5.20.1", "sdpa", True),
        ("5.21.0", "eager", False),
    ],
)
def test_torch_s_kernel_and_capped_scores(version: str, chosen: str, takes: bool) -> None:
    """Transformers ran Gemma 2 with torch's kernel, without the cap, until 5.21: by default, but for 4.45 to
    4.47.  So does a run that was measured with 5.0.0 (Anassbzdd/fitcheck).
    """
    said = {"model": "gemma-2-2b", "stack": "hf-trainer@4", "versions": f"transformers=={version}"}
    assert scenario_of(**said).recipe.attention == chosen
    if takes:
        assert scenario_of(**said, attention="sdpa").recipe.attention == "sdpa"
    else:
        with pytest.raises(RefusedCombinationError, match="no such attention kernel"):
            scenario_of(**said, attention="sdpa")
