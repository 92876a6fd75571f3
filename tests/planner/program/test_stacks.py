"""Switches of stacks that move whole tensors of every layer, and an evaluation, counted by hand."""

from __future__ import annotations

from collections import Counter

from planner.domain.term import Phase
from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.step import step_of
from tests.planner.program.head.test_ends import BATCH, SEQ, job

LAYERS, TOKENS = 32, BATCH * SEQ
STREAM, WIDE = TOKENS * 4096 * 2, TOKENS * 14_336 * 2


def alive(asked: Job, phase: Phase) -> Counter[int]:
    """Bytes of what layers made and is there when ``phase`` begins for the first time."""
    stream, values = step_of(asked), unit_values(asked)
    found: set[int] = set()
    for event in stream.events[: next(begin for begin, name in stream.phases if name == phase)]:
        (found.add if event >= 0 else found.discard)(event if event >= 0 else ~event)
    layers = [slot for slot in found if stream.place(slot)[0].startswith("layer")]
    return Counter(round(float(stream.unit_bytes[slot] * values[stream.units[slot]])) for slot in layers)


def test_inputs_of_layers_lie_in_host_ram() -> None:
    """Only what the last layer returns is on the GPU when the loss begins."""
    lora = {"method": "lora", "precision": "bf16", "gradient_checkpointing": True}
    assert alive(job(**lora), "loss")[STREAM] == LAYERS
    for reentrant in (False, True):
        moved = job(**lora, checkpoint_reentrant=reentrant, offload="activations")
        assert alive(moved, "loss")[STREAM] == 1


def test_parts_that_are_checkpointed_one_by_one_keep_an_input_each() -> None:
    """Two norms, attention and MLP; what the layer returns is the input of the next one."""
    flags = {"method": "lora", "precision": "bf16", "adapter_dtype": "bf16", "gradient_checkpointing": True}
    # The embeddings made the first layer's input, and the last one's output is there.
    assert alive(job(stack="automodel", **flags), "loss")[STREAM] == 4 * LAYERS


def test_a_fused_feed_forward_part_saves_gate_and_up_alone() -> None:
    """The product of both is made again in backward."""
    flags = {"method": "lora", "precision": "bf16", "gradient_checkpointing": False}
    assert alive(job(stack="axolotl", **flags), "loss")[WIDE] == 2 * LAYERS


def test_an_evaluation_meets_states_and_no_gradients() -> None:
    """Its logits are those of a forward pass: 16-bit ones, fp32 ones and the log-softmax."""
    asked = job(method="lora", precision="bf16")
    stream, values = step_of(asked), unit_values(asked)
    begin = next(begin for begin, name in stream.phases if name == "eval")
    held, logits, most = Counter[str](), 0, 0
    for number, event in enumerate(stream.events):
        slot, sign = (event, 1) if event >= 0 else (~event, -1)
        held[stream.term(slot)] += sign
        if number == begin:
            assert not held["gradients"]
            assert held["optimizer_states"]
        if number >= begin and stream.unit_bytes[slot] in (2 * 128_256, 4 * 128_256):
            logits += sign * round(float(stream.unit_bytes[slot] * values[stream.units[slot]]))
            most = max(most, logits)
    assert most == TOKENS * 128_256 * 10
