"""Matrices that a checkpoint stores in 8-bit floats: Transformers' own modules, and what stands in for the
two kernels of the Hub that they call.
"""

# ruff: noqa: SLF001 - what Transformers calls private here has no public name

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

_FP8 = torch.float8_e4m3fn
_LARGEST = 448.0


def store_in_fp8(model: Any, side: int, whole: Sequence[str]) -> None:
    """Replace the matrices that Transformers would, as a checkpoint in fp8 has them.

    ``side``: of the blocks that share a scale, 0 where a matrix does.  ``whole``: paths of matrices that the
    checkpoint holds as they were.
    """
    from transformers.integrations.finegrained_fp8 import FP8Experts, FP8Linear
    from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer
    from transformers.utils.quantization_config import FineGrainedFP8Config

    make: Any = FineGrainedFP8Config
    config = make(
        weight_block_size=(side, side) if side else None,
        # It stands in for the head, which is left out by default.
        modules_to_not_convert=["lm_head", *whole] if whole else None,
    )
    quantizer: Any = FineGrainedFP8HfQuantizer(config, pre_quantized=True)
    quantizer._process_model_before_weight_loading(model)
    for module in model.modules():
        if isinstance(module, FP8Linear | FP8Experts):
            parts: list[tuple[str, Any]] = list(module.named_parameters(recurse=False))
            for name, part in parts:
                part.requires_grad_(False)
                if part.dtype == _FP8:
                    part.arrival = (name, f"{name}_scale_inv")
    model.is_quantized = True


@contextmanager
def kernels_of_fp8(*, by_deepgemm: bool) -> Iterator[None]:
    """Both kernels, as the card of the job takes them."""
    from transformers.integrations import deepgemm, finegrained_fp8

    n_rows = [0]

    def grouped(rows: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
        n_rows[0] = rows.shape[0]
        return _grouped(rows, *more, **named)

    def ends(offsets: torch.Tensor) -> list[int]:
        """Where the rows of each expert end, which is a value on CUDA: all have as many."""
        n_experts = offsets.shape[0]
        return [n_rows[0] * (number + 1) // n_experts for number in range(n_experts)]

    kernels = finegrained_fp8.FineGrainedFP8(_matmul, _unread, grouped)
    gemm = mock.Mock(per_token_cast_to_fp8=_cast_rows, fp8_fp4_matmul=lambda *_, **__: None)
    with ExitStack() as stack:
        for module, name, value in (
            (finegrained_fp8, "load_finegrained_fp8_kernel", lambda: kernels),
            (finegrained_fp8, "is_deepgemm_loadable", lambda: by_deepgemm),
            (finegrained_fp8, "is_sm100", lambda: False),
            (FakeTensor, "tolist", ends),
            (deepgemm, "is_sm100", lambda: False),
            (deepgemm, "load_deepgemm_kernel", lambda: gemm),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def _unread(*_: Any, **__: Any) -> torch.Tensor:
    raise NotImplementedError("experts one after the other")


def _matmul(
    rows: torch.Tensor,
    weight: torch.Tensor,
    _: torch.Tensor,
    block_size: Sequence[int] | None,
    dtype: torch.dtype,
    **__: Any,
) -> torch.Tensor:
    """``matmul_2d`` of kernels-community/finegrained-fp8: rows are cast once, with a scale for each block of
    a row, or for each row.
    """
    width = rows.shape[-1]
    n_scales = width // block_size[1] if block_size else 1
    narrow = torch.empty(rows.shape, dtype=_FP8, device=rows.device)
    scales = torch.empty((rows.numel() // width, n_scales), dtype=torch.float32, device=rows.device)
    out = rows.new_empty((*rows.shape[:-1], weight.shape[0]), dtype=dtype)
    del narrow, scales
    return out


def _grouped(
    rows: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    *,
    block_size: Sequence[int] | None,
    **_: Any,
) -> torch.Tensor:
    """``matmul_grouped`` of the same."""
    return _matmul(rows, weight[0], scales, block_size, rows.dtype)


def _cast_rows(rows: torch.Tensor, *, use_ue8m0: bool, gran_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``per_token_cast_to_fp8`` of kernels-community/deep-gemm (utils/math.py), operator by operator."""
    assert not use_ue8m0
    assert rows.shape[1] % gran_k == 0
    padded = torch.empty_like(rows).fill_(0)
    padded[:] = rows
    groups = padded.view(rows.shape[0], -1, gran_k)
    scales = groups.abs().float().amax(dim=2).clamp(1e-4) / _LARGEST
    return (groups * (1.0 / scales.unsqueeze(2))).to(_FP8).view(rows.shape), scales
