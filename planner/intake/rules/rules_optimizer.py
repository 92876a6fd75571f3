"""Rules about the optimizer."""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.errors import REFUSED_BY_TOOL
from planner.intake.rules.rule import Case, not_modelled, refuse, warn
from planner.intake.supported import GPU_ONLY_OPTIMIZERS, leaves_rate_on_card, stops_on_cpu


def _steps_in_some(case: Case) -> bool:
    return OPTIMIZER_FACTS[case.recipe.optimizer].on_host == "some"


def _steps_elsewhere(case: Case) -> bool:
    """Whether an optimizer steps in the backward pass of a job where no tool or no formula has it."""
    recipe = case.recipe
    alone = case.hardware.world_size == 1 and recipe.batch.grad_accum == 1
    return recipe.optimizer_in_backward and not (alone and recipe.method == "full")


def _divides_matrices(case: Case) -> bool:
    """Whether the optimizer meets parts of parameters that it does not gather, or adapters.

    Muon was read with adapters that are matrices, where it steps them.
    """
    recipe, sharding = case.recipe, case.recipe.sharding
    muon = case.stack.muon if recipe.optimizer == "muon" else None
    meets_whole = muon == "gathers" or (muon == "all" and recipe.method == "full")
    gathers = meets_whole and sharding.dtensors and not recipe.offloads_something
    if muon == "unread" or not (sharding.engine == "native" or gathers):
        return True
    plain = case.adapter is None or not case.adapter.oft_block_size
    return recipe.method != "full" and not (muon in ("matrices", "all") and plain)


def _stacks_matrices(case: Case) -> bool:
    """Whether trained tensors have three dimensions or more: experts in one, and kernels of convolutions,
    among them those that cut an image into patches.
    """
    if case.model.vision is not None and "vision_tower" not in case.recipe.frozen:
        return True
    return any(
        group.block.mixer is not None or any(_is_stacked(linear) for linear in group.block.linears)
        for group in case.model.groups
    )


def _is_stacked(linear: LinearSpec) -> bool:
    """Whether it is one tensor of all experts, which no optimizer of matrices takes for one."""
    return linear.kind == "parameter" and linear.copies > 1


# Longer x shorter^2 of all matrices over seconds.  By ms-swift's table of tuners
# (data/published/swift_tuners.md) two epochs of 87,543 samples, 16 a step, take 61,023 s with AdamW and
# 79,482 s with GaLore, whose gap is 50 there (swift/trainers/arguments.py): 84 s for Qwen-7B's.
_DECOMPOSED_PER_S = 3.15e11


def _decompositions_s(case: Case) -> float:
    """Seconds in which every matrix that GaLore projects is decomposed once, on the card of that table."""
    counted = [(each, group.count) for group in case.model.groups for each in group.block.linears]
    if case.stack.projects_head and not case.model.tied:
        counted.append((case.model.head, 1))
    total = 0.0
    for linear, count in counted:
        shorter, longer = sorted((linear.in_features, linear.out_features))
        total += 0 if _is_stacked(linear) else count * linear.copies * longer * shorter**2
    return total / _DECOMPOSED_PER_S


def _finds_no_linear(case: Case) -> bool:
    projects = OPTIMIZER_FACTS[case.recipe.optimizer].projects
    inside = (each for group in case.model.groups for each in group.block.linears)
    return bool(projects) and any(each.kind == "conv1d" for each in inside)


def _is_full_muon_of_axolotl(case: Case) -> bool:
    recipe = case.recipe
    return recipe.optimizer == "muon" and case.stack.muon == "all" and recipe.method == "full"


def _divides_unevenly(case: Case) -> bool:
    """Whether FSDP2 leaves GPUs with unequal numbers of rows of a matrix that Muon steps."""
    n_parts = int(case.recipe.shards(case.hardware))
    inside = (each for group in case.model.groups for each in group.block.linears)
    return any(each.out_features % n_parts for each in inside)


OPTIMIZER_RULES = (
    not_modelled(
        "optimizer-of-whole-matrices",
        "This optimizer is modelled for full fine-tunes where every GPU holds all of its states; Muon also "
        "with LoRA in LLaMA-Factory and Axolotl. Use --sharding ddp or none, --stack llama-factory, or "
        "--optimizer adamw_torch",
        lambda case: OPTIMIZER_FACTS[case.recipe.optimizer].whole_matrices and _divides_matrices(case),
        lambda case: (
            f"{case.recipe.optimizer}, {case.recipe.method}, {case.recipe.sharding.name}, {case.stack.id}"
        ),
    ),
    refuse(
        # axolotl 0.19.0 contribs/mit/muon/muon.py: Muon.__init__ asserts two dimensions.
        "muon-of-stacked-matrices",
        "Axolotl's Muon stops at trained tensors of three dimensions, as experts, convolutions and vision "
        f"towers have them; use --method lora, or --optimizer adamw_torch_fused [{REFUSED_BY_TOOL}]",
        lambda case: _is_full_muon_of_axolotl(case) and _stacks_matrices(case),
    ),
    refuse(
        # axolotl-contribs-mit 0.0.6 contribs/mit/muon/dist_muon.py muon_update_batch_async: an assertion.
        "muon-of-uneven-parts",
        "Axolotl's Muon stops at a matrix whose rows are no multiple of the GPUs that divide it; take fewer, "
        f"or --optimizer adamw_torch_fused [{REFUSED_BY_TOOL}]",
        lambda case: (
            _is_full_muon_of_axolotl(case) and case.recipe.sharding.dtensors and _divides_unevenly(case)
        ),
    ),
    not_modelled(
        # transformers 5.23 trainer_optimizer.py:115-117 and 152; llamafactory 0.9.5
        # hparams/parser.py:388-393; torchtune 0.6.1 recipes/full_finetune_single_device.py:146-157.
        "optimizer-in-backward",
        "An optimizer that steps in the backward pass is modelled for a full fine-tune on one GPU without "
        "gradient accumulation; leave --optimizer-in-backward out",
        _steps_elsewhere,
    ),
    not_modelled(
        # deepspeed 0.19.8 runtime/fp16/fused_optimizer.py FP16_Optimizer flattens weights and has all
        # gradients in fp32 twice.
        "own-adam-without-zero",
        "DeepSpeed's own Adam without ZeRO is not modelled in 16 bits; leave the optimizer out of its file",
        lambda case: (
            case.recipe.sharding.name == "zero0"
            and case.stack.one_optimizer_group
            and case.recipe.numerics.mixed
        ),
    ),
    refuse(
        # llamafactory 0.9.5 hparams/parser.py:394-398, but for DeepSpeed's ZeRO-3, which badam 1.4 supports.
        "badam-of-one-layer",
        "BAdam trains one layer after the other, and its tools refuse it on several GPUs but under ZeRO-3, "
        "which is not modelled; use --train-layers first:1 with --method full, and --gpu X:1",
        lambda case: (
            case.recipe.optimizer == "badam"
            and (case.hardware.world_size > 1 or not case.recipe.train_layers)
        ),
    ),
    not_modelled(
        # transformers 5.23 trainer_optimizer.py _setup_low_rank_optimizer and llamafactory 0.9.5
        # model/model_utils/misc.py find_all_linear_modules look for nn.Linear; GPT-2 has Conv1D.
        "projects-no-conv1d",
        "APOLLO and GaLore project nn.Linear alone, and layers of this model have Conv1D: use --optimizer "
        "adamw_torch",
        _finds_no_linear,
        lambda case: case.model.id,
    ),
    warn(
        "optimizer-rank-unused",
        "optimizer_rank is for APOLLO and GaLore; this optimizer has none",
        lambda case: (
            case.recipe.optimizer_rank is not None and not OPTIMIZER_FACTS[case.recipe.optimizer].projects
        ),
    ),
    warn(
        # torch 2.13 ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp: gesvdj_buffersize.  Intervals:
        # planner/program/update/projected.py.
        "galore-decomposes",
        "GaLore's decompositions, once in update_proj_gap steps, are not timed; their workspace, which is "
        "not published, is counted as two fp32 copies of a matrix, by intervals as none to four",
        lambda case: OPTIMIZER_FACTS[case.recipe.optimizer].decomposes,
        lambda case: f"some {_decompositions_s(case):,.0f} s for all of them on an A100",
    ),
    not_modelled(
        "gpu-optimizer-offloaded",
        "8-bit and paged optimizers in host RAM are not modelled: use adamw_torch, which DeepSpeed takes for "
        "its own CPU Adam",
        lambda case: (
            case.recipe.offloads_optimizer
            and case.recipe.optimizer in GPU_ONLY_OPTIMIZERS
            and not stops_on_cpu(case.recipe, case.stack)
            and not leaves_rate_on_card(case.recipe, case.stack)
            and not (case.recipe.uses_deepspeed and _steps_in_some(case))
        ),
        lambda case: f"the optimizer here is {case.recipe.optimizer}",
    ),
    refuse(
        "torchao-offloaded",
        "Optimizers of torchao stop at weights that FSDP has in host RAM, because Accelerate puts their "
        f"learning rate on the card: use adamw_torch [{REFUSED_BY_TOOL}]",
        lambda case: leaves_rate_on_card(case.recipe, case.stack),
        lambda case: f"the optimizer here is {case.recipe.optimizer}",
    ),
    refuse(
        "bitsandbytes-offloaded",
        "Optimizers of bitsandbytes before 0.50 stop with an error where their weights are in host RAM: use "
        f"adamw_torch, which DeepSpeed takes for its own CPU Adam [{REFUSED_BY_TOOL}]",
        lambda case: stops_on_cpu(case.recipe, case.stack),
        lambda case: f"the optimizer here is {case.recipe.optimizer}",
    ),
    warn(
        "slow-optimizer-offloaded",
        "DeepSpeed has no CPU kernel for this optimizer: it needs zero_force_ds_cpu_optimizer false, and "
        "steps slowly",
        lambda case: (
            case.recipe.uses_deepspeed
            and case.recipe.offloads_optimizer
            and (OPTIMIZER_FACTS[case.recipe.optimizer].on_host == "library" or _steps_in_some(case))
        ),
        lambda case: f"the optimizer here is {case.recipe.optimizer}",
    ),
)
