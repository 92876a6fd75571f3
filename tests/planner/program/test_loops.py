"""What a training loop refers to while it trains: outputs, the loss and its graph; worked out from shapes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from planner.anatomy.quantized_matrices import as_built, is_quantizable
from planner.catalog.stacks import load_stack
from planner.domain.recipes.recipe import Recipe
from planner.memory.replayed import replayed
from planner.memory.structures import program_of
from planner.program.job import Job
from planner.units import GIB
from tests.jobs import job_by, typed

TOKENS, VOCAB = 2048, 128_256


job = partial(job_by, model="llama-3.2-1b", method="lora", gpu="a100-80-sxm", seq=TOKENS, batch=1)
"""Llama 3.2 1B with LoRA on one card, unless said otherwise."""


def allocated(one: Job, phase: str) -> int:
    """Most bytes allocated in a phase."""
    return next(int(each.allocated_bytes) for each in replayed(one).phases if each.phase == phase)


def test_a_plain_loop_keeps_the_logits_through_backward() -> None:
    """Two bytes for each 16-bit logit above what a trainer holds, which drops them."""
    said: dict[str, Any] = {"precision": "bf16", "load_dtype": "bf16", "stack": "hf-loop"}
    kept, without = job(**said), job(**said, switches="keeps_outputs=false")
    more = allocated(kept, "backward") - allocated(without, "backward")
    assert more == pytest.approx(2 * TOKENS * VOCAB, rel=0.01)


def test_a_step_in_a_function_lets_go_of_its_outputs() -> None:
    """They lie beside the backward, but not beside the next forward.

    SmolLM2 1.7B with LoRA on a T4 reserved 7,146 MiB so (Anassbzdd/fitcheck), and 8,122 Qwen2.5 1.5B, for
    which 9,310 were counted with outputs kept until the next ones.
    """
    said: dict[str, Any] = {"precision": "bf16", "load_dtype": "bf16", "stack": "hf-loop"}
    body, function = job(**said), job(**said, switches="step_in_function=true")
    assert allocated(body, "backward") == allocated(function, "backward")
    more = allocated(body, "forward_2") - allocated(function, "forward_2")
    assert more == pytest.approx(2 * TOKENS * VOCAB, rel=0.05)


def test_unshifted_logits_live_until_the_loss_is_there() -> None:
    """Transformers 4.46 to 4.48 hold 14 bytes a logit when several samples are scored: 2 + 4 + 4 + 4;
    the backward holds 12.
    """
    said: dict[str, Any] = {"batch": 2, "stack": "hf-trainer@4", "precision": "bf16", "load_dtype": "bf16"}
    shifted = job(versions="transformers==4.48.1", **said)
    later = job(versions="transformers==4.49.0", **said)
    more = allocated(shifted, "loss") - allocated(later, "loss")
    assert more == pytest.approx(2 * 2 * TOKENS * VOCAB, rel=0.02)


def test_a_bound_loss_keeps_what_old_four_bit_matrices_kept() -> None:
    """The inputs of one micro-step lie beside those of the next where the loop refers to the loss."""
    said: dict[str, Any] = {"method": "qlora", "stack": "litgpt", "gradient_checkpointing": False}
    bound, free = job(**said), job(**said, switches="binds_loss=false")
    layers, hidden, intermediate = 16, 2048, 8192
    # What enters query, key and value, the output, gate and up, and down; 16-bit.
    inputs = 2 * TOKENS * layers * (3 * hidden + intermediate)
    assert allocated(bound, "forward_2") - allocated(free, "forward_2") == pytest.approx(inputs, rel=0.02)
    assert allocated(bound, "forward") == allocated(free, "forward")


def test_litgpt_refers_to_logits_until_it_has_new_ones() -> None:
    """The logits of a micro-step, in 16 bits and as Fabric widens them, lie beside those before."""
    one = job(stack="litgpt", precision="bf16", load_dtype="bf16")
    assert allocated(one, "loss_2") - allocated(one, "forward_2") == pytest.approx(
        (2 + 4) * TOKENS * VOCAB, rel=0.04
    )


@pytest.mark.parametrize(("seq", "dry_run_gib"), [(512, 12.08), (2048, 25.89)])
def test_autocast_copies_a_frozen_head_for_every_piece_of_logits(seq: int, dry_run_gib: float) -> None:
    """LitGPT's LoRA in its default precision: 16 copies of 128,256 x 2,048 at 2,048 tokens, 4 at 512.

    The number is that of its own program's dry run (litgpt 0.5.13).
    """
    one = job(stack="litgpt", seq=seq, batch=2, grad_accum=2, gpu="h100-sxm")
    assert int(replayed(one).allocated_bytes) == pytest.approx(dry_run_gib * GIB, rel=0.005)


def test_litgpt_full_as_on_an_h100() -> None:
    """The head makes all logits, which are cut for the loss: 26.777 GB allocated, 29.247 reserved."""
    said: dict[str, Any] = {"precision": "bf16", "load_dtype": "bf16", "grad_accum": 2, "gpu": "h100-sxm"}
    memory = replayed(job(stack="litgpt", method="full", batch=2, **said))
    assert int(memory.allocated_bytes) == pytest.approx(26_776_933_888, rel=0.001)
    assert int(memory.reserved_bytes) == pytest.approx(29_246_881_792, rel=0.003)


@pytest.mark.parametrize(
    ("model", "method", "counted"),
    [
        ("llama-2-7b", "lora", 181_096 - 4_096),
        ("mistral-7b-v0.1", "lora", 179_024 - 4_096 - 512),
        ("llama-2-7b", "full", 227_496),
    ],
)
def test_litgpt_keeps_the_product_of_query_key_and_value(model: str, method: str, counted: int) -> None:
    """Bytes for each token and layer that litgpt 0.5.13's own ``GPT`` saves, with LoRA of rank 32 or in full.

    Counted with ``saved_tensors_hooks`` on fake tensors of the CPU, where the mask of a dropout has 2 bytes,
    and there is a causal mask of 512 by 512.  Without shared keys the value is a view of the whole product.
    """
    said: dict[str, Any] = {"precision": "bf16", "load_dtype": "bf16", "batch": 2, "seq": 512}
    said |= {"lora_rank": 32, "lora_dropout": 0.05} if method == "lora" else {}
    memory = replayed(job(model=model, method=method, stack="litgpt", **said))
    forward = next(each for each in memory.phases if each.phase == "forward")
    assert forward.terms["saved_activations"] / (2 * 512 * 32) == pytest.approx(counted, rel=0.004)


def test_litgpt_has_a_head_of_its_own_and_packs_it() -> None:
    """Tied tables become two; the head is among the matrices that are quantised."""
    stack, plain = load_stack("litgpt"), load_stack("hf-trainer@5")
    model = job().model
    assert model.tied
    assert as_built(model, plain) == model
    built = as_built(model, stack)
    assert not built.tied
    assert is_quantizable(built.head, "nothing")
    assert not is_quantizable(model.head, "nothing")


def test_litgpt_caps_pieces_of_logits_since_0_5_5() -> None:
    """Of each logit what the tangent gives is kept for backward: two bytes."""
    said: dict[str, Any] = {"model": "gemma-2-2b", "precision": "bf16", "load_dtype": "bf16", "seq": 512}
    later, before = (job(stack="litgpt", versions=f"litgpt=={each}", **said) for each in ("0.5.13", "0.4.7"))
    more = allocated(later, "loss") - allocated(before, "loss")
    assert more == pytest.approx(2 * 512 * 256_000, rel=0.05)


def test_litgpt_has_gate_and_up_apart() -> None:
    """Phi-3's own code has one matrix for both; as two, each keeps what its dropout leaves, and a mask.
    Two published peaks were 3.1 and 3.5 % above the prediction without that.
    """
    said: dict[str, Any] = {"model": "phi-3-mini-4k", "precision": "bf16", "load_dtype": "bf16", "seq": 512}
    said |= {"lora_targets": "all-linear", "stack": "litgpt"}
    kept = []
    for dropout in (0, 0.05):
        forward = next(
            each for each in replayed(job(**said, lora_dropout=dropout)).phases if each.phase == "forward"
        )
        kept.append(forward.terms["saved_activations"] / (512 * 32))
    # A mask for query, key and value, one for the way out, one for the way down; of gate and up two masks and
    # two inputs, where both kept one.
    assert kept[1] - kept[0] == pytest.approx(3072 + 3072 + 8192 + 2 * 3 * 3072 - 2 * 3072, rel=0.02)


def hidden_bytes(recipe: Recipe) -> int:
    """A 16-bit hidden state of the job."""
    return int(2 * recipe.batch.micro_batch * recipe.batch.seq_len * 2048)


@pytest.mark.parametrize(
    ("switches", "kept_of_each"), [("checkpoints_units=true", 1), ("checkpoints_units=false", 0)]
)
def test_fsdp1_holds_inputs_and_gradients_of_frozen_layers(switches: str, kept_of_each: int) -> None:
    """At the end of backward a layer has left its input and its gradient,
    where only the input was there at the beginning.
    """
    flags: dict[str, Any] = typed(
        "--gpu a100-80-sxm:2 --sharding fsdp1 --gradient-checkpointing --stack hf-trainer@4"
    )
    flags |= typed("--checkpoint-reentrant --loss liger --seq 8192 --precision bf16 --load-dtype bf16")
    base = allocated(job(**flags, switches="checkpoints_units=false"), "backward_2")
    more = allocated(job(**flags, switches=switches), "backward_2") - base
    assert more / hidden_bytes(job(**flags).recipe) == pytest.approx(16 * kept_of_each, abs=3)


@pytest.mark.parametrize(("transformers", "around"), [("4.51.3", True), ("4.53.0", False), ("5.23.0", False)])
def test_layers_checkpoint_themselves_inside_of_their_units(transformers: str, around: bool) -> None:
    """Since 4.52; the dry run of a job of FSDP1 with Transformers 5.16 holds neither input nor gradient."""
    versions = f"transformers=={transformers}"
    said: dict[str, Any] = {"stack": "hf-trainer@4", "gpu": "a100-80-sxm:2", "sharding": "fsdp1"}
    assert job(**said, versions=versions).stack.checkpoints_units is around


def test_zero3_gives_its_cache_back_before_training() -> None:
    """DeepSpeed's ``defragment`` empties the cache while it copies the parts to the host;
    where they lie there anyway, the Trainer does before.
    """
    said: dict[str, Any] = {"method": "full", "gpu": "a100-80-sxm:8", "sharding": "zero3"}
    assert program_of(job(**said)).emptied
    in_ram = said | {"offload": "optimizer+params"}
    assert program_of(job(**in_ram)).emptied
    assert not program_of(job(**in_ram, switches="runs_trainer=false")).emptied
