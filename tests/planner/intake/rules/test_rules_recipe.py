"""What rules about method, adapters and batch say with numbers, and where their limits lie."""

from __future__ import annotations

import pytest

from planner.errors import NotModelledError, RefusedCombinationError
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from tests.jobs import resolved
from tests.planner.intake.jobs import BASE, warned


def test_unmatched_targets_list_what_the_model_has() -> None:
    """The message about wrong target names tells the right ones."""
    with pytest.raises(
        RefusedCombinationError,
        match="q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head",
    ):
        resolved(BASE | {"lora_targets": "c_attn"})


def test_a_model_without_attention_has_none_to_adapt() -> None:
    """PEFT stops where it finds no module, so nothing of Mamba is adapted by this word."""
    job = {"lora_targets": "attention", "method": "lora"}
    assert "mamba2-130m has in_proj" in warned("targets-match-nothing", **job, model="mamba2-130m")
    assert not warned("targets-match-nothing", **job, model="falcon-h1-0.5b")


def test_names_of_replaced_matrices_match_where_they_reach_the_experts() -> None:
    """PEFT takes gate_proj and up_proj together for the tensor that replaced both."""
    job = {"model": "qwen3-30b-a3b", "stack": "hf-trainer"}
    assert not warned("targets-match-partly", **job, lora_targets="q_proj,gate_proj,up_proj")


@pytest.mark.parametrize(
    ("stack", "targets", "unmatched"),
    [
        ("hf-trainer", "q_proj;gate_up_proj", ("gate_up_proj", "targets-match-partly")),
        ("hf-trainer", "gate_up_proj", ("gate_up_proj", "targets-match-nothing")),
        ("hf-trainer", "q_proj;down_proj;gate", ()),
        # PEFT 0.18 has no table of names, so none of theirs reaches experts or routers.
        ("llama-factory", "q_proj;down_proj", ("down_proj", "targets-match-partly")),
        ("llama-factory", "q_proj;gate", ("gate", "targets-match-partly")),
        ("unsloth", "q_proj;gate_up_proj", ()),
    ],
)
def test_a_bare_parameter_is_no_module(stack: str, targets: str, unmatched: tuple[str, ...]) -> None:
    """Its own name adds nothing, and is not listed among those that would."""
    job = {"model": "qwen3-30b-a3b", "stack": stack, "lora_targets": targets, "lora_dropout": 0}
    said = {rule: warned(rule, **job) for rule in ("targets-match-partly", "targets-match-nothing")}
    assert [rule for rule, text in said.items() if text] == list(unmatched[1:])
    for text in filter(None, said.values()):
        names, _, listed = text.partition("; qwen3-30b-a3b has ")
        assert names.endswith(unmatched[0])
        assert unmatched[0] not in listed


@pytest.mark.parametrize("targets", ["gate_proj", "q_proj;up_proj"])
def test_a_part_of_an_expert_tensor_is_a_known_name(targets: str) -> None:
    """One refusal says what is wrong, and none that there is no such name."""
    flags = {"model": "qwen3-30b-a3b", "stack": "hf-trainer", "lora_targets": targets}
    assert "(gate_proj, up_proj)" in warned("targets-name-a-part", **flags)
    assert not warned("targets-match-nothing", **flags)
    assert not warned("targets-match-partly", **flags)


def test_unquantised_experts_are_counted() -> None:
    """Mixtral 8x7B: 32 layers x 8 experts x 3 matrices of 4096 x 14336 stay bf16: 84 GiB."""
    scenario = resolved(BASE | {"model": "mixtral-8x7b", "method": "qlora"})
    assert any("(84.00 GiB)" in warning for warning in scenario.warnings)


def test_adapters_copy_experts_in_the_load_dtype() -> None:
    """The same 84 GiB in bf16, twice as much in fp32; attention alone leaves experts where they are."""
    mixtral = {"model": "mixtral-8x7b", "stack": "trl"}
    said = warned(
        "fused-experts-adapted", **mixtral, load_dtype="bf16", lora_targets="param:experts.gate_up_proj"
    )
    # Gate and up are two of the three matrices.
    assert "56.00 GiB" in said
    said = warned(
        "fused-experts-adapted", **mixtral, load_dtype="fp32", lora_targets="param:experts.gate_up_proj"
    )
    assert "112.00 GiB" in said
    assert not warned("fused-experts-adapted", **mixtral, lora_targets="q_proj")


def test_a_step_takes_samples_of_all_gpus() -> None:
    """3 samples x 2 micro-steps x 4 GPUs are 24."""
    step = {"batch": 3, "grad_accum": 2, "gpus": 4}
    assert "23 samples, a step takes 24" in warned("fewer-samples-than-a-step", **step, samples=23)
    assert not warned("fewer-samples-than-a-step", **step, samples=24)


@pytest.mark.parametrize(
    ("frozen", "stops"), [((), True), (("projector",), True), (("vision_tower",), False)]
)
def test_axolotls_muon_stops_at_a_trained_tower(frozen: tuple[str, ...], stops: bool) -> None:
    """Its patches are cut by a convolution (axolotl 0.19.0 contribs/mit/muon/muon.py: ``p.ndim == 2``)."""
    said = {"model": "qwen2.5-vl-3b", "optimizer": "muon", "stack": "axolotl", "method": "full"}
    flags = from_flags({**BASE, **said, "gpu": "h100-sxm", "freeze": frozen or None})
    if not stops:
        assert resolve(flags).recipe.optimizer == "muon"
        return
    with pytest.raises(RefusedCombinationError, match="muon-of-stacked-matrices"):
        resolve(flags)


@pytest.mark.parametrize(
    ("stack", "said", "answered"),
    [
        ("llama-factory", {}, True),
        ("axolotl", {"adapter_dtype": "fp32"}, True),
        ("llama-factory", {"oft_block_size": 32}, False),
        ("llama-factory-v1", {}, False),
        ("llama-factory-v1", {"method": "full"}, True),
        ("llama-factory@0.8", {"method": "full"}, False),
        ("hf-trainer", {"method": "full"}, False),
        ("torchtune", {"method": "full"}, False),
        ("unsloth", {}, False),
    ],
)
def test_muon_is_answered_where_its_code_was_read(
    stack: str, said: dict[str, object], answered: bool
) -> None:
    """OFT has rows of triangles, LLaMA-Factory's v1 steps adapters by AdamW, and the others have no Muon."""
    flags = from_flags({**BASE, "optimizer": "muon", "stack": stack, **said})
    if answered:
        assert resolve(flags).recipe.optimizer == "muon"
        return
    with pytest.raises(NotModelledError, match="optimizer-of-whole-matrices"):
        resolve(flags)


@pytest.mark.parametrize(
    ("said", "answers"),
    [({}, False), ({"gpus": 2}, True), ({"grad_accum": 2}, True), ({"method": "lora"}, True)],
)
def test_a_step_inside_of_backward_is_alone(said: dict[str, object], answers: bool) -> None:
    """A full fine-tune on one GPU, without accumulation."""
    job = {"method": "full", "optimizer_in_backward": True, **said}
    assert bool(warned("optimizer-in-backward", **job)) == answers


def test_a_head_is_adapted_by_its_name_alone() -> None:
    """The last part of a path counts; all linear matrices are those of the layers."""
    for targets, answers in (("model.lm_head", True), ("q_proj;lm_head", True), ("all-linear", False)):
        assert bool(warned("adapted-head-in-pieces", lora_targets=targets, loss="liger")) == answers


def test_names_that_match_nothing_stand_beside_those_that_there_are() -> None:
    """Of modules to save, also the token table."""
    said = warned("modules-to-save-unmatched", modules_to_save="wte;lm_head")
    assert "wte; llama-2-7b has embed_tokens, q_proj" in said


@pytest.mark.parametrize(("dropout", "stack"), [(0.1, "trl"), (0, "hf-trainer@4")])
def test_parameters_are_adapted_where_experts_are_one_tensor(dropout: float, stack: str) -> None:
    """Either a dropout or separate experts is enough to refuse."""
    flags = {"model": "mixtral-8x7b", "lora_targets": "q_proj;param:experts.down_proj"}
    said = warned("parameter-targets", **flags, lora_dropout=dropout, stack=stack)
    assert f"none, dropout {dropout:g}" in said
    assert not warned("parameter-targets", **flags, lora_dropout=0, stack="trl")


@pytest.mark.parametrize(
    ("said", "answers"),
    [
        ({}, False),
        ({"method": "qlora"}, True),
        ({"lora_dropout": 0.1}, True),
        ({"versions": "unsloth==2026.7.4"}, True),
        ({"stack": "unsloth@2024"}, True),
    ],
)
def test_unsloth_adapts_parameters_that_it_does_not_pack(said: dict[str, object], answers: bool) -> None:
    """Its argument target_parameters goes on to PEFT in the versions that were read."""
    job = {"model": "qwen3-30b-a3b", "stack": "unsloth", "lora_targets": "param:mlp.experts.gate_up_proj"}
    assert bool(warned("parameter-targets", **{**job, "lora_dropout": 0, **said})) == answers


@pytest.mark.parametrize(
    ("stack", "refused"), [("unsloth", False), ("unsloth@2024-01", False), ("trl", True)]
)
def test_unsloth_computes_over_a_packed_checkpoint_in_the_dtype_of_the_job(stack: str, refused: bool) -> None:
    """On a T4 that is fp16, though these checkpoints say bfloat16."""
    said = {"model": "unsloth/llama-3-8b-Instruct-bnb-4bit", "method": "qlora", "gpu": "t4", "seq": 2048}
    request = from_flags(said | {"stack": stack, "precision": "fp16-mixed"})
    if refused:
        with pytest.raises(NotModelledError, match="bf16 against fp16"):
            resolve(request)
    else:
        resolve(request)


def test_ternary_weights_are_those_of_axolotl() -> None:
    """onebitllms is no part of torchtune, and a matrix has one scale."""
    job = {"model": "llama-3.2-1b", "method": "full", "qat": "ternary"}
    assert not warned("qat-unread", **job, stack="axolotl")
    assert "torchtune" in warned("qat-unread", **job, stack="torchtune")
    assert warned("qat-group-alone", **job, stack="axolotl", qat_group=64)
