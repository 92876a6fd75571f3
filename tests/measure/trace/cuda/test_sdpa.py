"""What kernels of CUDA take beside their tensors."""

from __future__ import annotations

import pytest

from planner.units import KIB, MIB
from tests.extras import import_or_skip

import_or_skip("torch")


@pytest.mark.parametrize(
    ("compute_capability", "n_bytes"),
    [
        ("9.0", 32 * MIB),
        ("12.0", 32 * MIB),
        ("8.6", 8 * MIB + 128 * KIB),
        ("unknown", 8 * MIB + 128 * KIB),
        ("", 8 * MIB + 128 * KIB),
    ],
)
def test_the_workspace_of_cublas_follows_the_card(compute_capability: str, n_bytes: int) -> None:
    """A card that only its memory is known of counts as one before Hopper, as in ``plan``."""
    from measure.trace.cuda.sdpa import cublas_workspace_bytes

    assert cublas_workspace_bytes(compute_capability) == n_bytes
