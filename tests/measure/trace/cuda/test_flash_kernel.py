"""What stands in for flash-attn takes what flash-attn takes."""

from __future__ import annotations

import pytest
import torch

from measure.trace.cuda.flash_kernel import flash_attn_func, flash_attn_varlen_func


def test_queries_in_fp32_are_refused_as_the_kernel_refuses_them() -> None:
    """So a dry run stops where a launch does."""
    wide = torch.zeros(1, 4, 2, 8)
    edges = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(RuntimeError, match=r"float16 and bfloat16 alone.*float32"):
        flash_attn_func(wide, wide, wide)
    with pytest.raises(RuntimeError, match="float16 and bfloat16 alone"):
        flash_attn_varlen_func(wide[0], wide[0], wide[0], edges, 4)
