"""The batch of a job, and where its recipe runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.domain.hardware import Hardware
from planner.domain.model import ModelSpec
from planner.domain.origin import DATA, stack_default
from planner.domain.recipes.recipe import (
    GENERATING_TASKS,
    LANGUAGE_TASKS,
    PAIR_TASKS,
    Batch,
    Number,
    Padding,
    Task,
)
from planner.domain.recipes.sample_lengths import SampleLengths
from planner.domain.scenario import TRAINER_BATCH
from planner.domain.stack import Stack
from planner.domain.stack_defaults import StackDefaults
from planner.errors import UsageError
from planner.intake.given.ledger import Ledger
from planner.intake.images import resolve_images
from planner.intake.model_parallel import packs_divided


@dataclass(frozen=True, slots=True)
class RecipeContext:
    """Where the recipe runs, and the defaults that follow from it."""

    model: ModelSpec
    hardware: Hardware
    stack: Stack
    defaults: StackDefaults

    @property
    def origin(self) -> str:
        """Origin of a value that the stack sets."""
        return stack_default(self.stack.id)


def resolve_batch(ledger: Ledger, setting: RecipeContext, task: Task, lengths: SampleLengths | None) -> Batch:
    """How many samples a step has, how long they are, and how they are filled up; every value is entered.

    Raises:
        UsageError: every sample of the data is longer than ``seq``, and the stack leaves such out.
    """
    seq: int = ledger.request.get("seq")
    batch = Batch(
        micro_batch=ledger.choose("batch", *_default_batch(task)),
        grad_accum=ledger.choose("grad_accum", 1, "assumed"),
        seq_len=ledger.choose("seq", seq, "assumed"),
        padding=_resolve_padding(ledger, setting, task),
        tokens_per_sample=seq,
        is_paired=task in PAIR_TASKS,
        lengths=replace(lengths, drops_long=setting.stack.drops_long_samples) if lengths else None,
        images=resolve_images(ledger, setting.model),
    )
    mean = _resolve_mean(ledger, batch)
    return replace(batch, tokens_per_sample=mean, seq_len=batch.padded_within(seq))


def _default_batch(task: Task) -> tuple[int, str, str]:
    """One sample; completions come in groups, so a task that generates has the batch of TRL's arguments."""
    if task in GENERATING_TASKS:
        return TRAINER_BATCH, "assumed", "transformers 5.23.0 training_args.py: per_device_train_batch_size"
    return 1, "assumed", ""


def _resolve_mean(ledger: Ledger, batch: Batch) -> Number:
    """Mean real tokens of a sample; by the data set, where it was read."""
    if batch.lengths is None:
        return ledger.choose("tokens_per_sample", batch.seq_len, "assumed", "every sample as long as seq")
    if not batch.lengths.kept(batch.seq_len):
        raise UsageError(
            f"every sample of --data is longer than --seq {batch.seq_len}, and this stack leaves "
            "such out: raise --seq"
        )
    return ledger.choose("tokens_per_sample", batch.mean_tokens_at(batch.seq_len), DATA)


def _resolve_padding(ledger: Ledger, setting: RecipeContext, task: Task) -> Padding:
    """How batches are filled: nobody packs pairs; pre-training always packs, and so does who divides
    sequences.
    """
    if packs_divided(ledger.request, setting.stack):
        return ledger.choose("padding", "packed", "assumed", "sequences that GPUs divide are filled")
    if task in LANGUAGE_TASKS:
        default: Padding = "packed" if task == "pretrain" else setting.defaults.padding
        return ledger.choose("padding", default, "assumed" if task == "pretrain" else setting.origin)
    return ledger.choose(
        "padding", "longest", "assumed", "trainers of preferences pad to the longest of the batch"
    )
