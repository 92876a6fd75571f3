"""ZeRO stages 1 and 2: how a flat group is divided, what is sent together, and what a whole job allocates."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from planner.allocator.compiled import MOST_LAG
from planner.allocator.slots import replay_slots
from planner.memory.replayed import run_of, slot_events
from planner.program.engines.params import Param
from planner.program.engines.zero.partition import FlatGroup, merged, sent_together
from planner.program.ops.sizes import unit_values
from planner.program.request_stream import RequestStream
from planner.program.step import step_of
from tests.jobs import job_by, typed

# Parameters of Qwen2.5-0.5B, whose head is its token table; norms and biases among them.
TRAINED, VECTORS = 494_032_768, 24 * (896 + 128 + 128 + 2 * 896) + 896
FLAGS = typed(
    "--model qwen2.5-0.5b --method full --gpus 2 --gpu a100-80gb --stack hf-trainer@5 --batch 1 --seq 256"
)


job_of_flags = partial(job_by, FLAGS)
"""The job of these flags beside the usual ones."""


def stream_of(**flags: str) -> tuple[RequestStream, dict[int, int]]:
    """The stream of a job and the bytes of each of its slots."""
    job = job_of_flags(**flags)
    stream, values = step_of(job), unit_values(job)
    sizes = {
        slot: round(float(n * values[unit]))
        for slot, (unit, n) in enumerate(zip(stream.units, stream.unit_bytes, strict=True))
    }
    return stream, sizes


def allocated(stream: RequestStream, sizes: dict[int, int], op: str) -> list[int]:
    """Bytes of every allocation of one name, in order."""
    return [sizes[event] for event in stream.events if event >= 0 and stream.place(event)[2] == op]


def left(stream: RequestStream, sizes: dict[int, int], *, before: str = "") -> Counter[str | None]:
    """Bytes that are allocated at the end, or before a phase, by term;
    nothing is freed twice or before it is made.
    """
    alive: set[int] = set()
    for event in stream.events[: next((begin for begin, phase in stream.phases if phase == before), None)]:
        if event >= 0:
            assert event not in alive
            alive.add(event)
        else:
            alive.remove(~event)
    found: Counter[str | None] = Counter()
    for slot in alive:
        found[stream.term(slot)] += sizes[slot]
    return found


def param(number: int, elements: int) -> Param:
    """A trained 16-bit parameter."""
    return Param(number, elements, 2, trained=True, decays=True, place=("layer 0", ""), term="weights")


def test_flat_group_is_padded_and_its_parts_cut_parameters() -> None:
    """A part ends inside of a parameter."""
    first, second = param(0, 5), param(1, 2)
    group = FlatGroup([first, second], world=2)
    # 7 elements, padded to a multiple of 2 x 2; the first process has 4 of them.
    assert (group.padded, group.part) == (8, 4)
    assert list(group.slices(first)) == [(0, 4), (1, 1)]
    assert list(group.slices(second)) == [(1, 2)]
    assert group.own(0) == {first: 4}
    assert group.own(-1) == {first: 1, second: 2}


def test_pieces_of_one_process_are_sent_as_one_and_calls_end_above_the_limit() -> None:
    """A call is complete when it has more elements than the bucket."""
    assert merged([(1, 3), (1, 4), (0, 5), (1, 6)]) == [7, 5, 6]
    assert list(sent_together([7, 5, 6], limit=10)) == [[7, 5], [6]]
    assert list(sent_together([7, 3], limit=10)) == [[7, 3]]


def test_masters_and_states_are_a_part_and_weights_are_whole() -> None:
    """Two groups: what decays, then norms and biases."""
    stream, sizes = stream_of(sharding="zero2")
    assert sum(allocated(stream, sizes, "bit16_groups_flat")) == 2 * TRAINED
    assert allocated(stream, sizes, "single_partition_of_fp32_groups") == [
        2 * (TRAINED - VECTORS),
        2 * VECTORS,
    ]
    end = left(stream, sizes)
    assert end["master_weights"] == 4 * TRAINED / 2
    assert end["optimizer_states"] == 8 * TRAINED / 2
    assert end["gradients"] == end["gradient_buckets"] == 0


@pytest.mark.parametrize(("one", "n_groups"), [("false", 2), ("true", 1)])
def test_the_cache_is_emptied_before_each_group_is_flattened(one: str, n_groups: int) -> None:
    """What the weights lay in goes at the next group; DeepSpeed's own optimizer has no second one."""
    stream, _ = stream_of(sharding="zero2", switches=f"one_optimizer_group={one}")
    begins = [stream.phases[index][0] for index in stream.emptied]
    assert [stream.place(stream.events[begin])[2] for begin in begins] == ["bit16_groups_flat"] * n_groups


def test_one_group_leaves_what_weights_lay_in_to_the_first_pass() -> None:
    """So what 2 bytes of each weight lay in stays cached, and what the clone of its own half did."""
    reserved = []
    for one in ("false", "true"):
        run = run_of(job_of_flags(sharding="zero2", switches=f"one_optimizer_group={one}"))
        begin = next(index for index, (_, name) in enumerate(run.stream.phases) if name == "forward")
        reserved.append(run.done.phases[begin].reserved_bytes)
    assert reserved[1] - reserved[0] == pytest.approx((2 + 1) * TRAINED, rel=0.05)


def test_gradients_of_a_whole_step_are_copied_into_one_partition() -> None:
    """One buffer in each backward pass."""
    stream, sizes = stream_of(sharding="zero2")
    partitions = allocated(stream, sizes, "grads_in_partition")
    assert len(partitions) == 2
    # A gradient that both processes share counts whole: at most one matrix of 896 x 4864 more than half,
    # and one vector.
    assert TRAINED <= partitions[0] <= TRAINED + 2 * (896 * 4864 + 896)


def test_offload_keeps_one_staging_buffer_and_no_masters() -> None:
    """As large as the token table, the largest gradient."""
    stream, sizes = stream_of(sharding="zero2", offload="optimizer")
    assert allocated(stream, sizes, "temp_grad_buffer_for_gpu_offload") == [2 * 151_936 * 896]
    end = left(stream, sizes)
    assert end["master_weights"] == end["optimizer_states"] == 0
    assert end["gradient_buckets"] == 2 * 151_936 * 896


@pytest.mark.parametrize(("sharding", "n_partitions"), [("zero1", 2), ("zero2", 4)])
def test_stage_1_reduces_in_the_last_micro_step_alone(sharding: str, n_partitions: int) -> None:
    """One reduction before each of two updates; under stage 2 one in each micro-step."""
    stream, sizes = stream_of(sharding=sharding, grad_accum="4")
    assert len(allocated(stream, sizes, "grads_in_partition")) == n_partitions
    assert left(stream, sizes)["gradients"] == 0


def test_set_up_copies_the_part_and_steps_once_with_gradients_of_zero() -> None:
    """Two and four bytes of each own parameter come and go before the first pass; offloaded,
    the step is on the host.
    """
    halves = [(TRAINED - VECTORS) // 2, VECTORS // 2]
    stream, sizes = stream_of(sharding="zero2")
    assert allocated(stream, sizes, "partition.clone()") == [2 * n for n in halves]
    assert allocated(stream, sizes, "initialize_optimizer_states") == [4 * n for n in halves]
    stream, sizes = stream_of(sharding="zero2", offload="optimizer")
    assert allocated(stream, sizes, "initialize_optimizer_states") == []


def test_gradients_that_are_reduced_beside_backward_lie_in_the_stream_of_reductions() -> None:
    """Memory of another stream serves no other request."""
    stream, _ = stream_of(sharding="zero2")
    slots = [
        event for event in stream.events if event >= 0 and stream.place(event)[2] == "grads_in_partition"
    ]
    assert {stream.streams[slot] for slot in slots} == {2}


@pytest.mark.parametrize(
    ("flags", "on_card"),
    [({}, True), ({"versions": "deepspeed==0.18.9"}, False), ({"gpu_memory": "1GiB"}, False)],
)
def test_weights_are_flattened_on_a_card_that_holds_them_twice(flags: dict[str, str], on_card: bool) -> None:
    """From DeepSpeed 0.19.0 on single weights lie beside the flat buffer;
    else they go to the host before it comes.

    Two copies of Qwen2.5-0.5B have 1.84 GiB.
    """
    stream, sizes = stream_of(sharding="zero2", **flags)
    flat = stream.events.index(min(slot for slot in sizes if stream.place(slot)[2] == "bit16_groups_flat"))
    held = 0
    for event in stream.events[: flat + 1]:
        slot = event if event >= 0 else ~event
        if stream.term(slot) == "weights":
            held += sizes[slot] if event >= 0 else -sizes[slot]
    decaying = 2 * (TRAINED - VECTORS)
    assert held == (2 * TRAINED + decaying if on_card else 2 * TRAINED)


def test_one_gradient_needs_no_flat_copy() -> None:
    """Where a group has a single parameter, its gradient is flat as it is, and only the fp32 copy is made.

    Source: torch 2.13 ``_flatten_dense_tensors``, which gives a view of a single tensor.
    """
    for layers, elements in (("embed", 151_936 * 896), ("norm", 896)):
        stream, sizes = stream_of(sharding="zero2", train_layers=layers)
        assert allocated(stream, sizes, "flatten(averaged_gradients)") == []
        assert set(allocated(stream, sizes, "flat gradients in fp32")) == {4 * elements / 2}
    stream, sizes = stream_of(sharding="zero2", train_layers="0-1")
    assert allocated(stream, sizes, "flatten(averaged_gradients)")


@pytest.mark.parametrize(
    ("flags", "process"),
    [
        ({"sharding": "zero1"}, 0),
        ({"sharding": "zero2", "model": "tinyllama-1.1b", "gpus": "8", "batch": "8"}, -1),
    ],
)
def test_the_process_that_reserves_more_is_followed(flags: dict[str, str], process: int) -> None:
    """The first takes the norm of the token table in fp64; the last keeps gradients when most activations
    are still there.
    """
    job = job_of_flags(**flags)
    events = [slot_events(step_of(replace(job, process=each)), job) for each in (0, -1)]
    reserved = [replay_slots(each).reserved_bytes for each in events]
    assert reserved[process] == max(reserved) > min(reserved)
    assert run_of(job).done.reserved_bytes == max(reserved)


@pytest.mark.parametrize(
    ("flags", "late"),
    [({}, 2), ({"switches": "zero12_overlap=false"}, 0), ({"offload": "optimizer"}, 0)],
)
def test_a_gradient_that_another_stream_reduces_comes_back_late(flags: dict[str, str], late: int) -> None:
    """That of the table, which no bucket holds, in each of two steps.

    Trace of SmolLM2 135M, full, ZeRO-2, two cards, buckets of 200,000 elements: 2,080 MiB reserved, as here,
    and 10 MiB less where they come back at once.
    """
    buckets = "zero12_bucket_elements=100000000"
    more = {**flags, "switches": ",".join(filter(None, (flags.get("switches", ""), buckets)))}
    stream, sizes = stream_of(sharding="zero2", **more)
    found = [sizes[slot] for slot, lag in stream.lags.items() if lag == MOST_LAG]
    assert found == late * [2 * 151_936 * 896]
