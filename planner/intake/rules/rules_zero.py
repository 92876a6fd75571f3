"""Rules about ZeRO++: the second copy of weights (hpZ), and what is sent in 8 or 4 bits.

Source: DeepSpeed 0.19.8 runtime/zero/partition_parameters.py, runtime/comm/coalesced_collectives.py,
utils/groups.py; DeepSpeed#4901 and #7066 (a second model under hpZ), #7775 (bf16 weights).
"""

from __future__ import annotations

from planner.catalog.packages import parsed_version
from planner.domain.scenario import Scenario
from planner.errors import REFUSED_BY_TOOL
from planner.intake.leaf_modules import is_readable, leaf_kinds
from planner.intake.rules.rule import Case, not_modelled, refuse, warn

_KEEPS_DTYPE = (0, 19, 6)
"""The first DeepSpeed that gives quantised weights back in their own dtype: pull request 8215."""


def _copies(case: Case) -> bool:
    return case.recipe.parallel.hpz > 1


def _sends(case: Case, what: str) -> bool:
    return what in case.stack.zero3_quantized


def _leaves(case: Case) -> list[str]:
    """Classes of leaf modules that the job names itself."""
    given = case.given.get("switches")
    said = given is not None and any(text.startswith("zero3_leaves=") for text in given.value)
    names = case.stack.zero3_leaves if said and case.recipe.sharding.is_zero3 else ()
    return [name for name in names if name != "none"]


def _unread_leaves(case: Case) -> list[str]:
    return [name for name in _leaves(case) if not is_readable(name)]


def _has_second_model(scenario: Scenario) -> bool:
    recipe = scenario.recipe
    scores = recipe.rollout is not None and recipe.rollout.reward is not None
    return recipe.has_reference_model or recipe.teacher is not None or scores


def _loses_dtype(case: Case) -> bool:
    version = dict(case.stack.versions).get("deepspeed", "")
    narrow = case.numerics.compute_dtype == "fp16"
    return bool(version) and not narrow and parsed_version("deepspeed", version) < _KEEPS_DTYPE


ZERO_RULES = (
    not_modelled(
        "leaf-unread",
        "Modules that ZeRO-3 gathers whole are modelled where they are layers, mixtures of experts, or all "
        "experts of a layer, by the names that their classes have in Transformers",
        lambda case: bool(_unread_leaves(case)),
        lambda case: ", ".join(_unread_leaves(case)),
    ),
    refuse(
        "leaf-of-another",
        "ZeRO-3 is to gather modules whole whose classes the model has not: Accelerate and "
        "set_z3_leaf_modules stop at them, a file of DeepSpeed's gathers none; name a class of this model, "
        "or none",
        lambda case: bool(_leaves(case)) and not leaf_kinds(case.stack.zero3_leaves, case.model),
        lambda case: f"{', '.join(_leaves(case))}, {case.model.architecture}",
    ),
    refuse(
        "hpz-without-zero3",
        "hpz is a second copy of what ZeRO-3 divides: use --sharding zero3",
        lambda case: _copies(case) and not case.recipe.sharding.is_zero3,
        lambda case: f"sharding is {case.recipe.sharding}",
    ),
    refuse(
        "hpz-second-model",
        "DeepSpeed makes the groups of hpz once, and stops where a second model is divided as it is made: "
        f"leave hpz out [{REFUSED_BY_TOOL}]",
        lambda case: _copies(case) and case.stack.divides_as_made and _has_second_model(case.scenario),
    ),
    refuse(
        "hpz-on-nvme",
        "DeepSpeed has no second copy (hpz) of parameters on NVMe: use --offload optimizer+params or "
        f"leave hpz out [{REFUSED_BY_TOOL}]",
        lambda case: _copies(case) and case.recipe.offloads_params and case.recipe.offloads_to_nvme,
    ),
    not_modelled(
        "hpz-unread",
        "A second copy of weights (hpz) is not modelled beside a second model that is made whole, and beside "
        "GPUs that share a batch",
        lambda case: (
            _copies(case)
            and (
                case.recipe.parallel.divides
                or (not case.stack.divides_as_made and _has_second_model(case.scenario))
            )
        ),
    ),
    refuse(
        "quantized-without-zero3",
        "zero3_quantized is about what ZeRO-3 sends, and other stages do not read it: use --sharding zero3",
        lambda case: case.stack.zero3_quantized != "none" and not case.recipe.sharding.is_zero3,
        lambda case: f"sharding is {case.recipe.sharding}",
    ),
    refuse(
        "quantized-weights-lose-dtype",
        "DeepSpeed before 0.19.6 gives weights that it sent in 8 bits back in fp16, at which products in "
        f"other dtypes stop: use --precision fp16-mixed or --versions deepspeed==0.19.8 [{REFUSED_BY_TOOL}]",
        lambda case: _sends(case, "weights") and _loses_dtype(case),
        lambda case: f"deepspeed {dict(case.stack.versions)['deepspeed']}, {case.numerics.compute_dtype}",
    ),
    not_modelled(
        "quantized-packed",
        "Packed weights that are sent in 8 bits come back as other ones, so no formula covers them: leave "
        "zero_quantized_weights out",
        lambda case: _sends(case, "weights") and case.numerics.quantization != "none",
        lambda case: case.numerics.quantization,
    ),
    not_modelled(
        # ``_partition_param`` quantises an empty part, and copies 16-bit values into its 8 bits.
        "quantized-frozen",
        "zero_quantized_nontrainable_weights loses the values of weights that ZeRO-3 finds whole and frozen: "
        "leave it out",
        lambda case: (
            case.stack.zero3_quantizes_frozen
            and case.recipe.sharding.is_zero3
            and case.recipe.adapter is not None
            and (case.numerics.quantization != "none" or not case.stack.divides_as_made)
        ),
    ),
    not_modelled(
        "quantized-unread",
        "Weights and gradients in 8 or 4 bits are not modelled beside GPUs that share a batch, nor gradients "
        "beside sums in fp32",
        lambda case: (
            case.stack.zero3_quantized != "none"
            and (
                case.recipe.parallel.divides
                or (_sends(case, "gradients") and case.stack.zero_sums_fp32 == "always")
            )
        ),
    ),
    warn(
        "quantized-gradients-misread",
        "DeepSpeed 0.19.8 reads gradients that it sends in 4 bits as fp16, whatever they are, so that others "
        "come out wrong",
        lambda case: (
            _sends(case, "gradients") and case.hardware.nodes > 1 and case.numerics.compute_dtype != "fp16"
        ),
        lambda case: case.numerics.compute_dtype,
    ),
    warn(
        "quantized-gradients-one-node",
        "DeepSpeed sends gradients in 4 bits between nodes alone, so one node has no use of "
        "zero_quantized_gradients",
        lambda case: _sends(case, "gradients") and case.hardware.nodes == 1,
    ),
)
