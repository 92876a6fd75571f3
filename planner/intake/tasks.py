"""What a task makes of a model before it is trained."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import (
    GENERATING_TASKS,
    LABEL_TASKS,
    LANGUAGE_TASKS,
    REFERENCE_TASKS,
    Recipe,
    Task,
)
from planner.domain.stack import Stack
from planner.domain.stack_values import FUSED_KERNELS, LogitsCopy
from planner.errors import UsageError
from planner.intake.given.ledger import Ledger
from planner.intake.supported import minor_of_transformers_4

_VARLEN_WIDEST = 256

# The first minor version of Transformers 4 whose class takes the common loss, which others took in 46.
_COMMON_SINCE = {
    **dict.fromkeys(("bloom", "falcon", "gpt2", "mpt", "opt", "stablelm"), 48),
    **dict.fromkeys(("gptj", "granite", "mistral"), 48),
    "gpt_neox": 49,
    "starcoder2": 47,
}
_NEVER_WIDENED = frozenset({"bloom", "falcon", "gpt2", "gpt_neox", "mpt", "opt", "stablelm"})
_IN_PLACE: tuple[LogitsCopy, ...] = ("float", "shifted", "log_softmax")
_COMMON: tuple[LogitsCopy, ...] = ("compute", "float", "shifted", "log_softmax")
_NARROW: tuple[LogitsCopy, ...] = ("compute", "shifted", "log_softmax")


def keeps_dropout(task: Task, stack: Stack) -> bool:
    """Whether the trainer for ``task`` leaves dropout on: those of preferences and of steps set it to zero,
    where ``model_dropout`` says so.

    Source: trl 1.16.0 trainer/dpo_config.py and kto_config.py, trl 0.9.6, 0.12.1 and 0.15.2
    trainer/{dpo,kto,orpo,cpo,reward}_config.py (``disable_dropout``, off in grpo_config.py);
    hiyouga/LLaMA-Factory (commit ff6d4d12) train/dpo/trainer.py.
    """
    if task in LANGUAGE_TASKS | GENERATING_TASKS:
        return task != "prm"
    return scores_by_value(task, stack) or stack.model_dropout != "not_in_pairs"


def labels_of(ledger: Ledger, task: Task) -> int:
    """What a head of labels has of them: 2 of each step, and of a sample as many as were given.

    Raises:
        UsageError: labels of a task that has none.
    """
    if task == "classify":
        return int(ledger.choose("num_labels", 2, "assumed", "transformers 5.23 configuration_utils.py"))
    if ledger.is_given("num_labels"):
        raise UsageError("num_labels is of a classifier: say --task classify, or leave it out")
    return 2 if task == "prm" else 1


def trained_model(model: ModelSpec, task: Task, stack: Stack, labels: int = 1) -> ModelSpec:
    """The model that ``task`` trains: with a head for values, scores or ``labels``, and its dropout.

    Source: trl 1.16.0 trainer/utils.py disable_dropout_in_model sets ``p`` of modules alone.
    """
    if task == "ppo" or scores_by_value(task, stack):
        return replace(model, value_head=True)
    switched_off = not keeps_dropout(task, stack) and model.drops_by_module
    if switched_off or stack.model_dropout == "never":
        model = model.without_dropout
    if task in LABEL_TASKS or task == "reward":
        return with_score(model, labels, bias=task == "prm")
    return model


def with_trained_head(recipe: Recipe, model: ModelSpec) -> Recipe:
    """``recipe`` with the head among ``modules_to_save``, where PEFT puts that of a classifier.

    Source: peft 0.20.0 peft_model.py PeftModelForSequenceClassification.__init__.
    """
    adapter = recipe.adapter
    if recipe.task != "classify" or adapter is None or model.head.name in adapter.saved_names:
        return recipe
    saved = (*adapter.modules_to_save, model.head.name)
    return replace(recipe, adapter=replace(adapter, modules_to_save=saved))


def takes_tiles(task: Task, stack: Stack) -> bool:
    """Whether the trainer for ``task`` takes log-probabilities of tiles of the head's product,
    without logits.
    """
    if task == "grpo":
        return stack.completion_logps == "tiles"
    return stack.pair_logps == "tiles" and task in REFERENCE_TASKS


def takes_rows(recipe: Recipe, stack: Stack) -> bool:
    """Whether the trainer takes log-probabilities of one row of a micro-batch after the other."""
    if recipe.loss == "chunked" or recipe.task in ("reward", "ppo", "gkd"):
        return False
    if recipe.rollout is not None:
        return stack.completion_logps != "fused_rows"
    return recipe.has_own_loss and (
        stack.pair_logps in ("rows", "rows_and_hidden", "rows_let_go", "shifted_rows")
    )


def scores_by_value(task: Task, stack: Stack) -> bool:
    """Whether a reward model keeps its head of words and gets one of values beside it.

    Source: llamafactory 0.9.5 model/loader.py:185, trl 0.24.0 models/modeling_value_head.py.
    """
    return task == "reward" and stack.reward_head == "value"


def with_score(model: ModelSpec, labels: int = 1, *, bias: bool = False) -> ModelSpec:
    """A head of one output, or of so many labels, in the place of that of the words,
    as ``AutoModelForSequenceClassification`` has it; that of labels of steps has a bias.

    Source: transformers 5.23 modeling_layers.py GenericForSequenceClassification (``score``, without a
    bias), GenericForTokenClassification (with one); trl 1.16.0 trainer/reward_trainer.py (``num_labels`` is
    1), trl 0.15.2 trainer/prm_trainer.py, prm_config.py (``disable_dropout``).
    """
    score = replace(model.head, name="score", out_features=labels, bias=bias)
    plain = replace(model, head=score, tied=False, normhead=False, logit_softcap=False, scales_logits=False)
    return replace(plain, published_params=None)


def stack_for(stack: Stack, recipe: Recipe, model: ModelSpec) -> Stack:
    """The stack that trains ``model`` so: Axolotl turns its own kernels for adapters on for language
    modelling alone, and tells a kernel where packed samples begin only if that kernel takes the heads;
    Transformers keeps experts in fp8, too.  Beside divided matrices or experts it has an FSDP2 of its own.

    Source: axolotl 0.19.0 utils/schemas/config.py check_auto_enable_lora_kernels (not where ``rl`` is set),
    loaders/patch_manager.py _apply_sdpa_varlen_patch; transformers 5.23 integrations/finegrained_fp8.py
    replace_with_fp8_linear, distributed/fsdp.py apply_fully_sharded_data_parallelism.
    """
    divides_all = max(recipe.parallel.tensor, recipe.parallel.experts) > 1 and recipe.sharding.dtensors
    if stack.fsdp2_casts == "undivided" and divides_all:
        stack = replace(stack, fsdp_loads="shards", fsdp2_widens=False, fsdp2_casts="never")
    if stack.packed_mask == "varlen" and not _takes_samples(recipe, model):
        stack = replace(stack, packed_mask="rows")
    if recipe.numerics.quantization == "fp8" and stack.fused_experts:
        stack = replace(stack, quantizes_experts="fp8")
    if recipe.task in LANGUAGE_TASKS or stack.adapter_kernels not in FUSED_KERNELS:
        return stack
    return replace(stack, adapter_kernels="eager")


def _takes_samples(recipe: Recipe, model: ModelSpec) -> bool:
    """Whether ``varlen_attn`` takes all heads: of 16 bits and one width, up to 256, without a window."""
    shapes = [group.block.attention for group in model.groups if group.block.attends]
    fits = all(each.head_dim == each.value_head_dim and each.head_dim <= _VARLEN_WIDEST for each in shapes)
    return fits and not model.windows and recipe.numerics.compute_dtype != "fp32"


def with_own_loss(stack: Stack, model: ModelSpec) -> Stack:
    """``stack`` with the loss of the model's class, where that is Transformers' and not the common one."""
    since, minor = _COMMON_SINCE.get(model.architecture), minor_of_transformers_4(stack)
    is_own = since is not None and minor is not None and minor < since
    if not is_own or stack.model_code == "own" or stack.loss_forward not in (_IN_PLACE, _COMMON):
        return stack
    copies = _NARROW if model.architecture in _NEVER_WIDENED else _IN_PLACE
    return stack if stack.loss_forward == copies else replace(stack, loss_forward=copies)
