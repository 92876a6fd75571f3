"""LoRA beside a matrix of 64 features in and 128 out: what each kind of base and of kernels makes of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.matrices import linear
from tests.planner.program.matrix_runs import SPEC, Run, view_of


def test_peft_casts_the_input_of_a_plain_matrix_to_the_adapter_and_autocast_casts_it_back() -> None:
    """bf16 base, fp32 adapter, dropout: mask and cast are saved; the fp32 input and what dropout made go."""
    view = view_of("lora", dropout=0.1, base="bf16", adapter="fp32")

    run = Run(lambda torch, x: linear(torch, view, SPEC, x), "bf16")

    assert run.made("forward") == [
        ("mm", "TOKENS", 128 * 2),
        ("to", "TOKENS", 64 * 4),
        ("dropout", "TOKENS", 64 * 4),
        ("dropout", "TOKENS", 64),
        ("to", "RANK", 64 * 2),
        ("to", "TOKENS", 64 * 2),
        ("mm", "RANK_TOKENS", 2),
        ("to", "RANK", 128 * 2),
        ("mm", "TOKENS", 128 * 2),
        ("mul", "TOKENS", 128 * 2),
        ("add", "TOKENS", 128 * 2),
    ]
    assert run.kept == Counter(
        {
            ("dropout", "TOKENS", 64): 1,
            ("to", "RANK", 64 * 2): 1,
            ("to", "TOKENS", 64 * 2): 1,
            ("mm", "RANK_TOKENS", 2): 1,
            ("to", "RANK", 128 * 2): 1,
        }
    )


def _linear(view: LayerView, torch: Operators, x: Tensor) -> Tensor:
    return linear(torch, view, SPEC, x)


def test_the_result_of_a_4bit_matrix_is_copied_and_that_of_an_int8_one_is_not() -> None:
    """The copy is there before the branch; the sum of an fp32 result and a bf16 branch is fp32."""
    views = {method: view_of(method) for method in ("qlora", "int8")}

    runs = {name: Run(partial(_linear, view), "fp32") for name, view in views.items()}

    assert ("clone", "TOKENS", 128 * 4) in runs["qlora"].made("forward")
    assert not any(op == "clone" for op, _, _ in runs["int8"].made("forward"))
    assert (runs["qlora"].out, runs["int8"].out) == ("fp32", "bf16")


def test_without_autocast_the_branch_of_a_4bit_matrix_takes_the_dtype_of_its_result() -> None:
    """An fp32 adapter beside a bf16 stream: the scaled branch is cast, the sum is bf16."""
    view = view_of("qlora", autocast=False)

    run = Run(lambda torch, x: linear(torch, view, SPEC, x), "bf16")

    last = [
        ("mm", "TOKENS", 128 * 4),
        ("mul", "TOKENS", 128 * 4),
        ("to", "TOKENS", 128 * 2),
        ("add", "TOKENS", 128 * 2),
    ]
    assert run.made("forward")[-4:] == last


def test_gradients_of_adapters_come_in_the_compute_dtype_and_are_widened() -> None:
    """``B`` has its gradient first; both have fp32 ones in the end, whatever autocast computed them in."""
    view = view_of("lora", base="bf16", adapter="fp32")

    run = Run(lambda torch, x: linear(torch, view, SPEC, x), "bf16")

    of_rank = [(op, size) for op, unit, size in run.made("backward") if unit == Unit.RANK.name]
    assert of_rank == [("mm", 128 * 2), ("to", 128 * 4), ("mm", 64 * 2), ("to", 64 * 4)]


def test_a_fused_adapter_adds_in_place_and_saves_the_input_alone() -> None:
    """bf16 throughout: the output, the rank-wide product;
    in backward no copy of the input's gradient is added.
    """
    view = view_of("lora", adapter_kernels="fused", base="bf16", adapter="bf16")

    run = Run(lambda torch, x: linear(torch, view, SPEC, x), "bf16")

    assert run.made("forward") == [("mm", "TOKENS", 128 * 2), ("mm", "RANK_TOKENS", 2)]
    assert not run.kept
    assert [size for _, unit, size in run.made("backward") if unit == "TOKENS"] == [64 * 2]


def test_an_older_fused_adapter_makes_its_product_apart() -> None:
    """As wide as what it is added to, in both passes; saved is no more than where it is added in place."""
    view = view_of("lora", adapter_kernels="fused_apart", base="bf16", adapter="bf16")

    run = Run(lambda torch, x: linear(torch, view, SPEC, x), "bf16")

    assert run.made("forward") == [
        ("mm", "TOKENS", 128 * 2),
        ("mm", "RANK_TOKENS", 2),
        ("mm", "TOKENS", 128 * 2),
    ]
    assert not run.kept
    assert [size for _, unit, size in run.made("backward") if unit == "TOKENS"] == [64 * 2, 64 * 2]


def test_a_compiled_adapter_scales_and_adds_in_one_kernel() -> None:
    """No scaled branch of its own in forward; one scaled gradient in backward."""
    view = view_of("lora", adapter_kernels="compiled", base="bf16", adapter="bf16")

    run = Run(lambda torch, x: linear(torch, view, SPEC, x), "bf16")

    of_tokens = [op for op, unit, _ in run.made("forward") if unit == "TOKENS"]
    assert of_tokens == ["mm", "mm", "add"]
    assert [op for op, unit, _ in run.made("backward") if unit == "TOKENS"].count("mul") == 1


def test_under_fsdp1_the_input_of_an_adapter_is_widened_and_narrowed_again() -> None:
    """PEFT reads the dtype of a shard; the unit of ``A`` casts what it is given. The last matrix of a layer
    that runs again sees what was gathered, but not by a reentrant checkpoint, and so does one that is packed.

    LoRA of Qwen2.5 0.5B: a forward pass took 0.69 GiB without, 0.73 in TRL's own run.
    """
    view = view_of("lora", dropout=0.1, base="bf16", adapter="bf16", autocast=False)
    block = replace(view.block, linears=(SPEC,))
    view = replace(view, block=block, dtypes=replace(view.dtypes, wide_adapter_input=True))

    def branch(direction: str, *, reentrant: bool = False) -> list[tuple[str, int]]:
        seen = replace(view, recipe=replace(view.recipe, checkpoint_reentrant=reentrant))

        def run_in(torch: Operators, x: Tensor) -> Tensor:
            torch.direction = direction
            return linear(torch, seen, SPEC, x)

        made = Run(run_in, "bf16").made("forward")
        return [(op, size) for op, _, size in made if op in ("to", "dropout")]

    wide = [("to", 64 * 4), ("dropout", 64 * 4), ("dropout", 64), ("to", 64 * 2)]
    assert branch("forward") == branch("again", reentrant=True) == wide
    assert branch("again") == [("dropout", 64 * 2), ("dropout", 64)]
