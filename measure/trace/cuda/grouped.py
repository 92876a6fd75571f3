"""The grouped product of expert layers on fake tensors, in every dtype that CUDA takes."""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# CUDA lays rows out in multiples of so many bytes (ATen/native/GroupedMMUtils.h
# create_grouped_gemm_output_tensor).
_ROW_BYTES = 16


def grouped_product(
    first: torch.Tensor,
    second: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Shape and layout of ``aten::_grouped_mm``: rows by matrices, or, of two plain matrices,
    one product for each group.
    """
    del bias  # the operator takes none yet
    dtype = out_dtype or first.dtype
    width = second.size(-1)
    padded = -(-width * dtype.itemsize // _ROW_BYTES) * _ROW_BYTES // dtype.itemsize
    if first.dim() == second.dim():
        groups = first.size(0) if offs is None or first.dim() == 3 else offs.size(0)
        rows = first.size(-2)
        return first.new_empty_strided((groups, rows, width), (rows * padded, padded, 1), dtype=dtype)
    return first.new_empty_strided((first.size(-2), width), (padded, 1), dtype=dtype)


@contextmanager
def grouped_product_in_every_dtype() -> Iterator[None]:
    """Inside, fake tensors take ``aten::_grouped_mm`` in fp32 and fp16 too,
    as CUDA does by one product for each expert.
    """
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_grouped_mm", grouped_product, "Meta", allow_override=True)
        yield
