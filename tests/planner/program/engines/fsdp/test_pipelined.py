"""FSDP2 under a pipeline, counted by hand for Llama 3.1 8B over two groups of four cards."""

from __future__ import annotations

from collections import Counter

from planner.anatomy.pipeline_stages import stages_of
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import Job, job_of
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.step import step_of
from tests.jobs import resolved, typed

WIDTH, INNER, WORDS, LAYERS, CARDS = 4_096, 14_336, 128_256, 16, 4
LAYER = WIDTH * (2 * WIDTH + 2 * 1_024) + 3 * WIDTH * INNER + 2 * WIDTH
TABLE, TAIL = WORDS * WIDTH, WORDS * WIDTH + WIDTH
TOKENS, MICROBATCHES = 512, 6


def group(rank: int, **flags: object) -> Job:
    """One group, with six micro-batches of 512 tokens."""
    given = typed(
        f"--model llama-3.1-8b --method full --gpu h100-sxm:8 --seq {TOKENS} --pipeline-parallel 2 "
        f"--grad-accum {MICROBATCHES}"
    )
    return job_of(stages_of(resolved(given | flags))[rank], Coefficients())


def allocated(subject: Job, phases: tuple[str, ...]) -> Counter[tuple[str, int]]:
    """What the engine and the pipeline allocate in these phases: operator and bytes, how often."""
    stream, values = step_of(subject), unit_values(subject)
    begins, phase, found = dict(stream.phases), "", Counter[tuple[str, int]]()
    for index, event in enumerate(stream.events):
        phase = begins.get(index, phase)
        part, _, op = stream.place(event) if event >= 0 else ("", "", "")
        if part in ("fsdp", "pipeline") and phase in phases:
            found[op, round(float(stream.unit_bytes[event] * values[Unit(stream.units[event])]))] += 1
    return found


LATER = ("forward_2", "loss_2", "backward_2")


def test_weights_are_gathered_once_for_all_micro_batches() -> None:
    """Each layer and the table of the first group, in 16 bits; the last one has norm and head instead."""
    first, last = (allocated(group(rank), LATER) for rank in (0, 1))
    assert first["all_gather_output", 2 * LAYER] == last["all_gather_output", 2 * LAYER] == LAYERS
    for found, own, other in ((first, TABLE, TAIL), (last, TAIL, TABLE)):
        assert found["all_gather_output", 2 * own] == 1
        assert found["all_gather_output", 2 * other] == 0


def test_gradients_are_summed_whole_in_fp32_and_reduced_once() -> None:
    """Four bytes of each parameter of the group, as torchtitan reduces in fp32."""
    found = allocated(group(0), LATER)
    sums = sum(n_bytes * count for (op, n_bytes), count in found.items() if op == "accumulated gradient")
    assert sums == 4 * (LAYERS * LAYER + TABLE)
    assert found["reduce_scatter_input", 4 * LAYER] == LAYERS
    assert found["reduce_scatter_output", 4 * LAYER // CARDS] == LAYERS


def test_gradients_that_are_reduced_in_16_bits_are_summed_where_they_were_made() -> None:
    """No second tensor of them."""
    found = allocated(group(0, switches="fsdp_reduces_fp32=false"), LATER)
    assert not [op for op, _ in found if op == "accumulated gradient"]
    assert found["reduce_scatter_input", 2 * LAYER] == LAYERS


def test_states_and_gradients_are_shards_when_the_optimizer_steps() -> None:
    """Nothing whole is left of a round."""
    stream = step_of(group(1))
    end = max(begin for begin, phase in stream.phases if phase == "optimizer_step")
    alive = Counter(stream.events[:end])
    ops = Counter(
        stream.place(slot)[2]
        for slot in alive
        if slot >= 0 and not alive[~slot] and stream.place(slot)[0] == "fsdp"
    )
    assert ops == {"reduce_scatter_output": LAYERS + 1}
