"""Mamba: what its kernels allocate, counted by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from planner.domain.attention_shape import NO_ATTENTION
from planner.domain.mixer_specs import Mamba1Spec, Mamba2Spec
from planner.domain.model import BlockSpec, LinearSpec, MlpSpec
from planner.program.layers.selective_scan import mamba1
from planner.program.layers.state_space import mamba2
from planner.program.view import LayerView
from tests.planner.program.layer_views import HIDDEN, layer_of
from tests.planner.program.matrix_runs import Run

SPEC = Mamba2Spec(heads=8, head_dim=16, groups=2, state=32, kernel=4, chunk=64)
FIRST = Mamba1Spec(width=128, state=16, rank=4, kernel=4)
NO_MLP = MlpSpec(0, gated=False, activation="silu")


def view_of(
    spec: Mamba1Spec | Mamba2Spec, linears: tuple[LinearSpec, ...], method: str = "full"
) -> LayerView:
    """A full fine-tune in bf16 without autocast, or what ``method`` says."""
    view = layer_of(method, NO_MLP, linears)
    return replace(view, single=True, block=BlockSpec(NO_ATTENTION, NO_MLP, linears, (), mixer=spec))


def test_mamba_2_saves_its_product_and_the_output_of_the_scan() -> None:
    """And an fp32 number for each of the norm's two groups, and the decays of eight heads;
    the convolution runs again.
    """
    linears = (
        LinearSpec("in_proj", "mixer", HIDDEN, SPEC.joined_width, "mixer_in"),
        LinearSpec("out_proj", "mixer", SPEC.width, HIDDEN, "mixer_out", adaptable=False),
    )
    view = view_of(SPEC, linears)

    run = Run(lambda torch, x: mamba2(torch, view, SPEC, x), "bf16")

    joined = 128 + (128 + 2 * 2 * 32) + 8
    assert run.kept == Counter(
        {
            ("mm", "TOKENS", 2 * joined): 1,
            ("chunk_scan", "TOKENS", 2 * 128): 1,
            ("layer_norm_gated", "TOKENS", 4 * 2): 1,
            ("exp", "ONE", 4 * 8): 1,
        }
    )


def test_a_gate_alone_keeps_the_scan_before_it() -> None:
    """The kernel writes both; the gated one goes when the output projection has run."""
    linears = (
        LinearSpec("in_proj", "mixer", HIDDEN, SPEC.joined_width, "mixer_in"),
        LinearSpec("out_proj", "mixer", SPEC.width, HIDDEN, "mixer_out", adaptable=False),
    )
    view = view_of(replace(SPEC, normed=False), linears)

    run = Run(lambda torch, x: mamba2(torch, view, replace(SPEC, normed=False), x), "bf16")

    assert [op for op, *_ in run.made("forward")].count("chunk_scan") == 2
    assert run.kept["chunk_scan", "TOKENS", 2 * 128] == 1


def test_mamba_1_saves_copies_in_which_positions_lie_together() -> None:
    """Of values, gate, B and C, beside the product, steps and both outputs of the scan;
    and a state for each 2,048 positions.
    """
    linears = (
        LinearSpec("in_proj", "mixer", HIDDEN, 2 * FIRST.width, "mixer_in"),
        LinearSpec("x_proj", "mixer", FIRST.width, FIRST.rank + 2 * FIRST.state, "mixer_mid"),
        LinearSpec("dt_proj", "mixer", FIRST.rank, FIRST.width, "mixer_step", bias=True),
        LinearSpec("out_proj", "mixer", FIRST.width, HIDDEN, "mixer_out"),
    )
    view = view_of(FIRST, linears)

    run = Run(lambda torch, x: mamba1(torch, view, FIRST, x), "bf16")

    kept = run.kept
    assert kept["mm", "TOKENS", 2 * 2 * 128] == 1
    # Copies of values and gate, and the steps, which a trained weight's product turned.
    assert kept["clone", "TOKENS", 2 * 128] == 3
    assert kept["clone", "TOKENS", 2 * 16] == 2
    assert kept["selective_scan", "TOKENS", 2 * 128] == 2
    assert kept["selective_scan", "SCAN_BLOCKS", 4 * 2 * 16 * 128] == 1


def test_a_packed_output_projection_leaves_the_fused_kernel_out() -> None:
    """The convolution's output stays, and in fp32 the scan's, the gate, both behind it and their product."""
    linears = (
        LinearSpec("in_proj", "mixer", HIDDEN, SPEC.joined_width, "mixer_in"),
        LinearSpec("out_proj", "mixer", SPEC.width, HIDDEN, "mixer_out", adaptable=False),
    )
    view = view_of(SPEC, linears, "qlora")

    run = Run(lambda torch, x: mamba2(torch, view, SPEC, x), "bf16")

    assert run.kept["chunk_scan", "TOKENS", 2 * 128] == 1
    assert run.kept["causal_conv1d", "TOKENS", 2 * (128 + 2 * 2 * 32)] == 1
    wide = Counter({op: n for (op, unit, size), n in run.kept.items() if (unit, size) == ("TOKENS", 4 * 128)})
    assert wide == {"to": 2, "silu": 1, "mul": 1, "causal_conv1d": 1}
