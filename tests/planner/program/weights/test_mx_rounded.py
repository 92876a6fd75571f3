"""A product of factors in MXFP4: 512 tokens, 1,024 features in and 2,048 out, in bf16.

Peaks are those of torchao 0.17.0's own ``MXFakeQuantizedLinear`` with torch 2.13 on the CPU, from the
profiler: 65,355,788 bytes forward and 63,963,148 backward, of which 12 are numbers of a few bytes.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.program.ops.tensors import Unit
from planner.program.weights.mx_rounded import product_mx
from tests.planner.program.matrix_runs import Run

IN, OUT, TOKENS = 1024, 2048, 512
SPEC = LinearSpec("up_proj", "mlp", IN, OUT, "mlp_in")


def run() -> Run:
    """One matrix that is trained."""
    return Run(
        lambda torch, x: product_mx(
            torch, SPEC, x, (torch.parameter(Unit.ONE, IN * OUT, "bf16", trained=True), None)
        ),
        "bf16",
        IN,
    )


def most(found: Run, stage: str) -> float:
    """The most bytes that a stage has more than when it began."""
    torch, live, peak = found.torch, 0.0, 0.0
    for event in torch.stages[stage]:
        slot = event if event >= 0 else ~event
        size = torch.unit_bytes[slot] * (TOKENS if torch.units[slot] is Unit.TOKENS else 1)
        live += size if event >= 0 else -size
        peak = max(peak, live)
    return peak


def test_peaks_are_those_of_the_library() -> None:
    """Most is there while the weight is packed, and while it is expanded."""
    found = run()
    assert (most(found, "forward"), most(found, "backward")) == (65_355_776, 63_963_136)


def test_both_factors_are_kept_packed() -> None:
    """Half a byte for an element, and a scale of one byte for 32; the input itself goes."""
    found = run()
    kept = {unit: size for _, unit, size in found.kept}
    assert kept == {"TOKENS": IN * (1 / 2 + 1 / 32), "ONE": IN * OUT * (1 / 2 + 1 / 32)}
    ports = found.torch.stages["ports"]
    # The input is the first allocation, and freed before the gradient of the output is made.
    assert ports.index(~0) < ports.index(max(ports))
