"""What stands in for the compiled parts of mamba-ssm and causal-conv1d."""

from __future__ import annotations

from tests.extras import import_or_skip

import_or_skip("torch")


def test_a_scan_keeps_a_state_for_each_2048_positions() -> None:
    """In the dtype of A, real and imaginary part: 2 x 4 x 2 x 32 numbers for 3,000 positions."""
    import torch

    from measure.dry_run.libraries.state_space_kernels import scan

    values = torch.empty(2, 4, 3000, dtype=torch.bfloat16, device="meta")
    a = torch.empty(4, 16, device="meta")
    out, states, gated = scan(values, values, a, None, None, None, values, None, True)
    assert states is not None
    assert [each is not None and each.shape for each in (out, gated)] == [values.shape] * 2
    assert (tuple(states.shape), states.dtype) == ((2, 4, 2, 32), torch.float32)


def test_gradients_of_a_scan_without_a_gate_are_seven() -> None:
    """B and C of each position are summed in fp32 and come back in their own dtype."""
    import torch

    from measure.dry_run.libraries.state_space_kernels import scan_gradients

    values = torch.empty(2, 4, 8, dtype=torch.bfloat16, device="meta")
    a, b = torch.empty(4, 16, device="meta"), torch.empty(2, 1, 16, 8, dtype=torch.bfloat16, device="meta")
    made = scan_gradients(values, values, a, b, b, None, None, None, values, None, values, None, True, False)
    assert [each if each is None else each.dtype for each in made] == [
        torch.bfloat16, torch.bfloat16, torch.float32, torch.bfloat16, torch.bfloat16, None, None,
    ]  # fmt: skip
