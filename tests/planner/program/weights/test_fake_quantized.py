"""Products of an input and a weight that are rounded as if quantised, with 64 features in and 128 out.

Sizes and their order are those of torchao 0.14.1's own ``Int8DynActInt4WeightQATLinear`` with
torch 2.13, on the CPU.
"""

from __future__ import annotations

from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor
from planner.program.weights.fake_quantized import is_rounded
from planner.program.weights.matrices import linear
from tests.planner.program.matrix_runs import OTHER, SPEC, Run, view_of

IN, OUT, WEIGHT, GROUP = 64, 128, 64 * 128, 32
QAT = {"qat": "int8-int4", "qat_group": GROUP}


def run(method: str, weights: str = "intx") -> Run:
    """One matrix in bf16."""
    view = view_of(
        method,
        numerics=QAT,
        base="bf16",
        autocast=False,
        adapter="bf16",
        adapter_kernels="eager",
        qat_weights=weights,
    )

    def layer(torch: Operators, x: Tensor) -> Tensor:
        return linear(torch, view, SPEC if method == "lora" else OTHER, x)

    return Run(layer, "bf16", IN)


def rounded(count: int, scales: list[float]) -> list[float]:
    """Scaled, rounded, shifted and clamped in fp32; cast, shifted, scaled in fp32, cast."""
    return [*scales, *[count * 4] * 4, count * 2, count * 2, count * 4, count * 2]


def test_input_and_weight_are_rounded() -> None:
    """What went into ``clamp`` is kept in fp32, and both factors of the product in 16 bits."""
    found = run("full")
    scales = [WEIGHT / GROUP * 4]
    assert [size for _, _, size in found.made("forward")] == [
        *rounded(IN, []), *rounded(WEIGHT, scales), OUT * 2
    ]  # fmt: skip
    kept = sorted(size for _, _, size in found.kept.elements())
    assert kept == sorted([IN * 4, IN * 2, WEIGHT * 4, WEIGHT * 2, *scales])


def test_gradients_go_back_through_the_rounding() -> None:
    """In fp32, but for one sum, down to the clamp, which compares with both bounds."""
    sizes = [size for _, _, size in run("full").made("backward")]
    back = [4, 4, 2, 4, 1, 1, 4, 4, 2]
    assert sizes == [WEIGHT * 2, IN * 2, *(WEIGHT * each for each in back), *(IN * each for each in back)]


def test_weights_have_a_quantiser_of_their_own() -> None:
    """All in fp32; the copy, what was divided, clamped and scaled is kept.

    As ``FakeQuantizedLinear`` with an ``Int4WeightFakeQuantizeConfig`` has it in torchao 0.17.0, but for
    numbers of groups, of which some are left out.
    """
    found = run("full", "int4")
    sizes = [size for _, _, size in found.made("forward")][len(rounded(IN, [])) :]
    groups, wide = WEIGHT / GROUP * 4, WEIGHT * 4
    assert sizes == [wide, *[groups] * 4, *[wide] * 7, WEIGHT * 2, OUT * 2]
    assert [size for _, _, size in found.kept.elements()].count(wide) == 4
    back = [size for _, _, size in found.made("backward") if size in (wide, WEIGHT)]
    assert back == [*[wide] * 3, *[WEIGHT] * 2, *[wide] * 7, *[WEIGHT, wide] * 2]


def test_a_frozen_weight_keeps_its_rounded_copy_alone() -> None:
    """For the gradient of the input; the adapter reads the input as it was."""
    kept = [size for _, _, size in run("lora").kept.elements()]
    assert WEIGHT * 2 in kept
    assert WEIGHT * 4 not in kept


def test_which_matrices_are_rounded() -> None:
    """Those with whole groups; beside adapters only those that have one."""
    full, lora = (view_of(method, numerics=QAT).recipe for method in ("full", "lora"))
    assert is_rounded(full, OTHER, adapted=False)
    assert not is_rounded(lora, OTHER, adapted=False)
    assert is_rounded(lora, SPEC, adapted=True)
    assert not is_rounded(view_of("full", numerics={**QAT, "qat_group": 48}).recipe, OTHER, adapted=False)


def ternary_run() -> Run:
    """One matrix that is trained, in three values; groups do not count.

    Sizes and their order are those of ``BitNetLinear`` of onebitllms 0.0.4 in a dry run of Axolotl.
    """
    numerics = {"qat": "ternary", "qat_group": 48}
    view = view_of("full", numerics=numerics, base="bf16", autocast=False)

    def layer(torch: Operators, x: Tensor) -> Tensor:
        return linear(torch, view, OTHER, x)

    return Run(layer, "bf16", IN)


def test_for_three_values_each_factor_is_rounded_subtracted_and_added() -> None:
    """The sums are kept, and the factors themselves are not."""
    found = ternary_run()
    sizes = [size for _, _, size in found.made("forward")]
    assert sizes == [*[IN * 2] * 3, *[WEIGHT * 2] * 3, OUT * 2]
    assert sorted(size for _, _, size in found.kept.elements()) == [IN * 2, WEIGHT * 2]


def test_gradients_pass_the_rounding_to_three_values_by() -> None:
    """One of each factor, and no temporary."""
    assert sorted(size for _, _, size in ternary_run().made("backward")) == [IN * 2, WEIGHT * 2]
