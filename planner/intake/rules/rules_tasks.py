"""Rules about what is trained for."""

from __future__ import annotations

import math
from dataclasses import replace

from planner.catalog.stacks import load_stack, stack_ids
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS
from planner.domain.recipes.recipe import LABEL_TASKS, Task
from planner.errors import REFUSED_BY_TOOL
from planner.intake.rules.rule import Case, not_modelled, refuse
from planner.intake.supported import NO_LABELS
from planner.intake.tasks import scores_by_value, takes_tiles
from planner.units import GIB

# How a stack takes log-probabilities -> tasks whose trainer of that age was read.
_READ: dict[str, frozenset[Task]] = {
    "none": frozenset(),
    "whole": frozenset({"dpo", "kto", "orpo", "simpo"}),
    "whole_twice": frozenset({"dpo", "kto"}),
    "whole_with_loss": frozenset({"dpo", "kto", "orpo", "simpo"}),
    "whole_let_go": frozenset({"dpo", "simpo"}),
    "unshifted": frozenset({"dpo", "simpo"}),
    "tempered": frozenset({"dpo"}),
    "rows": frozenset({"dpo", "kto", "orpo", "simpo", "reward"}),
    "rows_and_hidden": frozenset({"dpo", "kto", "orpo", "simpo", "reward"}),
    "rows_let_go": frozenset({"dpo", "kto", "orpo", "simpo", "reward"}),
    "shifted_rows": frozenset({"dpo", "kto", "orpo", "simpo", "reward"}),
    "fused_rows": frozenset({"dpo", "kto", "orpo", "simpo", "reward"}),
    "joined": frozenset({"dpo", "orpo", "simpo"}),
    "tiles": frozenset({"dpo", "kto", "orpo", "simpo", "reward"}),
}
_SEPARATE_PASSES = ("rows",)
_WHOLE = ("whole", "whole_with_loss")
_ONE_GROUP = ("shifted_rows", "fused_rows", "tiles")
"""Of TRL from 0.29 on: 0.29.0, 1.9.0 and 1.16.0 models/utils.py prepare_fsdp (``fully_shard(model)``)."""


def _loss_of_trainer(case: Case) -> str:
    return "chunked" if takes_tiles(case.recipe.task, case.stack) else "hf"


def _unread(case: Case) -> bool:
    task, stack = case.recipe.task, case.stack
    if task == "ppo":
        return stack.reward_head != "value"
    if task == "gkd":
        return stack.distillation == "none"
    if case.recipe.rollout is not None:
        return stack.completion_logps == "none"
    return (
        case.recipe.has_own_loss and task not in _READ[stack.pair_logps] and not scores_by_value(task, stack)
    )


def _stacks_that_have(case: Case) -> tuple[str, ...]:
    """Stacks, in their newest version, whose trainer for the task was read."""
    newest = (load_stack(each) for each in stack_ids() if "@" not in each)
    others = (replace(case, scenario=replace(case.scenario, stack=stack)) for stack in newest)
    return tuple(other.stack.id for other in others if not _unread(other))


def _labels_unread(case: Case) -> bool:
    recipe = case.recipe
    plain = recipe.loss == "hf" and recipe.batch.padding != "packed" and case.model.vision is None
    elsewhere = recipe.task == "classify" and case.stack.classifies == "no"
    return not plain or elsewhere or case.stack.model_code == "own"


def _lacks_labels(case: Case) -> bool:
    by_class = case.stack.classifies != "made" and case.stack.reward_head == "score"
    return case.recipe.task in ("classify", "reward") and by_class and case.model.architecture in NO_LABELS


def _divides_reference(case: Case) -> bool:
    """Whether an engine divides what the reference runs with, in a way that was not read."""
    recipe = case.recipe
    divided = recipe.has_reference and recipe.rollout is None and recipe.sharding.gathers_weights
    known = _second_model_read if recipe.has_reference_model else _adapters_off_read
    return divided and not known(case)


def _second_model_read(case: Case) -> bool:
    """An engine of its own under ZeRO-3; one group of FSDP2 in TRL from 0.29 on."""
    recipe, stack = case.recipe, case.stack
    if recipe.sharding.dtensors:
        return recipe.task == "dpo" and stack.pair_logps in _ONE_GROUP
    read = recipe.task == "dpo" or (recipe.compares_logits and recipe.loss == "hf") or _passes_read(case)
    return recipe.sharding.is_zero3 and stack.divides_as_made and read and _place_read(case)


def _adapters_off_read(case: Case) -> bool:
    """The model itself without its adapters: whole logits or DPO under FSDP2, read passes under ZeRO-3."""
    recipe = case.recipe
    if recipe.sharding.dtensors:
        return recipe.loss == "hf" or recipe.task == "dpo"
    divided = case.stack.divides_as_made and recipe.numerics.quantization == "none" and _place_read(case)
    return recipe.sharding.is_zero3 and divided and _passes_read(case)


def _place_read(case: Case) -> bool:
    """Parameters in host RAM, of DPO and KTO in LLaMA-Factory alone."""
    return not case.recipe.offloads_params or (_takes_whole(case) and _passes_read(case))


def _passes_read(case: Case) -> bool:
    """DPO and KTO by TRL's fused head, and of all logits at once in LLaMA-Factory."""
    return case.recipe.task in ("dpo", "kto") and (case.recipe.loss == "chunked" or _takes_whole(case))


def _takes_whole(case: Case) -> bool:
    """As LLaMA-Factory does; with a DeepSpeed that begins its order of modules anew in each forward pass."""
    return case.stack.pair_logps in _WHOLE and not case.stack.zero3_counts_from_backward


def _values_unread(case: Case) -> bool:
    """ZeRO-3 has states of a head without a gradient, as of any weight, and plain optimizers have none."""
    recipe = case.recipe
    tied = case.model.tied and not recipe.sharding.gathers_weights
    divided = recipe.sharding.is_zero3 and not recipe.offloads_params
    read = recipe.method != "full" or (not recipe.train_layers and (divided or tied))
    return case.model.value_head and not (read and recipe.gradient_checkpointing)


def _joins_pairs(case: Case) -> bool:
    """Whether all pairs of a micro-batch lie in one row, in a way that was read.

    Source: ms-swift 4.6.0 template/base.py _data_collator under ``padding_free``.
    """
    flash = ATTENTION_FACTS[case.recipe.attention].is_flash
    return flash and case.stack.pair_logps == "rows_let_go" and case.recipe.task in ("dpo", "gkd")


def _generates_otherwise(case: Case) -> bool:
    """Whether an engine divides what generates, in a way that was not read."""
    recipe = case.recipe
    if recipe.rollout is None or not recipe.sharding.gathers_weights:
        return False
    read = recipe.sharding.is_zero3 and case.stack.divides_as_made and case.stack.zero3_rollouts != "unread"
    return not (read and recipe.numerics.quantization == "none")


def _generates_with_others(case: Case) -> bool:
    rollout = case.recipe.rollout
    states = any(group.block.mixer is not None for group in case.model.groups)
    itself = rollout is not None and rollout.generator == "transformers"
    return rollout is not None and (case.recipe.batch.images is not None or (itself and states))


def _compares_otherwise(case: Case) -> bool:
    """Whether the second model, which keeps keys and values, or the loss is not one that was read."""
    recipe = case.recipe
    reads = recipe.batch.images is None and all(group.block.mixer is None for group in case.model.groups)
    known = recipe.method == "full" and recipe.loss == "hf" and reads
    return recipe.compares_logits and not known


def _teaches_otherwise(case: Case) -> bool:
    recipe = case.recipe
    by_trainer = not (recipe.uses_fsdp or recipe.parallel.divides or recipe.offloads_something)
    plain = recipe.numerics.quantization == "none" and recipe.batch.images is None
    return recipe.teacher is not None and not (by_trainer and plain)


def _words(case: Case) -> tuple[int, ...]:
    models = (case.model, case.recipe.teacher.model) if case.recipe.teacher else (case.model,)
    return tuple(model.head.out_features for model in models)


def _uneven(case: Case) -> bool:
    """Whether what is generated at once is not a whole number of prompts (trl 1.16.0 trainer/grpo_config.py
    __post_init__).
    """
    recipe = case.recipe
    if recipe.rollout is None:
        return False
    generated = recipe.batch.micro_batch * case.hardware.world_size * recipe.generation_micro_steps
    return bool(generated % recipe.rollout.generations != 0)


def _vllm_weights(case: Case) -> float:
    """Bytes that vLLM's weights take of one GPU at least: a packed policy may have 4 bits there, too.

    Source: trl 1.16.0 generation/vllm_generation.py _init_vllm (``quantization``).
    """
    rollout = case.recipe.rollout
    if rollout is None or rollout.generator != "vllm" or case.model.stored is not None:
        return 0.0
    whole = rollout.vllm_weight_bytes(case.model.param_count)
    return whole if case.numerics.quantization == "none" else whole / 4


def _vllm_share(case: Case) -> float:
    rollout, visible = case.recipe.rollout, case.gpu.visible_memory_bytes
    return 0.0 if rollout is None or visible is None else rollout.vllm_share * visible


def _vllm_text(case: Case) -> str:
    needed, visible = _vllm_weights(case), case.gpu.visible_memory_bytes or 1
    said = f"{needed / GIB:.1f} GiB of weights in a share of {_vllm_share(case) / GIB:.1f} GiB"
    least = math.ceil((needed / visible + 0.05) * 20) / 20
    return f"{said}; --vllm-memory {least:.2f} would do for a start" if least < 1 else said


def _uneven_text(case: Case) -> str:
    rollout = case.recipe.rollout
    steps = case.recipe.generation_micro_steps
    generations = rollout.generations if rollout else 0
    batch, others = int(case.recipe.batch.micro_batch), int(case.hardware.world_size * steps)
    least = generations // math.gcd(generations, others)
    fewer = next(
        (n for n in range(int(case.hardware.world_size), 0, -1) if batch * n * steps % generations == 0), 0
    )
    return (
        f"batch {batch} x {case.hardware.world_size} GPUs x {steps} steps, {generations} generations: "
        f"--batch {-(-batch // least) * least} would do{f', or --gpu X:{fewer}' if fewer else ''}"
    )


TASK_RULES = (
    refuse(
        "generations-uneven",
        "Batch x GPUs x micro-batches of a generation must be a multiple of --generations, or trainers stop; "
        f"raise --batch, or change --generations [{REFUSED_BY_TOOL}]",
        _uneven,
        _uneven_text,
    ),
    refuse(
        # vllm v1/core/kv_cache_utils.py check_enough_kv_cache_memory: no memory left for the cache.
        "vllm-share-short",
        "vLLM stops where its share of the card does not hold its own weights and a cache; raise "
        f"--vllm-memory, or divide it by --vllm-tensor-parallel [{REFUSED_BY_TOOL}]",
        lambda case: case.gpu.visible_memory_bytes is not None and _vllm_weights(case) > _vllm_share(case),
        _vllm_text,
    ),
    not_modelled(
        "generation-divided",
        "Generation is modelled where every GPU has whole weights, and under ZeRO-3 in TRL, Axolotl and "
        "ms-swift, without --quantization; use --sharding zero2, ddp or none",
        _generates_otherwise,
        lambda case: f"{case.recipe.sharding}",
    ),
    not_modelled(
        "ppo-engine",
        "PPO is modelled with LoRA, on one GPU or under DDP; use --method lora and --sharding ddp",
        lambda case: (
            case.recipe.task == "ppo"
            and (case.recipe.adapter is None or case.recipe.sharding.engine in ("deepspeed", "fsdp"))
        ),
    ),
    not_modelled(
        "generation-of-other-layers",
        "Generation is modelled of text, not of images, and by Transformers of layers of attention, not of "
        "layers that keep a state instead of keys; use another model, or --generator vllm for such layers",
        _generates_with_others,
    ),
    not_modelled(
        "reward-model-packed",
        "A reward model that is packed as the policy is, as ms-swift and TRL 0.26 to 1.7 load it, is not "
        "modelled: use a policy that is not packed, or TRL 1.16",
        lambda case: (
            case.recipe.rollout is not None
            and case.recipe.rollout.reward is not None
            and case.numerics.quantization != "none"
            and case.stack.packs_reward_model
        ),
    ),
    not_modelled(
        # axolotl 0.19.0 core/trainers/ebft/trainer.py EBFTMixin.__init__: a copy of the model, whole.
        "features-of-a-copy",
        "Outputs of layers that score completions are modelled of a model whose adapters are switched off, "
        "on one GPU, under DDP, ZeRO-1 and ZeRO-2; use --method lora and such a --sharding",
        lambda case: (
            case.stack.feature_layers > 0
            and (case.recipe.adapter is None or case.recipe.sharding.gathers_weights)
        ),
    ),
    not_modelled(
        "teacher-divided",
        "A teacher is modelled of text, beside a student of 16 or 32 bits, on one GPU, under DDP and ZeRO "
        "without offload; use --sharding zero3, zero2 or ddp, without --quantization and --offload",
        _teaches_otherwise,
    ),
    refuse(
        # trl 1.16.0 experimental/gkd/gkd_trainer.py GKDTrainer.__init__.
        "teacher-of-other-words",
        "Logits are compared word by word, so student and teacher must have as many words; use another "
        "--teacher-model",
        lambda case: case.recipe.teacher is not None and _words(case)[0] != _words(case)[1],
        lambda case: "{:,} and {:,} words".format(*_words(case)),
    ),
    not_modelled(
        "task-not-in-stack",
        "The stack has no trainer for this task that was read; use one of those that have",
        _unread,
        lambda case: f"{case.recipe.task}, {case.stack.id}; --stack {' or '.join(_stacks_that_have(case))}",
    ),
    not_modelled(
        "reference-divided",
        "How this engine divides the model that training compares with was not read for this stack: use "
        "--sharding zero2, ddp or none; for DPO and KTO --sharding zero3 with --stack trl or llama-factory",
        _divides_reference,
        lambda case: f"{case.recipe.task}, {case.recipe.sharding}",
    ),
    not_modelled(
        # torchtune 0.6.1 recipes/full_dpo_distributed.py _setup_reference_model: shard_model of both models.
        "reference-of-its-own-units",
        "torchtune trains whole models by DPO beside a reference that FSDP2 divides by its layers, which is "
        "not modelled; use --method lora, or --stack trl",
        lambda case: case.recipe.has_reference_model and case.stack.pair_logps == "tempered",
    ),
    refuse(
        "preference-packed",
        "This trainer packs nothing, except for DPO and GKD of ms-swift with FlashAttention; use --padding "
        "longest",
        lambda case: (
            case.recipe.has_own_loss and case.recipe.batch.padding == "packed" and not _joins_pairs(case)
        ),
    ),
    not_modelled(
        "preference-loss-kernel",
        "This trainer takes its loss in its own way, and another or a fused one is not modelled; leave "
        "--loss out",
        lambda case: case.recipe.has_own_loss and case.recipe.loss != _loss_of_trainer(case),
        lambda case: f"{case.recipe.loss}",
    ),
    refuse(
        "no-head-of-labels",
        "Transformers has no model of this architecture with a head of labels or scores "
        "(AutoModelForSequenceClassification), so the job stops: use another model",
        _lacks_labels,
        lambda case: case.model.architecture,
    ),
    not_modelled(
        "labels-elsewhere",
        "Tasks prm and classify are modelled of text in Transformers' modules, with a plain head and samples "
        "that are not packed; use --stack hf-trainer, --loss hf, --padding longest",
        lambda case: case.recipe.task in LABEL_TASKS and _labels_unread(case),
    ),
    not_modelled(
        "reward-in-two-passes",
        "Before 0.20 TRL's reward trainer runs the chosen and the rejected sequences one after the other, "
        "each with casts of its own of fp32 weights, which are not modelled; use --load-dtype bf16",
        lambda case: (
            case.recipe.task == "reward"
            and case.stack.pair_logps in _SEPARATE_PASSES
            and case.numerics.mixed
            and case.numerics.load_dtype == "fp32"
        ),
    ),
    not_modelled(
        "value-head",
        "A value head beside the head of words is modelled with gradient checkpointing, and with adapters, "
        "ZeRO-3 or a tied head: use --gradient-checkpointing, and --method lora or --sharding zero3",
        _values_unread,
    ),
    not_modelled(
        "compared-logits",
        "Logits that are compared with a second model's are modelled in full fine-tunes of text, of layers "
        "of attention, with all logits at once; use --method full, --loss hf and such a model",
        _compares_otherwise,
    ),
    not_modelled(
        "offloaded-with-reference",
        "Activations in host RAM are not modelled beside the pass of a reference; use --offload none",
        lambda case: case.recipe.has_reference and case.recipe.offloads_activations,
    ),
    not_modelled(
        "head-in-tiles",
        "Log-probabilities in tiles are modelled of a plain head: without a bias, scaled or capped logits, "
        "and without an adapter of its own; use an older TRL, such as --versions trl==1.14.0",
        lambda case: case.recipe.has_own_loss and case.recipe.loss == "chunked" and _has_other_head(case),
    ),
)


def _has_other_head(case: Case) -> bool:
    model = case.model
    targets = case.adapter.targets if case.adapter else ()
    adapted = model.head.name in {target.rpartition(".")[2] for target in targets}
    return model.head.bias or model.scales_logits or model.logit_softcap or model.normhead or adapted
