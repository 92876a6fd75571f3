"""What turning query and key moves and issues."""

from __future__ import annotations

from collections import Counter

from planner.program.layers.rotary import rotated
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from tests.planner.program.matrix_runs import Run, view_of

WIDTH = 4096


def test_torchtune_turns_pairs_of_features_in_fp32() -> None:
    """bf16: 48 bytes of each feature and 9 operators forward, 100 and 14 backward.

    So many were counted in torchtune 0.5.0's module with torch 2.13, without the tables.  Zeros, into which
    the gradients of four views are copied, are counted as written twice.
    """
    moved, issued = costs(view_of("lora", rotary_tables=("pairs",)))

    assert moved == {"forward": 48, "backward": 100}
    assert issued == {"forward": 9, "backward": 14}


def test_compiled_a_turn_is_one_kernel() -> None:
    """It reads and writes 2 bytes of each feature both ways, whatever the model's code or the stack's."""
    moved, issued = costs(view_of("lora", rotary_tables=("pairs",), adapter_kernels="compiled"))

    assert moved == {"forward": 4, "backward": 4}
    assert issued == {"forward": 1, "backward": 1}


def costs(view: LayerView) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes for each feature of a query, and operators, by direction; without what the run makes itself."""

    def turned(torch: Operators, x: Tensor) -> Tensor:
        return rotated(torch, view, x, Tensor(None, Unit.TOKENS, 0, "bf16"))[0]

    run = Run(turned, "bf16", WIDTH)
    assert run.out == "bf16"
    assert not run.kept
    # The run writes an input and a gradient; the key, of no features, is turned forward alone.
    moved, issued = Counter({"forward": -2 * 2}), Counter({"forward": -2})
    for (direction, _, kind), counts in run.torch.work.items():
        if kind == "bytes":
            moved[direction] += round(counts[Unit.TOKENS] / WIDTH)
        elif kind == "launches":
            issued[direction] += round(counts[Unit.ONE])
    issued["forward"] //= 2
    return dict(moved), dict(issued)
