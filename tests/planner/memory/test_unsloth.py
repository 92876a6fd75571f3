"""What Unsloth does of its own: block inputs in host RAM, a loss cut by free memory, packed experts, a kept buffer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.catalog.stacks import with_switches
from planner.domain.prediction import Prediction
from planner.domain.scenario import Scenario
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.prediction import estimate
from planner.units import GIB, MIB

# llama-3.1-8b: 32 layers of 4,096 features, 128,256 words, MLP of 14,336 features.
LAYERS, HIDDEN, WORDS, WIDTH = 32, 4096, 128_256, 14_336
JOB = {"model": "llama-3.1-8b", "method": "qlora", "gpu": "a100-80-sxm", "seq": 16_384, "stack": "unsloth"}


def scenario(**flags: object) -> Scenario:
    """The job with other flags."""
    return resolve(from_flags({**JOB, **flags}))


def terms(prediction: Prediction) -> dict[str, float]:
    """Bytes of each GPU term by label."""
    return {term.label: float(term.n_bytes) for term in prediction.memory.terms}


def host_terms(prediction: Prediction) -> dict[str, float]:
    """Bytes of each host term by name."""
    return {term.name: float(term.n_bytes) for term in prediction.host.terms}


@pytest.mark.parametrize(
    ("flags", "offload"),
    [
        ({}, "activations"),
        ({"method": "lora"}, "activations"),
        ({"offload": "none"}, "none"),
        ({"gradient_checkpointing": False}, "none"),
        ({"checkpoint_every": 2}, "none"),
        ({"stack": "trl"}, "none"),
    ],
)
def test_block_inputs_leave_by_themselves_where_every_layer_is_checkpointed(flags: dict[str, object], offload: str) -> None:
    """The default of the stack, unless it is said otherwise or there is nothing that it could move."""
    assert scenario(**flags).recipe.offload == offload


def test_three_block_inputs_stay_of_all() -> None:
    """Two staging buffers and the last layer's own input, beside rotary tables; the rest is in host RAM, every layer's."""
    one = JOB["seq"] * HIDDEN * 2
    away, here = estimate(scenario()), estimate(scenario(offload="none"))
    saved = "saved activations"
    # The input of the layer that is rebuilt is among the saved ones here, and with that layer where they are away.
    assert terms(here)[saved] - terms(away)[saved] == (LAYERS - 2) * one
    rebuilt = "one block, first backward"
    assert terms(away)[rebuilt] - terms(here)[rebuilt] == one
    assert host_terms(away)["offloaded_activations"] == LAYERS * one
    assert "offloaded_activations" not in host_terms(here)


def test_blocks_that_host_ram_has_no_room_for_are_not_pinned() -> None:
    """Pinned blocks are rounded up to 256 MiB of 160 MiB; a host with less takes them as they are, one without is short."""
    flags = {"seq": 20_480}
    exact, rounded = LAYERS * 160 * MIB, LAYERS * 256 * MIB
    roomy = estimate(scenario(**flags, host_memory="64GiB"))
    assert host_terms(roomy)["offloaded_activations"] == rounded
    tight = estimate(scenario(**flags, host_memory="8GiB"))
    assert exact <= host_terms(tight)["offloaded_activations"] < rounded
    assert tight.verdict == "fits"
    short = estimate(scenario(**flags, host_memory="6GiB"))
    assert host_terms(short)["offloaded_activations"] == exact
    assert short.verdict == "host_memory_short"


def test_pieces_of_the_loss_are_planned_in_four_gib() -> None:
    """16 bytes a logit: 31.3 GiB of 16,384 tokens in 4 GiB less the input's gradient are twelve pieces, of bf16 logits."""
    gradient = JOB["seq"] * HIDDEN * 2
    planned = JOB["seq"] * WORDS * 16
    pieces = 4 * -(-planned // (4 * (4 * GIB - gradient)))
    assert pieces == 12
    piece = -(-JOB["seq"] // pieces)
    # That gradient lies beside the output and the input of the final norm.
    assert terms(estimate(scenario()))["logits and loss"] == piece * WORDS * 2 + 3 * gradient


def test_a_full_card_gets_smaller_pieces_and_a_short_batch_one() -> None:
    """Half of what is free bounds a piece; what fits into it is not cut."""
    loss, rest = "logits and loss", 3 * JOB["seq"] * HIDDEN * 2
    roomy, full = terms(estimate(scenario()))[loss], terms(estimate(scenario(gpu_memory="11GiB")))[loss]
    assert rest < full < rest + (roomy - rest) / 2
    assert terms(estimate(scenario(seq=512)))[loss] == 512 * (WORDS * 2 + 3 * HIDDEN * 2)
    whole = scenario(seq=512)
    eighths = replace(whole, stack=with_switches(whole.stack, {"loss_pieces": "eighths"}, "test"))
    assert terms(estimate(eighths))[loss] < 512 / 8 * WORDS * 12 * 1.1


def test_the_buffer_for_expanded_weights_is_the_largest_matrix() -> None:
    """bf16 and an fp32 scale of every 64 elements; none over a base of 16 bits."""
    elements = HIDDEN * WIDTH
    label = "buffer for expanded weights"
    assert terms(estimate(scenario()))[label] == elements * 2 + elements // 64 * 4
    assert label not in terms(estimate(scenario(method="lora")))


@pytest.mark.parametrize(("model", "card"), [("gpt-oss-20b", "t4"), ("qwen3-30b-a3b", "rtx3090")])
def test_experts_are_packed(model: str, card: str) -> None:
    """Both fit where their 16-bit experts never would, and a product expands the experts of one layer."""
    job = scenario(model=model, gpu=card, seq=1024, lora_targets="attention")
    packed = estimate(job)
    assert packed.verdict == "fits"
    assert not any("fused-experts-not-quantized" in warning for warning in job.warnings)
    skipped = estimate(replace(job, stack=with_switches(job.stack, {"quantizes_experts": "false"}, "test")))
    experts = [each for each in job.model.groups[0].block.linears if each.group == "expert"]
    elements = sum(group.count for group in job.model.groups) * sum(each.weight_count for each in experts)
    both = terms(skipped)["weights"] - terms(packed)["weights"]
    assert both >= elements * 2
    assert terms(packed)["one block, first backward"] >= max(each.weight_count for each in experts) * 2
