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


@pytest.mark.parametrize(
    ("n_key_heads", "masked", "has_flash", "kernel"),
    [
        (4, False, True, "FLASH_ATTENTION"),
        (2, False, True, "FLASH_ATTENTION"),
        (4, True, True, "EFFICIENT_ATTENTION"),
        (2, True, True, "MATH"),
        (4, False, False, "MATH"),
    ],
)
def test_which_kernel_it_is_has_torchs_number(
    n_key_heads: int, masked: bool, has_flash: bool, kernel: str
) -> None:
    """In bf16; programs compare it with ``SDPBackend``."""
    import torch
    from torch.nn.attention import SDPBackend

    from measure.trace.cuda.sdpa import kernel_number

    query, key = (torch.empty(1, n, 8, 64, dtype=torch.bfloat16, device="meta") for n in (4, n_key_heads))
    mask = torch.empty(8, 8, dtype=torch.bool, device="meta") if masked else None
    chosen = kernel_number(has_flash, query, key, key, mask, 0.0, not masked, enable_gqa=n_key_heads != 4)
    assert chosen == int(getattr(SDPBackend, kernel))


@pytest.mark.parametrize(
    ("allowed", "kernel"),
    [
        (("EFFICIENT_ATTENTION", "MATH"), "EFFICIENT_ATTENTION"),
        (("MATH",), "MATH"),
        (("CUDNN_ATTENTION",), "FLASH_ATTENTION"),
    ],
)
def test_kernels_that_the_program_switches_off_are_not_taken(allowed: tuple[str, ...], kernel: str) -> None:
    """``sdpa_kernel`` of torch, as in torch's builds for Windows up to 2.6, which have no FlashAttention.
    cuDNN's kernel is counted as FlashAttention.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from measure.trace.cuda.sdpa import kernel_number

    inputs = [torch.empty(1, 4, 8, 64, dtype=torch.bfloat16, device="meta")] * 3
    with sdpa_kernel([getattr(SDPBackend, each) for each in allowed]):
        assert kernel_number(True, *inputs) == int(getattr(SDPBackend, kernel))


def test_no_kernel_at_all_is_refused_as_cuda_refuses_it() -> None:
    """The memory-efficient kernel takes no groups."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from measure.trace.cuda.sdpa import kernel_number

    query, key = (torch.empty(1, n, 8, 64, dtype=torch.bfloat16, device="meta") for n in (4, 2))
    with (
        sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]),
        pytest.raises(RuntimeError, match="No available kernel"),
    ):
        kernel_number(True, query, key, key, enable_gqa=True)
