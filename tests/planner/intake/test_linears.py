"""Names of a model's matrices."""

from __future__ import annotations

from typing import Any

import pytest

from planner.anatomy.adapted_matrices import is_adapted
from planner.errors import RefusedCombinationError, UsageError
from planner.intake.given.request import from_flags
from planner.intake.linears import linear_names, reaches_experts
from planner.intake.resolve import resolve
from tests.planner.intake.jobs import scenario_of


def test_linear_names_of_a_model() -> None:
    """The names that lora_targets may use, in the order of the model."""
    names = linear_names(scenario_of().model)
    assert names == ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


def test_a_convolution_in_place_of_attention_is_none() -> None:
    """LFM2: the projections of attention alone, 4 in each of 6 layers; a path names those of either."""
    model = scenario_of(model="lfm2-1.2b", method="lora").model
    counts = [
        sum(count for linear, count in model.linears() if is_adapted(linear, (target,)))
        for target in ("attention", "self_attn.out_proj", "conv.out_proj")
    ]
    assert counts == [24, 6, 10]


@pytest.mark.parametrize(
    ("model", "fails"),
    [("llama-4-scout", "router"), ("falcon-h1-7b", "out_proj"), ("nemotron-h-8b", "out_proj")],
)
def test_nobody_is_assumed_to_adapt_what_fails(model: str, fails: str) -> None:
    """Where all linear layers are only assumed, those whose adapters fail are left out; a tool's own
    default stays.
    """
    job = {"model": model, "method": "lora", "gpu": "h100-sxm", "gpus": 8, "seq": 512}
    resolved = resolve(from_flags(job))
    assert resolved.recipe.adapter is not None
    targets = resolved.recipe.adapter.targets
    assert fails not in targets
    assert {"q_proj", "down_proj"} <= set(targets)
    said = next(each for each in resolved.assumptions if each.name == "lora_targets")
    assert (said.origin, fails in said.note) == ("assumed", True)
    with pytest.raises(RefusedCombinationError, match="adapter-on-"):
        resolve(from_flags({**job, "lora_targets": "all-linear"}))
    with pytest.raises(RefusedCombinationError, match="adapter-on-"):
        resolve(from_flags({**job, "stack": "llama-factory"}))


def test_where_no_module_is_named_peft_adapts_few() -> None:
    """The names of PEFT's own table; where it has none, PEFT stops."""
    job = {"model": "qwen2.5-7b", "method": "lora", "gpu": "h100-sxm", "seq": 512}
    few = resolve(from_flags({**job, "lora_targets": "peft-default"}))
    assert few.recipe.adapter is not None
    assert few.recipe.adapter.targets == ("q_proj", "v_proj")
    with pytest.raises(UsageError, match=r"PEFT stops.*qwen3_moe.*lora_targets"):
        resolve(from_flags({**job, "model": "qwen3-30b-a3b", "lora_targets": "peft-default"}))


@pytest.mark.parametrize(
    ("model", "stack", "named"),
    [
        ("qwen2.5-7b", "axolotl", {"all-linear"}),
        ("mixtral-8x7b", "axolotl", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("qwen3-30b-a3b", "llama-factory", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("mixtral-8x7b", "axolotl@0.8", {"all-linear"}),
    ],
)
def test_names_of_linear_modules_leave_experts_out_that_are_tensors(
    model: str, stack: str, named: set[str]
) -> None:
    """``find_all_linear_names`` of Axolotl 0.19 over the modules of Transformers 5.16, on meta."""
    flags = {"model": model, "method": "lora", "gpu": "h200-sxm", "seq": 512, "stack": stack}
    adapter = resolve(from_flags({**flags, "lora_targets": "linear-modules"})).recipe.adapter
    assert adapter is not None
    assert set(adapter.targets) == named


def test_linear_modules_stand_anywhere_among_names() -> None:
    """The names beside them are adapted, too."""
    flags = {"model": "qwen2.5-7b", "method": "lora", "gpu": "h200-sxm", "seq": 512, "stack": "axolotl"}
    for named in ("lm_head;linear-modules", "linear-modules;lm_head"):
        adapter = resolve(from_flags({**flags, "lora_targets": named})).recipe.adapter
        assert adapter is not None
        assert adapter.targets == ("all-linear", "lm_head")


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("falcon-h1-0.5b", "q_proj k_proj v_proj o_proj in_proj gate_proj up_proj down_proj"),
        ("nemotron-h-8b", "q_proj k_proj v_proj o_proj in_proj up_proj down_proj"),
        ("qwen2.5-7b", "all-linear"),
    ],
)
def test_ms_swift_leaves_out_what_peft_refuses(model: str, named: str) -> None:
    """``find_all_linears`` and ``_drop_mamba_incompatible_targets`` of ms-swift 4.6.0 over the modules of
    Transformers 5.19, on meta; Axolotl hands out_proj to PEFT, which stops.
    """
    flags = {"model": model, "method": "lora", "gpu": "h200-sxm", "seq": 512, "lora_dropout": 0}
    adapter = resolve(from_flags({**flags, "stack": "swift"})).recipe.adapter
    assert adapter is not None
    assert set(adapter.targets) == set(named.split())


@pytest.mark.parametrize("word", ["linear-classes", "adaptable-modules"])
def test_a_router_that_no_class_name_calls_linear(word: str) -> None:
    """LLaMA-Factory 0.9.5, in a dry run of its own, and ms-swift adapt no router; Axolotl would."""
    flags = {"model": "llama-4-scout", "method": "lora", "gpu": "h200-sxm:8", "seq": 512}
    flags |= {"sharding": "zero3", "images_per_sample": 0}
    adapter = resolve(from_flags({**flags, "lora_targets": word})).recipe.adapter
    assert adapter is not None
    assert {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj"} <= set(adapter.targets)
    assert "router" not in adapter.targets
    with pytest.raises(RefusedCombinationError, match="returns two tensors"):
        resolve(from_flags({**flags, "lora_targets": "linear-modules"}))


def test_linear_modules_leave_a_frozen_tower_out() -> None:
    """As LLaMA-Factory does: nothing warns of names that nobody wrote."""
    flags = {"model": "qwen3-vl-30b-a3b", "method": "lora", "gpu": "h200-sxm", "seq": 512}
    named = {**flags, "stack": "llama-factory", "lora_targets": "linear-classes", "freeze": "vision_tower"}
    found = resolve(from_flags({**named, "images_per_sample": 0}))
    assert found.recipe.adapter is not None
    assert set(found.recipe.adapter.targets) == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert not any("targets-match" in text for text in found.warnings)


def test_a_trained_tower_has_matrices_by_its_own_names() -> None:
    """Adapters on them are counted, so that nothing warns of them."""
    flags = {"model": "qwen3-vl-30b-a3b", "method": "lora", "gpu": "h200-sxm", "seq": 512}
    found = resolve(from_flags({**flags, "lora_targets": "q_proj;qkv", "stack": "trl"}))
    assert not any("targets-match" in text for text in found.warnings)
    frozen = resolve(from_flags({**flags, "lora_targets": "q_proj;qkv", "freeze": "vision_tower"}))
    assert any("targets-match-partly" in text for text in frozen.warnings)


GLM = {"model": "glm-4.5-air", "method": "lora", "gpu": "h200-sxm", "seq": 512}


@pytest.mark.parametrize(
    "job",
    [
        {"stack": "trl"},
        {"stack": "trl", "task": "dpo"},
        {"stack": "swift"},
        {"stack": "hf-trainer", "lora_dropout": 0.05},
        {"stack": "axolotl", "lora_targets": "q_proj;param:experts.down_proj", "lora_dropout": 0.05},
    ],
)
def test_dropout_of_experts_that_are_one_tensor_stops_the_job(job: dict[str, Any]) -> None:
    """TRL and ms-swift say 0.05 by themselves; the trainer of preferences sets it to zero too late.

    The names of GLM's dense layers are those that its experts had.
    """
    with pytest.raises(RefusedCombinationError, match="dropout-on-experts"):
        resolve(from_flags({**GLM, **job}))
    resolve(from_flags({**GLM, **job, "lora_dropout": 0, "switches": ["adapter_kernels=eager"]}))


@pytest.mark.parametrize("word", ["attention", "linear-modules"])
def test_the_way_out_of_a_dropout_on_experts_is_one(word: str) -> None:
    """The refusal names words with which the same job starts."""
    job = {"model": "qwen3-30b-a3b", "method": "lora", "gpu": "h200-sxm", "seq": 512, "stack": "swift"}
    with pytest.raises(RefusedCombinationError, match=f"--lora-targets.*{word}"):
        resolve(from_flags({**job, "lora_targets": "all-linear"}))
    found = resolve(from_flags({**job, "lora_targets": word})).recipe.adapter
    assert found is not None
    assert found.dropout == 0.05


def test_axolotl_leaves_dropout_out_of_experts_that_names_reach() -> None:
    """The other adapters keep it."""
    found = resolve(
        from_flags({**GLM, "stack": "axolotl", "lora_dropout": 0.05, "switches": ["adapter_kernels=eager"]})
    )
    assert found.recipe.adapter is not None
    assert found.recipe.adapter.dropout == 0.05


def test_names_reach_experts_since_peft_019() -> None:
    """LLaMA-Factory runs PEFT 0.18, whose names find modules alone."""
    experts = [
        linear
        for stack in ("llama-factory", "hf-trainer")
        for group in resolve(from_flags({**GLM, "stack": stack})).model.groups
        for linear in group.block.linears
        if linear.group == "expert"
    ]
    assert {bool(each.legacy_names) for each in experts[:2]} == {False}
    assert {bool(each.legacy_names) for each in experts[-2:]} == {True}


@pytest.mark.parametrize("stack", ["swift", "axolotl", "llama-factory", "llama-factory-v1"])
def test_tools_that_find_linear_modules_leave_stacked_experts_alone(stack: str) -> None:
    """Of names found where nothing dense has those of the experts."""
    flags = {"model": "qwen3-30b-a3b", "method": "lora", "gpu": "h200-sxm", "seq": 512, "stack": stack}
    adapter = resolve(from_flags(flags)).recipe.adapter
    assert adapter is not None
    assert adapter.targets == ("q_proj", "k_proj", "v_proj", "o_proj")


def _expert_adapters(model: str, method: str, stack: str, targets: str) -> float:
    """Parameters of adapters on tensors of all experts, in millions."""
    job = {"model": model, "method": method, "gpu": "h200-sxm", "seq": 512, "lora_rank": 8}
    model_of = resolve(from_flags({**job, "stack": stack, "lora_targets": targets})).model
    names = tuple(targets.split(","))
    return sum(
        group.count * 8 * each.rank_factor * each.copies * (each.in_features + each.out_features) / 1e6
        for group in model_of.groups
        for each in group.block.linears
        if each.kind == "parameter" and reaches_experts(each, names)
    )


@pytest.mark.parametrize(
    ("model", "stack", "targets", "millions"),
    [
        # 48 layers x 128 experts x 8 ranks x (2,048 + 1,536), and of down_proj x (768 + 2,048).
        ("qwen3-30b-a3b", "unsloth", "gate_proj,up_proj", 176.2),
        ("qwen3-30b-a3b", "unsloth", "gate_proj", 176.2),
        ("qwen3-30b-a3b", "unsloth", "q_proj,down_proj", 138.4),
        ("qwen3-30b-a3b", "hf-trainer", "gate_proj,up_proj", 352.3),
        # 24 layers x 32 experts x 8 ranks x (2,880 + 5,760 + 2,880 + 2,880).
        ("gpt-oss-20b", "unsloth", "gate_proj,up_proj,down_proj", 88.5),
    ],
)
def test_unsloth_adapts_experts_by_any_of_their_names(
    model: str, stack: str, targets: str, millions: float
) -> None:
    """Each tensor with the asked rank, where PEFT by itself adds up a rank for each matrix."""
    for method in ("lora", "qlora"):
        assert _expert_adapters(model, method, stack, targets) == pytest.approx(millions, rel=1e-3)


@pytest.mark.parametrize("model", ["qwen3-vl-30b-a3b", "internvl3.5-30b-a3b"])
def test_no_name_reaches_experts_behind_a_tower(model: str) -> None:
    """peft 0.20.0 and 0.21.2 over tiny models of both classes: names of experts' matrices match nothing."""
    for targets in ("q_proj,gate_proj,up_proj,down_proj", "all-linear"):
        assert not _expert_adapters(model, "lora", "hf-trainer", targets)
    with pytest.raises(RefusedCombinationError, match="No matrix of the model has a name in lora_targets"):
        _expert_adapters(model, "lora", "hf-trainer", "gate_proj,up_proj,down_proj")


@pytest.mark.parametrize("beside", ["", ",down_proj", ",gate_proj,up_proj"])
def test_beside_a_parameter_names_reach_no_experts_in_unsloth(beside: str) -> None:
    """As many as by a name that stands for the parameter: Unsloth hands PEFT's conversion nothing then."""
    named = f"param:mlp.experts.gate_up_proj{beside}"
    assert _expert_adapters("qwen3-30b-a3b", "lora", "unsloth", named) == pytest.approx(176.2, rel=1e-3)
