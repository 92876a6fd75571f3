"""What checkpointing stores, and what 4-bit matrices of older bitsandbytes hold although it should be
free.
"""

from __future__ import annotations

import pytest

from planner.program.job import Job
from planner.program.step import step_of
from tests.jobs import typed
from tests.planner.program.head.test_ends import BATCH, SEQ, job
from tests.planner.program.test_stacks import alive

LAYERS, HIDDEN, FEED_FORWARD, TOKENS = 32, 4096, 11_008, BATCH * SEQ


def qlora(*, reentrant: bool, **flags: object) -> Job:
    """QLoRA of Llama 2 7B on one card, with 16-bit inputs: nothing is upcast for k-bit training."""
    said: dict[str, object] = typed("--model llama-2-7b --method qlora --gpu rtx3090 --load-dtype bf16")
    said |= {"stack": "hf-trainer@4", "switches": "kbit_upcast=none", "gradient_checkpointing": True}
    return job(**{**said, "checkpoint_reentrant": reentrant, **flags})


def kept_bytes(asked: Job) -> int:
    """Bytes of activations that layers keep between forward and backward."""
    return sum(n_bytes * count for n_bytes, count in alive(asked, "loss").items())


def held(**flags: object) -> int:
    """What checkpointing without reentry keeps on top of that with it."""
    plain, reentrant = (kept_bytes(qlora(reentrant=each, **flags)) for each in (False, True))
    return plain - reentrant


def test_reentrant_checkpointing_keeps_the_input_of_each_layer() -> None:
    """Two bytes a feature; the last layer's output is there,
    and the first one's input is the embeddings' own.
    """
    assert alive(qlora(reentrant=True), "loss")[TOKENS * 2 * HIDDEN] == LAYERS


def test_non_reentrant_checkpointing_keeps_the_inputs_of_4_bit_matrices() -> None:
    """Two norm outputs, the attention output and the MLP product stay in every layer, 2 bytes each,
    as in bitsandbytes 0.41.
    """
    assert held() == LAYERS * TOKENS * 2 * (3 * HIDDEN + FEED_FORWARD)


def test_inputs_of_another_dtype_are_held_once_per_matrix() -> None:
    """After k-bit preparation inputs are fp32 and each matrix holds its own 16-bit cast:
    seven instead of four inputs.
    """
    assert held(switches="kbit_upcast=all", attention="eager") == LAYERS * TOKENS * 2 * (
        6 * HIDDEN + FEED_FORWARD
    )


@pytest.mark.parametrize("upcast", ["none", "all"])
def test_newer_bitsandbytes_holds_nothing(upcast: str) -> None:
    """From bitsandbytes 0.45 on both kinds of checkpointing keep the same."""
    assert held(stack="hf-trainer@5", switches=f"kbit_upcast={upcast}") == 0


def test_a_list_without_the_attention_kernel_keeps_less() -> None:
    """Outputs of attention, two bytes a feature, and one fp32 sum for each of 32 heads and token."""

    def kept(listed: str) -> int:
        said = {"method": "full", "gpu": "h100-sxm", "stack": "torchtitan", "attention": "sdpa"}
        chosen = {"checkpoint_policy": "selective-op", "switches": f"selective_keeps_attention={listed}"}
        return kept_bytes(job(model="llama-2-7b", gradient_checkpointing=True, **said, **chosen))

    assert kept("true") - kept("false") == LAYERS * TOKENS * (2 * HIDDEN + 4 * 32)


def test_what_compiled_attention_saves_is_kept_with_its_output() -> None:
    """Turned query and key of each layer in torchtitan, where FlexAttention alone is compiled; the value is
    the third product, which is kept anyway.
    """

    def kept(stack: str, flex: str) -> int:
        said = {"method": "full", "gpu": "h100-sxm", "stack": stack, "attention": "flex"}
        chosen = {"checkpoint_policy": "selective-op", "switches": f"selective_flex={flex}"}
        return kept_bytes(job(model="llama-2-7b", gradient_checkpointing=True, **said, **chosen))

    assert kept("torchtitan", "saved") - kept("torchtitan", "output") == LAYERS * TOKENS * 2 * 2 * HIDDEN


def selected(model: str, stack: str) -> int:
    """Bytes that a selective checkpoint of full training keeps."""
    said = {"method": "full", "gpu": "h100-sxm", "stack": stack, "attention": "sdpa"}
    chosen = {"gradient_checkpointing": True, "checkpoint_policy": "selective-op"}
    return kept_bytes(job(model=model, **said, **chosen))


def test_a_compiled_layer_keeps_no_product_that_its_backward_does_not_need() -> None:
    """The last product of a layer, which the residual sum alone reads: of a Llama with one key head for four
    aot_eager_decomp_partition saves 6.78 tensors as wide as the layer, and without a compiler it is one more.
    """
    kept = [selected("llama-2-7b", stack) for stack in ("torchtitan@2025", "torchtitan-compile")]
    assert kept[0] - kept[1] == LAYERS * TOKENS * 2 * HIDDEN


def test_a_norm_behind_the_last_product_keeps_it() -> None:
    """Where a layer ends with a norm, its backward reads what that product returns."""
    assert selected("olmo-2-7b", "torchtitan@2025") == selected("olmo-2-7b", "torchtitan-compile")


@pytest.mark.parametrize("reentrant", [False, True])
def test_copies_of_the_second_run_end_with_it(reentrant: bool) -> None:
    """Autocast's copies of trained weights last as long as its region, and each run has one of its own:
    two copies of a matrix in a micro-step, neither of which meets the optimizer.
    """
    said = {"method": "full", "load_dtype": "fp32", "precision": "bf16-mixed"}
    stream = step_of(job(**said, gradient_checkpointing=True, checkpoint_reentrant=reentrant))
    phases = [name for _, name in stream.phases]
    begin, end = (stream.phases[phases.index(name)][0] for name in ("forward", "optimizer_step"))
    events = stream.events[begin:end]
    copies = {
        slot
        for slot in events
        if slot >= 0
        and stream.place(slot) == ("layer 5", "q_proj", "to")
        and stream.unit_bytes[slot] == 2 * HIDDEN * HIDDEN
    }
    assert len(copies) == 2
    assert copies == {~event for event in events if ~event in copies}


def test_probabilities_that_a_layer_returns_get_zeros_for_a_gradient() -> None:
    """Reentrant checkpoints of BLOOM: as many zeros as pairs of tokens for each of 16 heads, made before the
    layer runs again.  Llama returns no probabilities.
    """

    def zeros(model: str, *, reentrant: bool) -> list[float]:
        said = {"model": model, "method": "full", "attention": "eager", "gradient_checkpointing": True}
        stream = step_of(job(**said, checkpoint_reentrant=reentrant))
        places = ((slot, *stream.place(slot)) for slot in stream.events if slot >= 0)
        return [stream.unit_bytes[slot] for slot, part, _, op in places if (part, op) == ("layer 1", "zeros")]

    assert set(zeros("bloom-560m", reentrant=True)) == {2 * 16}
    assert not zeros("bloom-560m", reentrant=False)
    assert not zeros("llama-2-7b", reentrant=True)
