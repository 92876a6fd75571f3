"""A product of rounded factors, with 64 features in and 128 out, in bf16.

Sizes and their order are those of ``BitNetLinear`` of onebitllms 0.0.4 in a dry run of Axolotl.
"""

from __future__ import annotations

from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor
from planner.program.weights.matrices import linear
from tests.planner.program.matrix_runs import OTHER, Run, view_of

IN, OUT, WEIGHT = 64, 128, 64 * 128


def run() -> Run:
    """One matrix that is trained; groups do not count."""
    numerics = {"qat": "ternary", "qat_group": 48}
    view = view_of("full", numerics=numerics, base="bf16", autocast=False)

    def layer(torch: Operators, x: Tensor) -> Tensor:
        return linear(torch, view, OTHER, x)

    return Run(layer, "bf16", IN)


def test_each_factor_is_rounded_subtracted_and_added() -> None:
    """The sums are kept, and the factors themselves are not."""
    found = run()
    sizes = [size for _, _, size in found.made("forward")]
    assert sizes == [*[IN * 2] * 3, *[WEIGHT * 2] * 3, OUT * 2]
    assert sorted(size for _, _, size in found.kept.elements()) == [IN * 2, WEIGHT * 2]


def test_gradients_pass_the_rounding_by() -> None:
    """One of each factor, and no temporary."""
    assert sorted(size for _, _, size in run().made("backward")) == [IN * 2, WEIGHT * 2]
