"""What follows from the choices of a recipe: lengths, references, what is offloaded and divided."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from planner.domain.hardware import Hardware, HostSpec
from planner.domain.recipes.parallel import Parallel
from planner.domain.recipes.recipe import (
    Adapter,
    Batch,
    Numerics,
    Offload,
    Packing,
    Padding,
    Precision,
    Quantization,
    Recipe,
    Task,
)
from planner.domain.recipes.rollout import Rollout
from planner.domain.recipes.sample_lengths import SampleLengths
from planner.domain.recipes.sharding import sharding_named
from tests.planner.report.prediction.made import gpu, scenario

BATCH = Batch(4, 2, 1024, "longest", 300)
PLAIN = replace(scenario().recipe, adapter=None, method="full", batch=BATCH)
TABLE = SampleLengths((100.0, 700.0, 3000.0), (6, 3, 1))


@pytest.mark.parametrize(
    ("batch", "length", "mean"),
    [
        (BATCH, 2048, 300),
        (BATCH, 200, 200),
        (replace(BATCH, tokens_per_sample=1024), 2048, 2048),
        (replace(BATCH, tokens_per_sample=2000), 512, 512),
        (replace(BATCH, lengths=TABLE), 512, (6 * 100 + 4 * 512) / 10),
        (replace(BATCH, lengths=TABLE, padding="packed"), 2048, 300),
    ],
)
def test_the_mean_follows_the_length(batch: Batch, length: int, mean: float) -> None:
    """Full samples fill every length, short ones keep theirs; those that were read are cut one by one."""
    assert batch.mean_tokens_at(length) == pytest.approx(mean)


def test_means_and_caps_of_a_grid_are_those_of_its_points() -> None:
    """Three lengths at once."""
    lengths = np.array([128.0, 512.0, 4096.0])
    assert list(BATCH.mean_tokens_at(lengths)) == [128, 300, 300]
    assert list(replace(BATCH, lengths=TABLE).padded_within(lengths)) == [128, 512, 3000]


def test_no_sequence_is_longer_than_the_longest_sample_that_was_read() -> None:
    """Where batches are padded to their longest; full ones and unread ones reach the cap."""
    read = replace(BATCH, lengths=TABLE)
    assert (read.padded_within(8192), read.padded_within(1024), BATCH.padded_within(8192)) == (
        3000,
        1024,
        8192,
    )
    assert replace(read, padding="max_length").padded_within(8192) == 8192


@pytest.mark.parametrize(
    ("changes", "is_padded"),
    [
        ({}, True),
        ({"padding": "packed"}, False),
        ({"tokens_per_sample": 1024}, False),
        ({"padding": "max_length"}, True),
    ],
)
def test_shorter_samples_are_padded_unless_they_are_packed(
    changes: dict[str, object], is_padded: bool
) -> None:
    """In a grid the question is whether any point is."""
    assert replace(BATCH, **changes).is_padded is is_padded  # type: ignore[arg-type]
    assert replace(BATCH, seq_len=np.array([100.0, 1024.0])).is_padded
    assert not replace(BATCH, seq_len=np.array([100.0, 300.0])).is_padded


@pytest.mark.parametrize(
    ("changes", "masks"),
    [
        ({"micro_batch": 1}, False),
        ({"micro_batch": 1, "padding": "max_length"}, True),
        ({"micro_batch": 1, "is_paired": True}, True),
        ({"micro_batch": np.array([1, 2])}, True),
    ],
)
def test_a_row_that_is_the_longest_of_its_batch_has_no_padding(
    changes: dict[str, object], masks: bool
) -> None:
    """Its samples still have lengths of their own."""
    batch = replace(BATCH, **{"padding": "longest", **changes})  # type: ignore[arg-type]
    assert batch.is_padded
    assert batch.masks_padding is masks


def test_a_pair_is_two_sequences() -> None:
    """Of each sample."""
    assert (BATCH.rows, replace(BATCH, is_paired=True).rows) == (4, 8)


@pytest.mark.parametrize(
    ("precision", "dtype", "mixed"),
    [
        ("bf16", "bf16", False), ("bf16-mixed", "bf16", True), ("fp16", "fp16", False),
        ("fp16-mixed", "fp16", True), ("fp32", "fp32", False),
    ],
)  # fmt: skip
def test_a_precision_is_a_dtype_of_products_and_whether_it_is_laid_over(
    precision: Precision, dtype: str, mixed: bool
) -> None:
    """Mixed: over weights of another dtype."""
    numerics = Numerics("bf16", precision)
    assert (numerics.compute_dtype, numerics.mixed) == (dtype, mixed)


@pytest.mark.parametrize(
    ("quantization", "storage", "divides"),
    [
        ("none", None, True), ("nf4", None, False), ("nf4", "bf16", True), ("fp4", "bf16", True),
        ("gptq-int4", None, False), ("int8", "bf16", False), ("awq-int4", "bf16", False),
    ],
)  # fmt: skip
def test_packed_weights_are_divided_as_elements_of_a_float_alone(
    quantization: Quantization, storage: str | None, divides: bool
) -> None:
    """Whole int8 and prepacked ones are not."""
    numerics = Numerics("bf16", "bf16", quantization, quant_storage=storage)  # type: ignore[arg-type]
    assert replace(PLAIN, numerics=numerics).divides_base is divides


@pytest.mark.parametrize(
    ("offload", "optimizer", "params", "nvme"),
    [
        ("none", False, False, False), ("optimizer", True, False, False),
        ("optimizer+params", True, True, False), ("params", False, True, False),
        ("activations", False, False, False), ("optimizer-nvme", True, False, True),
        ("optimizer+params-nvme", True, True, True), ("params-nvme", False, True, True),
    ],
)  # fmt: skip
def test_what_leaves_the_gpu(offload: Offload, optimizer: bool, params: bool, nvme: bool) -> None:
    """States, weights, and how far they go."""
    recipe = replace(PLAIN, offload=offload)
    assert (recipe.offloads_optimizer, recipe.offloads_params, recipe.offloads_to_nvme) == (
        optimizer,
        params,
        nvme,
    )
    assert recipe.offloads_something is (offload != "none")


@pytest.mark.parametrize(
    ("task", "changes", "asks", "is_second"),
    [
        ("sft", {}, False, False),
        ("sft", {"compares_logits": True}, True, True),
        ("dpo", {}, True, True),
        ("dpo", {"caches_reference": True}, False, False),
        ("orpo", {}, False, False),
        ("dpo", {"adapter": Adapter(8, ("all-linear",), 0.0, (), "fp32", dora=False)}, True, False),
    ],
)
def test_a_reference_is_a_second_model_without_adapters(
    task: Task, changes: dict[str, object], asks: bool, is_second: bool
) -> None:
    """With adapters they are switched off; asked before training, it costs no pass in it."""
    recipe = replace(PLAIN, task=task, **changes)  # type: ignore[arg-type]
    assert (recipe.has_reference, recipe.has_reference_model) == (asks, is_second)


@pytest.mark.parametrize(
    ("checkpoints", "every", "share", "some"),
    [
        (False, 1, 0.0, False),
        (True, 1, 1.0, False),
        (True, 2, 0.5, True),
        (True, 3, 0.4, True),
        (True, 99, 0.1, True),
        (False, 2, 0.0, False),
    ],
)
def test_every_nth_layer_is_recomputed(checkpoints: bool, every: int, share: float, some: bool) -> None:
    """Of ten layers the first is, and each n-th behind it."""
    recipe = replace(PLAIN, gradient_checkpointing=checkpoints, checkpoint_every=every)
    assert recipe.recomputed_share(10) == pytest.approx(share)
    assert recipe.rebuilds_some is some


@pytest.mark.parametrize(
    ("sharding", "parallel", "shards", "copies"),
    [
        ("fsdp", Parallel(), 16, 1),
        ("hsdp", Parallel(), 8, 2),
        ("hsdp", Parallel(replicas=4), 4, 4),
        ("fsdp", Parallel(tensor=2), 8, 1),
        ("hsdp", Parallel(tensor=2), 4, 2),
        ("fsdp", Parallel(context=2), 16, 1),
    ],
)
def test_state_lies_over_the_gpus_of_one_copy(
    sharding: str, parallel: Parallel, shards: int, copies: int
) -> None:
    """Two nodes of eight: those that divide matrices have parts of their own already."""
    recipe = replace(PLAIN, sharding=sharding_named(sharding), parallel=parallel)
    hardware = Hardware(gpu(), 8, 2, HostSpec("unknown"))
    assert (recipe.shards(hardware), recipe.copies(hardware)) == (shards, copies)


def generating(
    task: Task = "grpo", *, accum: int = 4, micro_steps: int | None = None, **rollout: object
) -> Recipe:
    """A recipe that trains on completions."""
    made = replace(Rollout(256, 8), micro_steps=micro_steps, **rollout)  # type: ignore[arg-type]
    return replace(PLAIN, task=task, rollout=made, batch=replace(BATCH, grad_accum=accum))


@pytest.mark.parametrize(
    ("task", "accum", "micro_steps", "at_once", "between"),
    [
        ("grpo", 4, None, 4, False), ("grpo", 4, 4, 4, False), ("grpo", 4, 2, 2, True),
        ("grpo", 4, 8, 8, False), ("ppo", 4, 2, 2, False),
    ],
)  # fmt: skip
def test_completions_are_generated_for_some_micro_steps_at_once(
    task: Task, accum: int, micro_steps: int | None, at_once: int, between: bool
) -> None:
    """By default for a whole step; less than that is done between micro-steps, but not in PPO."""
    recipe = generating(task, accum=accum, micro_steps=micro_steps)
    assert (recipe.generation_micro_steps, recipe.generates_between) == (at_once, between)
    assert (PLAIN.generation_micro_steps, PLAIN.generates_between, PLAIN.asks_old) == (0, False, False)


@pytest.mark.parametrize(
    ("recipe", "asks"),
    [
        (generating(), False),
        (generating(micro_steps=2), False),
        (generating(micro_steps=8), True),
        (generating(iterations=2), True),
        (generating(generator="vllm"), True),
        (generating("ppo"), True),
    ],
    ids=["once a step", "twice a step", "for two steps", "trained twice", "another program", "ppo"],
)
def test_log_probabilities_are_asked_before_where_weights_changed_since(recipe: Recipe, asks: bool) -> None:
    """Not where completions are trained on in the step for which they were generated."""
    assert recipe.asks_old is asks


def test_recipes_that_differ_in_sizes_alone_are_equal_without_them() -> None:
    """Batch, length, padding and rank; dropout is no size, nor is whether rows are packed."""
    adapter = Adapter(8, ("all-linear",), 0.0, (), "fp32", dora=False)
    small = replace(PLAIN, adapter=adapter)
    large = replace(small, adapter=replace(adapter, rank=64), batch=Batch(9, 9, 9, small.batch.padding, 9))
    assert small.without_sizes == large.without_sizes
    dropping = replace(small, adapter=replace(adapter, dropout=0.1))
    assert small.without_sizes != dropping.without_sizes
    packed, longest, whole = (
        replace(small, batch=replace(small.batch, padding=padding)).without_sizes
        for padding in get_args(Padding)
    )
    assert packed != longest == whole


@pytest.mark.parametrize(
    ("sharding", "deepspeed", "fsdp"),
    [("none", False, False), ("ddp", False, False), ("zero2", True, False), ("hsdp", False, True)],
)
def test_an_engine_runs_the_step_where_state_is_divided(sharding: str, deepspeed: bool, fsdp: bool) -> None:
    """Copies on each card need none."""
    recipe = replace(PLAIN, sharding=sharding_named(sharding))
    assert (recipe.uses_deepspeed, recipe.uses_fsdp) == (deepspeed, fsdp)


@pytest.mark.parametrize(
    ("quantization", "is_stored", "packed"),
    [
        ("none", False, False),
        ("nf4", False, False),
        ("nf4", True, True),
        ("gptq-int4", False, True),
        ("aqlm", False, True),
    ],
)
def test_a_checkpoint_comes_packed_or_is_packed_while_it_is_loaded(
    quantization: Quantization, is_stored: bool, packed: bool
) -> None:
    """bitsandbytes packs any, unless the checkpoint was made with it."""
    numerics = Numerics("bf16", "bf16", quantization, packing=Packing(is_stored=is_stored))
    assert numerics.arrives_packed is packed
