"""States and temporaries of the optimizer's step over parameters that are given by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any, cast

import pytest

from planner.domain.recipes.optimizers import OPTIMIZER_FACTS, Optimizer, OptimizerFacts
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.replayed import replayed
from planner.program.job import Job, job_of
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Dtype, Unit
from planner.program.parameters import Shape, Weight
from planner.program.request_stream import RequestStream
from planner.program.update.optimizer import optimizer_step
from planner.program.update.states import states_of


def job(optimizer: Optimizer, foreach_step_copies: int = 1, **more: str) -> Job:
    """Adapters of rank 8 under ``optimizer``."""
    flags = {
        "model": "llama-2-7b",
        "method": "lora",
        "gpu": "a100-80gb",
        "seq": 512,
        "batch": 1,
        "lora_rank": 8,
    }
    scenario = resolve(from_flags({**flags, "optimizer": optimizer, **more}))
    stack = replace(scenario.stack, foreach_step_copies=foreach_step_copies)
    return job_of(replace(scenario, stack=stack), Coefficients())


def matrix(rows: int, columns: int, dtype: Dtype = "fp32") -> Weight:
    """A trained matrix."""
    return Weight(f"{rows}x{columns}", "matrix", ((Unit.ONE, rows), (Unit.ONE, columns)), dtype, trained=True)


def stepped(subject: Job, weights: list[Weight], *, first: bool = True) -> list[int]:
    """Bytes of each request, negative where they are freed."""
    stream, values = RequestStream(), unit_values(subject)
    optimizer_step(stream, subject, weights, first=first)
    sizes = [round(float(n * values[unit])) for n, unit in zip(stream.unit_bytes, stream.units, strict=True)]
    return [sizes[event] if event >= 0 else -sizes[~event] for event in stream.events]


BIG, SMALL = matrix(1_000, 200), matrix(10, 20)


def test_foreach_adamw_takes_the_roots_of_all_parameters_at_once() -> None:
    """Two states each, then all roots, which go together; a later step makes no states."""
    states = [800_000, 800_000, 800, 800]
    assert stepped(job("adamw_torch"), [BIG, SMALL])[:6] == [*states, 800_000, 800]
    assert sorted(stepped(job("adamw_torch"), [BIG, SMALL], first=False)) == [-800_000, -800, 800, 800_000]


def test_before_torch_2_1_the_sums_lie_beside_the_roots() -> None:
    """Four temporaries are there at once."""
    requests = stepped(job("adamw_torch", foreach_step_copies=2), [BIG, SMALL], first=False)
    assert requests[:4] == [800_000, 800, 800_000, 800]
    assert sum(requests) == 0


def test_without_foreach_each_parameter_has_its_own_divisor() -> None:
    """The root and what it is divided into, beside the divisor of the parameter before."""
    requests = stepped(job("adamw_torch", foreach_step_copies=0), [BIG, SMALL], first=False)
    assert requests == [800_000, 800_000, -800_000, 800, 800, -800_000, -800, -800]


def test_foreach_takes_the_dtype_that_appears_last_first() -> None:
    """Adapters of fp32 before a saved table of bf16, whose roots are made while theirs are still there."""
    requests = stepped(job("adamw_torch"), [matrix(10, 10, "bf16"), SMALL], first=False)
    assert requests == [800, 200, -800, -200]


def test_parameters_without_weight_decay_are_stepped_behind_the_others() -> None:
    """A norm that lies between two matrices has its states after theirs."""
    norm = Weight("norm", "norm", ((Unit.ONE, 100),), "fp32", trained=True)
    assert stepped(job("adamw_torch_fused"), [BIG, norm, SMALL]) == [800_000, 800_000, 800, 800, 400, 400]


def test_states_of_torch_follow_the_parameter_and_those_of_bitsandbytes_are_fp32() -> None:
    """bf16: two states of 2 bytes under torch, one of 4 bytes under lion, none under SGD."""
    weights = [matrix(10, 20, "bf16")]
    assert stepped(job("adamw_torch_fused"), weights) == [400, 400]
    assert stepped(job("lion"), weights) == [800]
    assert stepped(job("sgd"), weights) == []


@pytest.mark.parametrize(
    ("optimizer", "n_lists"), [("adamc", 1), ("schedule_free_adamw", 1), ("adopt_adamw", 2), ("rmsprop", 1)]
)
def test_packages_step_lists_of_tensors_as_torch_does(optimizer: Optimizer, n_lists: int) -> None:
    """Roots of all parameters at once; ADOPT divides the gradients by them into another list.

    The dry run of Axolotl 0.19 with its own code (Qwen2.5 0.5B, 256 tokens) has the same allocated peak.
    """
    requests = stepped(job(optimizer), [BIG, SMALL], first=False)
    assert [each for each in requests if each > 0] == [800_000, 800] * n_lists
    assert most(requests) == n_lists * 800_800


def test_lion_and_ademamix_of_bitsandbytes_keep_as_many_states_as_their_classes() -> None:
    """One, or three of which two are one tensor; a byte for each element, and an fp32 scale for 256."""
    assert stepped(job("lion_8bit"), [BIG, SMALL]) == [200_000, 3_125, 800]
    assert stepped(job("ademamix_8bit"), [BIG]) == [400_000, 200_000, 6_250, 3_125]
    assert stepped(job("ademamix"), [SMALL]) == [1_600, 800]


def test_adamw_of_transformers_keeps_a_root_until_the_next_is_there() -> None:
    """One parameter after the other: two states each, then the root of the second moment."""
    requests = stepped(job("adamw_hf", stack="hf-trainer@4"), [BIG, SMALL])
    assert requests == [800_000, 800_000, 800_000, 800, 800, 800, -800_000, -800]


def test_an_optimizer_whose_states_nobody_wrote_down_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new name with facts alone gives a sentence that says where to go on, not the states of another."""
    new: Any = "unheard_of"
    known = cast("dict[Any, OptimizerFacts]", OPTIMIZER_FACTS)
    monkeypatch.setitem(known, new, OptimizerFacts("tool", (), "unread", 0))
    subject = job("sgd")
    recipe = replace(subject.recipe, optimizer=new)
    subject = replace(subject, scenario=replace(subject.scenario, recipe=recipe))
    with pytest.raises(NotModelledError, match=r"unheard_of: its states are not written down"):
        stepped(subject, [SMALL])


def test_8bit_states_need_4096_elements() -> None:
    """A byte for each element and an fp32 scale for 256 of them; smaller tensors have fp32 states,
    and so have tables where the Trainer of Transformers since 4.52 asks for them.
    """
    assert stepped(job("adamw_8bit"), [BIG, SMALL]) == [200_000, 200_000, 3_125, 3_125, 800, 800]
    table = replace(BIG, kind="table")
    assert stepped(job("adamw_8bit"), [table]) == [800_000, 800_000]
    for older in ({"stack": "torchtune"}, {"stack": "hf-trainer@4", "versions": "transformers==4.51.3"}):
        assert stepped(job("adamw_8bit", **older), [table]) == [200_000, 200_000, 3_125, 3_125]
    divided = job("adamw_8bit", sharding="zero2", gpus="2")
    assert stepped(divided, [table]) == [200_000, 200_000, 3_125, 3_125], "DeepSpeed has copies of its own"


IN_BLOCKS = matrix(256, 100, "bf16")


@pytest.mark.parametrize(
    ("optimizer", "code_bytes", "buffers"), [("adamw_torch_8bit", 1, 8), ("adamw_torch_4bit", 0.5, 24)]
)
def test_torchao_keeps_codes_of_whole_blocks(optimizer: Optimizer, code_bytes: float, buffers: int) -> None:
    """Two states of codes and scales; buffers of the compiled step: two moments in fp32 with scales,
    in 4 bits codes as int64.
    """
    codes, scales = round(25_600 * code_bytes), 400
    requests = stepped(job(optimizer), [IN_BLOCKS])
    assert requests[:4] == [codes, scales, codes, scales]
    assert most(requests) == 2 * (codes + scales) + 2 * scales + buffers * 25_600
    assert stepped(job(optimizer), [matrix(100, 100, "bf16")]) == [20_000, 20_000], (
        "not in whole blocks of 256"
    )


PAGED: list[tuple[Optimizer, int, int]] = [
    ("paged_adamw_32bit", 1_600, 1_600_000),
    ("paged_adamw_8bit", 7_850, 400_000),
]


@pytest.mark.parametrize(("optimizer", "ours", "drivers"), PAGED)
def test_large_paged_states_are_the_drivers(optimizer: Optimizer, ours: int, drivers: int) -> None:
    """The small matrix and the scales stay with the allocator."""
    subject = job(optimizer)
    assert sum(stepped(subject, [BIG, SMALL])) == ours
    states = (state for weight in (BIG, SMALL) for state in states_of(subject, weight))
    assert sum(state.unit_bytes for state in states if state.paged) == drivers


def test_adafactor_keeps_the_update_before_until_the_next_squares_are_there() -> None:
    """Sums of 10 rows and 20 columns; squares and their sum; means, factors and the update; its negative."""
    sums, squares = [40, 80], [800, 800, -800]
    one = [*sums, *squares, 40, -40, 80, -80, 40, 80, 800, -80, -40, -800, 800, -800]
    assert stepped(job("adafactor"), [SMALL]) == [*one, -800]
    two = stepped(job("adafactor"), [SMALL, SMALL])[len(one) :]
    assert two[:6] == [*sums, *squares, -800], (
        "the update of the first goes when the squares of the second are there"
    )


def test_adafactor_works_on_fp32_copies_of_16_bit_gradients_and_weights() -> None:
    """Gradient and weight in fp32, then squares and their sum:
    four times 4 bytes for each element at once.
    """
    requests = stepped(job("adafactor"), [matrix(10, 20, "bf16")])
    assert requests[:6] == [800, 40, 80, 800, 800, 800]
    assert sum(requests) == 120


def test_a_state_of_an_adapter_is_counted_in_ranks() -> None:
    """``A`` of (rank, 100): under Adafactor a sum for each rank, and one for each of 100 inputs."""
    shape: Shape = ((Unit.RANK, 1), (Unit.ONE, 100))
    adapter = Weight("A", "matrix", shape, "fp32", trained=True)
    assert stepped(job("adamw_torch_fused"), [adapter]) == [8 * 400, 8 * 400]
    assert stepped(job("adafactor"), [adapter])[:2] == [8 * 4, 400]


def full(optimizer: Optimizer, stack: str = "hf-trainer") -> Job:
    """A full fine-tune under ``optimizer``."""
    flags = {
        "model": "llama-2-7b",
        "method": "full",
        "gpu": "a100-80gb",
        "seq": 512,
        "batch": 1,
        "optimizer": optimizer,
        "stack": stack,
    }
    return job_of(resolve(from_flags(flags)), Coefficients())


def most(requests: list[int]) -> int:
    """The most bytes that are there at once."""
    return max(accumulate(requests))


def test_adam_mini_keeps_one_moment_and_a_number_for_each_row() -> None:
    """The update of the parameter before lives until this one's: two beside each other,
    or an update and its negative.
    """
    first = stepped(full("adam_mini"), [BIG, SMALL])
    assert first[:2] == [800_000, 4_000]
    assert sum(first) == 800_000 + 4_000 + 800 + 40
    later = stepped(full("adam_mini"), [BIG, BIG], first=False)
    assert (sum(later), most(later)) == (0, 2 * 800_000)


def test_muon_keeps_one_moment_of_matrices_and_two_of_the_rest() -> None:
    """The head is stepped by Adam, after all matrices."""
    head = replace(BIG, name="head")
    states = [800, 800_000, 800_000]
    requests = stepped(full("muon", "llama-factory"), [head, SMALL])
    assert [each for each in requests if each > 0][:1] == states[:1]
    assert sum(requests) == sum(states)


def test_the_most_that_muon_holds_is_worked_out_from_its_source() -> None:
    """Of an fp32 matrix of 1,000 x 200 in bf16: the gradient with momentum, ``x``,
    two terms and their sum, two squares.

    Source: llamafactory 0.9.5 third_party/muon/muon.py: ``a * X + B @ X`` beside ``A`` and ``B`` of 200 x
    200; for the second matrix the update of the first is there, too.
    """
    whole, square = 2 * 200_000, 2 * 200 * 200
    one = stepped(full("muon", "llama-factory"), [BIG], first=False)
    assert most(one) == 800_000 + 4 * whole + 2 * square
    two = stepped(full("muon", "llama-factory"), [BIG, BIG], first=False)
    assert most(two) == 800_000 + 5 * whole + 2 * square
    assert sum(two) == 0


@pytest.mark.parametrize(
    ("model", "flags", "allocated"),
    [
        ("llama-3.2-1b", {"method": "full", "seq": 1024, "batch": 2}, 14_038_601_728),
        ("qwen2.5-0.5b", {"method": "full", "seq": 512, "batch": 8}, 12_463_864_832),
        ("qwen2.5-1.5b", {"method": "full", "seq": 2048, "batch": 1}, 16_191_332_352),
        (
            "llama-3.2-1b",
            {"method": "lora", "seq": 1024, "batch": 2, "lora_rank": 64, "lora_targets": ("linear-modules",)},
            6_324_609_024,
        ),
    ],
)
def test_muon_of_axolotl(model: str, flags: dict[str, Any], allocated: int) -> None:
    """The dry run of Axolotl 0.19.0 on an A100 with ``optimizer: muon``, without ``torch.compile``."""
    common = {"stack": "axolotl", "optimizer": "muon", "gpu": "a100-80-sxm", "grad_accum": 2}
    batch = {"padding": "max_length", "attention": "sdpa"}
    also = ("widens_ends=true",) if flags["method"] == "full" else ()
    switches = {"switches": ("adapter_kernels=eager", *also), "gradient_checkpointing": True}
    job = job_of(
        resolve(from_flags({**common, **batch, **switches, "model": model, **flags})), Coefficients()
    )
    found = max(int(each.allocated_bytes) for each in replayed(job).phases)
    assert found == pytest.approx(allocated, rel=0.002)


def test_muon_of_axolotl_under_fsdp2() -> None:
    """The dry run of Axolotl 0.19.0 with examples/qwen2/muon-pretrain-fsdp2.yaml for eight H100: 25.08 GiB at
    the loss.
    """
    flags = {"model": "qwen2.5-0.5b", "method": "full", "gpu": "h100-sxm:8", "seq": 2048, "batch": 4}
    flags |= {"optimizer": "muon", "stack": "axolotl", "sharding": "fsdp", "padding": "packed"}
    flags |= {"gradient_checkpointing": False, "attention": "flash2"}
    phases = replayed(job_of(resolve(from_flags(flags)), Coefficients())).phases
    found = max(int(each.allocated_bytes) for each in phases)
    assert found / 2**30 == pytest.approx(25.08, rel=0.005)


def test_muon_gathers_matrices_that_fsdp2_divides() -> None:
    """Three matrices on eight GPUs: what the last iteration of the third holds,
    worked out from a run with counted bytes.

    Run on a CPU with torch's fake process group of eight: LLaMA-Factory ff6d4d12e muon_optimizer.py over
    1,024 x 512, 512 x 1,024 and 1,024 x 512 in fp32: 2 MiB gathered, 4 of 1 MiB in bf16 and two squares of
    512 in the first, and the update and its part of the one before in the others.  Beside them lies the
    part's own gradient with momentum.
    """
    flags = {"model": "qwen3-0.6b", "method": "full", "gpu": "h100-sxm:8", "seq": 512, "optimizer": "muon"}
    subject = job_of(
        resolve(from_flags({**flags, "stack": "llama-factory-v1", "sharding": "fsdp"})), Coefficients()
    )
    parts = [matrix(128, 512), matrix(64, 1_024), matrix(128, 512)]
    counted, part = 7_340_032, 128 * 512
    assert most(stepped(subject, parts[:1], first=False)) == counted + 4 * part
    requests = stepped(subject, parts, first=False)
    assert (sum(requests), most(requests)) == (0, counted + 4 * part + 2 * 8 * part + 2 * part)
    first = stepped(subject, [*parts, SMALL])
    assert sum(first) == 3 * 4 * part + 800
