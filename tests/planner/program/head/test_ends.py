"""What lies around the layers: when it is freed, counted by hand."""

from __future__ import annotations

from functools import partial

from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.step import evaluation_of, step_of
from tests.jobs import job_by

SEQ, BATCH = 512, 4


job = partial(
    job_by,
    (
        f"--model llama-3.1-8b --gpu a100-80gb --seq {SEQ} --batch {BATCH} --stack hf-trainer@5 "
        "--attention sdpa"
    ),
)
"""A job of Llama 3.1 8B, unless told otherwise."""


def lives(asked: Job, module: str, op: str) -> list[tuple[int, str]]:
    """Bytes of what ``op`` of ``module`` outside of layers makes in the later micro-step,
    and the phase that frees it.
    """
    stream, values = step_of(asked), unit_values(asked)
    begins, phase, found = dict(stream.phases), "", dict[int, tuple[int, str]]()
    for index, event in enumerate(stream.events):
        phase = begins.get(index, phase)
        slot = event if event >= 0 else ~event
        part, *made_by = stream.place(slot)
        if part.startswith("layer") or made_by != [module, op]:
            continue
        if event >= 0 and phase.endswith("_2"):
            found[slot] = round(float(stream.unit_bytes[slot] * values[stream.units[slot]])), "never"
        elif slot in found:
            found[slot] = found[slot][0], phase
    return list(found.values())


def test_embeddings_live_until_the_model_returns() -> None:
    """The variable ``inputs_embeds`` of the inner model."""
    asked = job(method="full", precision="bf16", gradient_checkpointing=False)
    assert lives(asked, "embed_tokens", "embedding") == [(BATCH * SEQ * 4096 * 2, "loss_2")]


def test_a_frozen_table_under_checkpointing_lives_until_the_graph_goes() -> None:
    """The leaf that ``enable_input_require_grads`` makes."""
    asked = job(method="lora", gradient_checkpointing=True)
    assert lives(asked, "embed_tokens", "embedding") == [(BATCH * SEQ * 4096 * 2, "backward_2")]


def test_inputs_of_layers_on_their_way_to_the_host_have_two_buffers() -> None:
    """Unsloth keeps two of them beside the last layer's own input."""
    asked = job(method="lora", gradient_checkpointing=True, stack="unsloth")
    assert asked.recipe.offload == "activations"
    assert lives(asked, "", "staged") == [(BATCH * SEQ * 4096 * 2, "backward_2")] * 2


def test_an_added_mask_outlives_the_forward_as_an_argument_of_checkpointed_layers_only() -> None:
    """Adding it saves nothing."""
    eager = {"method": "lora", "attention": "eager"}
    mask = BATCH * SEQ * SEQ * 2
    assert lives(job(**eager, gradient_checkpointing=False), "", "where") == [(mask, "loss_2")]
    assert lives(job(**eager, gradient_checkpointing=True), "", "where") == [(mask, "backward_2")]


def test_a_tied_table_has_two_gradients_and_their_sum() -> None:
    """The head's gradient is a view of a product, so the sum is a third tensor."""
    asked = job(model="qwen2-0.5b", method="full", precision="bf16", gradient_checkpointing=False)
    table = 151_936 * 896 * 2
    own = lives(asked, "embed_tokens", "embedding_dense_backward")
    total = lives(asked, "embed_tokens", "add")
    assert (own, total) == ([(table, "backward_2")], [(table, "optimizer_step")])
    assert (table, "backward_2") in lives(asked, "lm_head", "mm")


def test_copies_of_table_and_head_that_are_trained_keep_a_gradient_each() -> None:
    """``modules_to_save`` unties them."""
    asked = job(method="lora", gradient_checkpointing=True, modules_to_save="embed_tokens,lm_head")
    assert len(lives(asked, "embed_tokens", "embedding_dense_backward")) == 1
    assert (128_256 * 4096 * 2, "optimizer_step") in lives(asked, "lm_head", "mm")


def test_logits_that_a_loop_refers_to_lie_beside_those_of_the_next_forward() -> None:
    """``outputs = model(**batch)``:
    the fp32 logits of one micro-step go when the model has returned in the next one.
    """
    asked = job(method="full", precision="bf16", stack="open-instruct@2024", attention="flash2")
    stream, values, phase = step_of(asked), unit_values(asked), ""
    begins, made, gone = dict(stream.phases), dict[int, str](), dict[int, str]()
    for index, event in enumerate(stream.events):
        phase = begins.get(index, phase)
        (made if event >= 0 else gone)[event if event >= 0 else ~event] = phase
    n_bytes = {slot: round(float(stream.unit_bytes[slot] * values[stream.units[slot]])) for slot in made}
    logits = BATCH * SEQ * 128_256 * 4
    wide = [slot for slot in made if stream.place(slot) == ("head", "", "to") and n_bytes[slot] == logits]
    assert [(made[slot], gone.get(slot)) for slot in wide[:2]] == [("loss", "loss_2"), ("loss_2", None)]


def test_an_evaluation_makes_nothing_backward() -> None:
    """Nothing needs a gradient, and nothing is recomputed."""
    for part in evaluation_of(job(method="lora", gradient_checkpointing=True)):
        assert part.template.gradient_slot is None
        assert not [event for event in part.template.stages["backward"] if event >= 0]


def test_accelerate_widens_what_unsloth_of_2024_returns() -> None:
    """The Trainer casts the logits to fp32 beside those that its kernel has saved; a loop without accelerate
    does not.
    """

    def casts(**said: object) -> set[float]:
        asked = job(method="qlora", stack="unsloth@2024-01", **said)
        stream, values = step_of(asked), unit_values(asked)
        made = {event for event in stream.events if event >= 0 and stream.place(event) == ("head", "", "to")}
        return {float(stream.unit_bytes[slot] * values[stream.units[slot]]) for slot in made}

    assert casts() == {4 * BATCH * SEQ * 128_256}
    assert not casts(switches="widens_outputs=false")
