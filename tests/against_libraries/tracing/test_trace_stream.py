"""On fake tensors the modules run the same program as on the CPU: same operators, same bytes,
in the same order.
"""

from __future__ import annotations

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from live_bytes import counting
from scenarios import Setup
from tiny_traces import CONFIGS, built, fake_trace, peaks, real_trace, small_scenario

from measure.trace.build import materialize
from measure.trace.record import Trace
from measure.trace.tracer import Recorder
from measure.trace.trainer_step import run_step
from planner.domain.recipes.optimizers import Optimizer
from planner.domain.recipes.recipe import Numerics

LORA = Setup(rank=4, checkpointing=True, dropout=0.1, mixed=True, attention="eager", optimizer="adamw_torch")
FULL = Setup()


# A frozen base that is not in the dtype of the products: autocast makes a copy of each matrix,
# and backward keeps it.
WIDE = Setup(rank=4, numerics=Numerics("fp32", "bf16-mixed"))


def operators_of(trace: Trace) -> list[str]:
    """The operators of ``trace`` with their shapes, in order."""
    # Real tensors answer the question whether a mask is needed by reading a value, fake ones are told.
    return [name for name in trace.operators if not name.startswith("aten._local_scalar_dense")]


def assert_same_program(fake: Trace, real: Trace) -> None:
    """Operators with their shapes, allocations in order and peaks of both runs are the same."""
    assert len(real.operators) > 400, "the step was not recorded"
    assert operators_of(fake) == operators_of(real)
    assert bytes_in_order(fake) == bytes_in_order(real)
    assert peaks(fake) == peaks(real)


def bytes_in_order(trace: Trace) -> list[tuple[bool, int]]:
    """Allocations in order."""
    return [(record.alloc, record.block.n_bytes) for record in trace.records if record.alloc]


@pytest.mark.every(6)
@pytest.mark.parametrize("setup", [FULL, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_fake_tensors_run_the_program_of_the_cpu(name: str, setup: Setup) -> None:
    """Without the shims for CUDA, operators with their shapes,
    allocations and peaks are those of a real CPU run, exactly.
    """
    case = small_scenario(name, setup)
    assert_same_program(fake_trace(name, case), real_trace(name, case))


@pytest.mark.every(6)
@pytest.mark.parametrize("rank", [0, 4], ids=["full", "lora"])
@pytest.mark.parametrize(
    "optimizer", ["adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "lion", "sgd", "adafactor"]
)
def test_optimizers_run_the_program_of_the_cpu(optimizer: Optimizer, rank: int) -> None:
    """Every optimizer of the Trainer steps on fake tensors as on real ones: same operators,
    states and temporaries.
    """
    import_or_skip("bitsandbytes")
    case = small_scenario("llama", Setup(rank=rank, optimizer=optimizer))
    fake, real = fake_trace("llama", case), real_trace("llama", case)
    assert operators_of(fake) == operators_of(real)
    assert bytes_in_order(fake) == bytes_in_order(real)
    assert peaks(fake) == peaks(real)


def test_copies_of_a_frozen_base_in_another_dtype_are_kept_for_backward() -> None:
    """With fp32 weights under bf16 autocast,
    at the end of forward a real run holds a 16-bit copy of every frozen matrix.

    Those that read the first hidden states are the exception: nothing before them is trained.
    """
    case = small_scenario("llama", WIDE)
    fake, real = fake_trace("llama", case), real_trace("llama", case)
    assert peaks(fake) == peaks(real)
    matrices = 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 688 * 256) + 512 * 256
    first = (256 * 256 + 2 * 128 * 256) + 3 * 4 * 256
    for trace in (fake, real):
        end = max(
            i
            for i, record in enumerate(trace.records)
            if record.place.stage == "forward" and record.place.micro_step == 0
        )
        alive: dict[int, int] = {}
        for record in trace.records[: end + 1]:
            if record.block.role == "autocast_copies":
                alive[record.block.id] = record.block.n_bytes if record.alloc else 0
        adapters = sum(
            record.block.n_bytes
            for record in trace.records
            if record.alloc and record.place.stage == "adapters"
        )
        assert sum(alive.values()) == (matrices - first) * 2 + adapters // 2


@pytest.mark.parametrize(
    "setup",
    [Setup(rank=4, mixed=True), Setup(rank=4, checkpointing=True), Setup(checkpointing=True, reentrant=True)],
    ids=["lora", "checkpointed", "reentrant"],
)
def test_bytes_alive_are_those_of_an_independent_counter(setup: Setup) -> None:
    """The most bytes that a real step holds above its weights,
    by a counter that shares nothing with the tracer.
    """
    case = small_scenario("llama", setup)
    trace = fake_trace("llama", case)
    weights = sum(
        record.block.n_bytes for record in trace.records if record.place.stage in ("load", "adapters")
    )
    made = built("llama", case)
    materialize(made.model, Recorder())
    with counting() as live:
        run_step(made.model, case, Recorder())
    assert max(peaks(trace).values()) - weights == live.peak
