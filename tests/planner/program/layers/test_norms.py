"""Norms over 64 features: what each way to write one makes and saves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from planner.domain.model import NormSpec
from planner.program.layers.norms import norm
from tests.planner.program.matrix_runs import Run, view_of

WIDE, NARROW = 64 * 4, 64 * 2


def test_an_rms_norm_whose_weight_is_frozen_saves_the_wide_input_alone() -> None:
    """bf16 input: its fp32 copy, the square, the quotient, that in bf16, and the product with the weight."""
    view, spec = view_of("lora", norm="bf16"), NormSpec("rms", 64)

    run = Run(lambda torch, x: norm(torch, view, spec, x), "bf16")

    assert [n_bytes for _, _, n_bytes in run.made("forward")] == [WIDE, WIDE, WIDE, NARROW, NARROW]
    assert run.kept == Counter({("to", "TOKENS", WIDE): 1})


def test_a_trained_weight_has_its_factor_saved_in_the_dtype_of_the_product() -> None:
    """Llama multiplies in the input's dtype, OLMo 2 in fp32, and so do programs with a norm of their own."""
    view = view_of("full", base="bf16", norm="bf16")
    own = view_of("full", base="bf16", norm="bf16", scales_norms_wide=True)

    cast = Run(lambda torch, x: norm(torch, view, NormSpec("rms", 64), x), "bf16")
    wide = Run(lambda torch, x: norm(torch, view, NormSpec("rms", 64, scaling="wide"), x), "bf16")
    of_program = Run(lambda torch, x: norm(torch, own, NormSpec("rms", 64), x), "bf16")

    assert of_program.kept == wide.kept
    assert cast.kept == Counter({("to", "TOKENS", WIDE): 1, ("to", "TOKENS", NARROW): 1})
    assert wide.kept == Counter({("to", "TOKENS", WIDE): 1, ("mul", "TOKENS", WIDE): 1})


def test_autocast_widens_the_input_of_a_layer_norm() -> None:
    """One kernel that saves the fp32 input; with weight and bias trained, three gradients."""
    view, spec = view_of("full", norm="bf16"), NormSpec("layer", 64, bias=True)

    run = Run(lambda torch, x: norm(torch, view, spec, x), "bf16")

    assert run.made("forward") == [("to", "TOKENS", WIDE), ("native_layer_norm", "TOKENS", WIDE)]
    assert [(unit, n_bytes) for _, unit, n_bytes in run.made("backward")] == [
        ("TOKENS", WIDE),
        ("ONE", NARROW),
        ("ONE", NARROW),
        ("TOKENS", NARROW),
    ]


def test_a_norm_of_single_operators_saves_input_and_centred_input() -> None:
    """Frozen, in fp32: the input is the port's, so that the centred one alone is new."""
    view, spec = view_of("lora", norm="fp32"), NormSpec("layer", 64, scaling="operators")

    run = Run(lambda torch, x: norm(torch, view, spec, x), "fp32")

    assert [op for op, _, _ in run.made("forward")] == ["pow", "sub", "mul", "mul", "add"]
    assert run.kept == Counter({("sub", "TOKENS", WIDE): 1})


def test_a_fused_norm_saves_the_input_it_was_given() -> None:
    """One kernel, whose input the port holds until then; frozen, its only gradient is the input's."""
    view = view_of("lora", norm="bf16", fused_norm=True)

    run = Run(lambda torch, x: norm(torch, view, NormSpec("rms", 64), torch.to(x, "fp32")), "bf16")

    assert [op for op, _, _ in run.made("forward")] == ["to", "rms_norm"]
    assert run.kept == Counter({("to", "TOKENS", WIDE): 1})
    assert ("rms_norm_backward", "TOKENS", WIDE) in run.made("backward")


def test_a_fused_norm_keeps_the_dtype_of_its_input_over_fp32_weights() -> None:
    """Those of k-bit preparation: linkedin/Liger-Kernel v0.1.0 to v0.6.0 ops/rms_norm.py makes Y as X is.

    QLoRA of Llama 3.1 8B with Liger on an L4 takes 24.0 s a step (philschmid's guide of 2025); 33.7 were
    counted where the norms widened what follows them.
    """
    view = view_of("lora", norm="fp32", fused_norm=True)
    plain = view_of("lora", norm="fp32")

    fused, written = (
        Run(lambda torch, x, each=each: norm(torch, each, NormSpec("rms", 64), x), "bf16")
        for each in (view, plain)
    )

    assert fused.made("forward") == [("rms_norm", "TOKENS", NARROW)]
    assert written.made("forward")[-1] == ("mul", "TOKENS", WIDE)


def test_a_norm_in_one_kernel_with_positions_saves_its_input_and_a_number_for_each_head() -> None:
    """Two heads of 32 features; rows that share their positions have two tables of them copied."""
    alone, spec = view_of("lora", norm="bf16"), NormSpec("rms", 32, rows_per_token=2, scaling="turned")
    shared = replace(alone, single=False)

    one = Run(lambda torch, x: norm(torch, alone, spec, x), "bf16")
    several = Run(lambda torch, x: norm(torch, shared, spec, x), "bf16")

    assert one.made("forward") == [("rms_norm_rope", "TOKENS", NARROW), ("rms_norm_rope", "TOKENS", 2 * 4)]
    assert one.kept == Counter({("rms_norm_rope", "TOKENS", 2 * 4): 1})
    assert one.made("backward") == [("rms_norm_rope_backward", "TOKENS", NARROW)]
    assert several.kept - one.kept == Counter({("clone", "TOKENS", 32 * 2): 2})


def test_a_layer_norm_without_a_weight_has_no_parameters() -> None:
    """OLMo's: an engine that divides them finds none."""
    view, spec = view_of("full", norm="bf16"), NormSpec("layer", 64, weight=False, scaling="narrowed")

    run = Run(lambda torch, x: norm(torch, view, spec, x), "bf16")

    assert run.torch.parameters == []
