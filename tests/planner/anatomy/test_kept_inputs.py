"""What checkpointing stores, and what 4-bit matrices of older bitsandbytes hold although it should be free."""

from __future__ import annotations

from planner.domain.scenario import Scenario
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.activations import activations
from planner.prediction import PRIORS
from planner.program.job import job_of

LAYERS, HIDDEN, FEED_FORWARD, SEQ = 32, 4096, 11_008, 1_024


def scenario(**flags: object) -> Scenario:
    """QLoRA of Llama 2 7B on one card, with 16-bit inputs: nothing is upcast for k-bit training."""
    said = {"model": "llama-2-7b", "method": "qlora", "gpu": "rtx3090", "seq": SEQ, "stack": "hf-trainer@4"}
    own = {"switches": "kbit_upcast=none"} if "stack" not in flags else {}
    return resolve(from_flags({**said, **own, "attention": "sdpa", "load_dtype": "bf16", **flags}))


def kept_bytes(**flags: object) -> float:
    """Bytes of activations that layers keep between forward and backward."""
    amounts = activations(job_of(scenario(gradient_checkpointing=True, **flags), PRIORS))
    return float(amounts.kept - amounts.shared)


def test_non_reentrant_checkpointing_keeps_the_inputs_of_4_bit_matrices() -> None:
    """Two norm outputs, the attention output and the MLP product stay in every layer, 2 bytes each, as in bitsandbytes 0.41."""
    held = LAYERS * SEQ * 2 * (3 * HIDDEN + FEED_FORWARD)
    assert kept_bytes(checkpoint_reentrant=False) - kept_bytes(checkpoint_reentrant=True) == held


def test_parts_that_are_checkpointed_one_by_one_store_four_inputs() -> None:
    """Two norms, attention and MLP of each layer keep their 16-bit inputs where a stack wraps them apart, instead of one."""
    plain = {"method": "lora", "load_dtype": "bf16", "precision": "bf16", "lora_dropout": 0.0}
    one, four = (kept_bytes(**plain, stack=stack) for stack in ("hf-trainer@5", "automodel"))
    assert one == LAYERS * SEQ * 2 * HIDDEN
    assert four == 4 * one


def test_newer_bitsandbytes_holds_nothing() -> None:
    """From bitsandbytes 0.45 on both kinds of checkpointing keep the same."""
    newer = {"stack": "hf-trainer@5"}
    assert kept_bytes(checkpoint_reentrant=False, **newer) == kept_bytes(checkpoint_reentrant=True, **newer)


def test_inputs_of_another_dtype_are_held_once_per_matrix() -> None:
    """After k-bit preparation inputs are fp32 and each matrix holds its own 16-bit cast: seven instead of four inputs."""
    prepared = {"stack": "hf-trainer@4", "attention": "eager"}
    held = LAYERS * SEQ * 2 * (6 * HIDDEN + FEED_FORWARD)
    assert kept_bytes(checkpoint_reentrant=False, **prepared) - kept_bytes(checkpoint_reentrant=True, **prepared) == held
