"""Names of the parts of a model, as PEFT's ``target_modules`` and ``modules_to_save`` would have to spell
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial

from planner.catalog.architecture_tables import default_targets
from planner.catalog.architectures.parts import unreached_by_peft
from planner.domain.model import LinearSpec, ModelSpec
from planner.domain.recipes.recipe import (
    ADAPTABLE_MODULES,
    LINEAR_CLASSES,
    LINEAR_MODULES,
    TARGET_PARAMETER,
    TARGETS_OF_PEFT,
)
from planner.domain.stack_values import ExpertTargets
from planner.errors import UsageError

GROUP_TARGETS = ("all-linear", "attention")
_SEPARATE_BEFORE_5 = frozenset({
    *("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "olmoe", "deepseek_v2", "deepseek_v3",
    "ernie4_5_moe", "glm4_moe")
})  # fmt: skip
"""Architectures whose experts were modules of ``nn.Linear`` up to Transformers 4.57
(models/*/modeling_*.py).
"""
_MATRICES = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def linear_names(model: ModelSpec) -> tuple[str, ...]:
    """Names of all matrices: those of the blocks, then those outside, then the head."""
    inside = [linear.name for group in model.groups for linear in group.block.linears]
    return tuple(dict.fromkeys([*inside, *(linear.name for linear in model.extra_linears), model.head.name]))


def target_names(model: ModelSpec) -> tuple[str, ...]:
    """Names that LoRA targets may use: those of modules, and of the matrices that an expert tensor replaced.
    A bare parameter is no module, so its own name reaches nothing.

    Source: peft 0.21 ``utils/transformers_weight_conversion.py`` (``_MOE_TARGET_MODULE_MAPPING``).
    """
    inside = [linear for group in model.groups for linear in group.block.linears]
    outside = (*model.extra_linears, model.head)
    named = (each.legacy_names if each.kind == "parameter" else (each.name,) for each in (*inside, *outside))
    names = dict.fromkeys(name for each in named for name in each)
    return tuple(name for name in names if not name.startswith(TARGET_PARAMETER))


def reaches_experts(linear: LinearSpec, targets: tuple[str, ...]) -> bool:
    """Whether LoRA targets reach a fused expert tensor,
    which they do by the names of the matrices that it replaced.

    Source: peft 0.21 ``utils/transformers_weight_conversion.py`` (``_convert_peft_config_moe``).
    """
    names = {
        target if target.startswith(TARGET_PARAMETER) else target.rpartition(".")[2] for target in targets
    }
    return bool(linear.legacy_names) and ("all-linear" in names or names.issuperset(linear.legacy_names))


def partly_named(model: ModelSpec, targets: tuple[str, ...]) -> tuple[str, ...]:
    """Names of matrices of which PEFT converts none without the others: some of them are among ``targets``.

    Source: peft 0.21 ``utils/transformers_weight_conversion.py`` (``_convert_peft_config_moe``).
    """
    names = {target.rpartition(".")[2] for target in targets}
    inside = (linear for group in model.groups for linear in group.block.linears)
    joined = (set(each.legacy_names) for each in inside if not each.asked_rank)
    return next((tuple(sorted(each)) for each in joined if names & each and not names >= each), ())


def peft_targets(model: ModelSpec) -> tuple[str, ...]:
    """What PEFT adapts where a configuration names no module.

    Source: peft 0.21.2 tuners/tuners_utils.py (``target_modules is None``).

    Raises:
        UsageError: PEFT has no default for this architecture, so that the job would not start.
    """
    if targets := default_targets(model.architecture):
        return targets
    raise UsageError(
        f"PEFT stops: it has no default modules for {model.architecture} models; "
        "name them with lora_targets (lora_target_modules)"
    )


def spelled_out(
    model: ModelSpec, targets: tuple[str, ...], *, fused_experts: bool, frozen: tuple[str, ...] = ()
) -> tuple[tuple[str, ...], str] | None:
    """The targets that a word stands for, with a note; ``None`` where there is no such word.

    ``fused_experts``: whether the stack has experts as bare tensors.  ``frozen``: parts that are not trained.

    Raises:
        UsageError: PEFT has no default for this model.
    """
    if targets == (TARGETS_OF_PEFT,):
        return peft_targets(model), "what PEFT adapts where no module is named"
    words = (LINEAR_MODULES, LINEAR_CLASSES, ADAPTABLE_MODULES)
    if any(word in targets for word in words):
        found = _linear_modules(model, frozen) if fused_experts else ("all-linear",)
        left_out = refused_by_peft(model) if ADAPTABLE_MODULES in targets else frozenset()
        if LINEAR_MODULES not in targets:
            left_out |= failing_routers(model)
        if left_out:
            found = linear_names_without(model, left_out)
        named = (target for target in targets if target not in words)
        return tuple(dict.fromkeys((*found, *named))), "what the tool finds to be a linear module"
    return None


def _linear_modules(model: ModelSpec, frozen: tuple[str, ...]) -> tuple[str, ...]:
    """All linear layers; beside experts that are bare tensors the names of those, which PEFT takes for the
    experts' where they are the names of the matrices that these replaced.  A frozen tower is left out.

    Source: axolotl 0.19.0 loaders/adapter.py find_all_linear_names (``isinstance``); llamafactory 0.9.5
    model/model_utils/misc.py find_all_linear_modules (``freeze_vision_tower``) and ms-swift 4.6.0
    utils/transformers_utils.py find_all_linears, both by the name of the class.
    """
    inside = [each for group in model.groups for each in group.block.linears]
    inside += _of_tower(model, frozen)
    if not any(each.kind == "parameter" and each.group == "expert" for each in inside):
        return ("all-linear",)
    return tuple(dict.fromkeys(each.name for each in inside if each.kind != "parameter"))


def _of_tower(model: ModelSpec, frozen: tuple[str, ...]) -> list[LinearSpec]:
    """Matrices of a vision tower that is trained."""
    if model.vision is None or "vision_tower" in frozen:
        return []
    groups = (*model.vision.groups, *model.vision.stacked)
    return [each for group in groups for each in group.block.linears]


def unmatched_targets(
    model: ModelSpec, targets: tuple[str, ...], frozen: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Those of ``targets`` that name no matrix of the model, its ``frozen`` parts left out.
    Only the last part of a dotted path is looked at.
    """
    tower = (each.name for each in _of_tower(model, frozen))
    inside = [linear for group in model.groups for linear in group.block.linears]
    attends = any(linear.group == "attention" for linear in inside)
    groups = GROUP_TARGETS if attends else ("all-linear",)
    known = {*target_names(model), *tower, *groups}
    parameters = {name for linear in inside for name in linear.legacy_names}
    return tuple(
        target
        for target in targets
        if (
            target not in parameters
            if target.startswith(TARGET_PARAMETER)
            else target.rpartition(".")[2] not in known
        )
    )


def with_parameters(model: ModelSpec, targets: tuple[str, ...], reach: ExpertTargets) -> ModelSpec:
    """``model`` whose fused expert tensors are reached by the targets that name them as parameters,
    each with the asked rank; ``reach``: what else names them.

    Source: peft 0.21 tuners/tuners_utils.py _inject_parameters: a name is the end of a parameter's path;
    unsloth 2026.10.9 models/llama.py get_peft_model, import_fixes.py _patch_peft_moe_target_conversion: where
    parameters are named, names of modules reach no other.
    """
    named = [target for target in targets if target.startswith(TARGET_PARAMETER)]
    if not named:
        return _reached_by_any(model, targets) if reach == "any" else model
    if reach == "any":
        model = with_experts_apart(model)

    def reached(linear: LinearSpec) -> LinearSpec:
        if reach == "any" and linear.kind != "parameter":
            return _adapted_by_name(linear)
        if linear.kind != "parameter" or linear.group != "expert" or reaches_experts(linear, targets):
            return linear
        for target in named:
            parent, _, name = target.removeprefix(TARGET_PARAMETER).rpartition(".")
            if name == linear.name and parent.rpartition(".")[2] in ("", "experts"):
                return replace(linear, legacy_names=(target,))
        return linear

    return model.with_linears(partial(map, reached))


_PROJECTIONS: Mapping[str, frozenset[str]] = {
    "gate_up_proj": frozenset({"gate_up_proj", "gate_proj", "up_proj"}),
    "gate_proj": frozenset({"gate_up_proj", "gate_proj"}),
    "up_proj": frozenset({"gate_up_proj", "up_proj"}),
    "down_proj": frozenset({"down_proj"}),
}
"""Targets that reach expert tensors of these names."""
_NOT_SEEN_AS_MIXTURES = ("ernie4_5_moe",)
"""Its configuration counts experts under another name (``moe_num_experts``)."""


def _reached_by_any(model: ModelSpec, targets: tuple[str, ...]) -> ModelSpec:
    """``model`` whose expert tensors become target parameters where a target names a part of them, so that
    PEFT converts no name; a module of the same name is adapted, too.

    Source: unsloth 2026.10.9 models/_utils.py get_moe_target_parameters, get_moe_target_modules (those of
    gpt-oss in 4 bits, linears of their own); import_fixes.py _patch_peft_moe_target_conversion.
    """
    if model.architecture in _NOT_SEEN_AS_MIXTURES:
        return model

    def reached(linear: LinearSpec) -> LinearSpec:
        if linear.kind != "parameter":
            return _adapted_by_name(linear)
        names = tuple(each for each in targets if each in _PROJECTIONS.get(linear.name, ()))
        return replace(linear, legacy_names=names, asked_rank=True) if linear.group == "expert" else linear

    made = model.with_linears(partial(map, reached))
    inside = (linear for group in made.groups for linear in group.block.linears)
    asked = any(each.asked_rank and each.legacy_names for each in inside)
    return made if asked else model


def _adapted_by_name(linear: LinearSpec) -> LinearSpec:
    """A module, whose name is its own where PEFT gives it to no expert tensor."""
    return replace(linear, adaptable=linear.adaptable or linear.name in _PROJECTIONS)


@lru_cache(maxsize=64)
def with_experts_apart(model: ModelSpec) -> ModelSpec:
    """``model`` whose fused expert tensors no name of a matrix reaches, as PEFT before 0.19 has them.

    Source: peft 0.18.1 tuners/tuners_utils.py inject_adapter, without a table of names.
    """
    return unreached_by_peft(model)


@lru_cache(maxsize=64)
def with_separate_experts(model: ModelSpec) -> ModelSpec:
    """``model`` with the matrices of each expert as Transformers 4 has them: three linear layers,
    which adapters reach by name.

    Source: transformers 4.57 models/mixtral/modeling_mixtral.py MixtralBlockSparseTop2MLP,
    and likewise in the others.
    """
    if model.architecture not in _SEPARATE_BEFORE_5:
        return model
    return model.with_linears(_separated)


@lru_cache(maxsize=64)
def with_linearized_experts(model: ModelSpec) -> ModelSpec:
    """``model`` with the experts of Llama 4 as Axolotl's own class has them: three lists of linear layers.

    Their modules are called by number, so that no name of a matrix reaches them.
    Source: axolotl 0.19.0 monkeypatch/models/llama4/modeling.py Llama4TextExperts.
    """
    if model.architecture not in ("llama4", "llama4_text"):
        return model
    return model.with_linears(_linearized)


@lru_cache(maxsize=64)
def with_experts_on_host(model: ModelSpec) -> ModelSpec:
    """``model`` without the experts of its mixtures, which lie in host RAM; routers are linear layers, which
    PEFT finds.

    Source: kt-kernel 0.7.0 python/sft/layer.py KTMoELayerWrapper.__init__ (``router_linear``), weights.py
    _clear_original_expert_weights, lora.py _create_fused_expert_lora_buffers.
    """
    return model.with_linears(_without_experts)


def _without_experts(linears: tuple[LinearSpec, ...]) -> Iterator[LinearSpec]:
    for linear in linears:
        if linear.group != "expert":
            bare = linear.kind == "parameter"
            yield replace(linear, kind="linear" if bare else linear.kind, legacy_names=(), adaptable=True)


_LISTS = {"gate_up_proj": ("gate_projs", "up_projs"), "down_proj": ("down_projs",)}


def _linearized(linears: tuple[LinearSpec, ...]) -> Iterator[LinearSpec]:
    for linear in linears:
        if linear.kind != "parameter" or linear.group != "expert":
            yield linear
            continue
        names = _LISTS[linear.name]
        width = linear.out_features // len(names)
        for name in names:
            yield replace(linear, name=name, kind="linear", out_features=width, adaptable=False)


def _separated(linears: tuple[LinearSpec, ...]) -> Iterator[LinearSpec]:
    for linear in linears:
        if linear.kind != "parameter":
            yield replace(linear, adaptable=True)
        elif linear.group == "router":
            yield replace(linear, legacy_names=(linear.name,))
        else:
            names = linear.legacy_names or _MATRICES[linear.name]
            width = linear.out_features // len(names)
            for name in names:
                yield replace(linear, name=name, kind="linear", out_features=width, legacy_names=())


def unmatched_modules(model: ModelSpec, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``modules`` (to save) that are neither a matrix nor the token table."""
    known = {*linear_names(model), model.token_embedding.name}
    return tuple(module for module in modules if module.rpartition(".")[2] not in known)


_PEFT_REFUSES = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
"""Source: peft 0.21 tuners/tuners_utils.py _check_lora_target_modules_mamba (``mamba_model_types``)."""


def refused_by_peft(model: ModelSpec) -> frozenset[str]:
    """Names of matrices for which PEFT raises an error: ``out_proj`` of some models with Mamba layers."""
    return frozenset({"out_proj"} if model.architecture in _PEFT_REFUSES else ())


def failing_routers(model: ModelSpec) -> frozenset[str]:
    """Names of routers that return two tensors, over which PEFT's adapter fails.

    No class name of theirs says Linear.  Source: transformers 5.23 models/llama4/modeling_llama4.py
    Llama4Router; peft 0.21 tuners/lora/layer.py Linear.forward.
    """
    return frozenset(
        linear.name
        for group in model.groups
        for linear in group.block.linears
        if linear.group == "router" and linear.kind == "subclass"
    )


def linear_names_without(model: ModelSpec, names: frozenset[str]) -> tuple[str, ...]:
    """Names of the linear layers of the blocks, less ``names``."""
    found = (
        linear.name
        for group in model.groups
        for linear in group.block.linears
        if linear.kind != "parameter" and linear.adaptable and linear.name not in names
    )
    return tuple(dict.fromkeys(found))
