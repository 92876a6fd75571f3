"""Modules that allocate what those of Transformer Engine do, written after its Python and C++.

Transformer Engine does not build without CUDA, so this is a reading of it and no run: each tensor with the
file and line of TransformerEngine d0067d0d (2.20.0.dev0) that makes it.  Nothing is computed.
:func:`install` puts it where Accelerate looks for the package.  Megatron's divided matrices get empty
tensors for what other GPUs would send.  Nothing here imports the planner.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

NAME = "transformer_engine"
STATE: dict[str, str] = {"recipe": ""}
"""The recipe of the region that runs (``FP8GlobalStateManager``); empty outside of one."""
_WORKSPACES: list[torch.Tensor] = []


@dataclass
class Quantized:
    """``Float8TensorStorage``, ``Float8BlockwiseQTensorStorage``, ``MXFP8TensorStorage``: data and scales."""

    rows: torch.Tensor | None = None
    row_scales: torch.Tensor | None = None
    columns: torch.Tensor | None = None
    column_scales: torch.Tensor | None = None

    def tensors(self) -> list[torch.Tensor | None]:
        """What ``prepare_for_saving`` hands autograd (tensor/storage/float8_tensor_storage.py:158)."""
        return [self.rows, self.row_scales, self.columns, self.column_scales]


def any_layout(device: torch.device) -> bool:
    """pytorch/utils.py:658 is_non_tn_fp8_gemm_supported."""
    if device.type != "cuda":
        return False
    found = torch.cuda.get_device_capability()
    return (10, 0) <= found < (12, 0) or found >= (13, 0)


def empty(
    recipe: str,
    shape: tuple[int, int],
    device: torch.device,
    *,
    rows: bool,
    columns: bool,
    square: bool = False,
) -> Quantized:
    """pytorch/csrc/quantizer.cpp create_tensor: :355 delayed, :670 current, :1061 blocks, :1502 MXFP8."""
    m, k = shape

    def byte(*size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=device)

    def scale(*size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.float32, device=device)

    made = Quantized()
    if recipe in ("delayed", "tensorwise"):
        both = any_layout(device)
        made.rows = byte(m, k) if rows or both else None
        made.columns = byte(k, m) if columns and not both else None
        made.row_scales = scale(1)
    elif recipe == "blockwise":
        # get_scale_shape:1432: 128 elements of a row, or squares of 128 for weights.
        if rows:
            made.rows = byte(m, k)
            made.row_scales = scale(-(-m // 128), -(-k // 512) * 4) if square else scale(-(-k // 128), m)
        if columns:
            made.columns = byte(k, m)
            made.column_scales = scale(-(-k // 128), -(-m // 512) * 4) if square else scale(-(-m // 128), k)
    else:
        if rows:
            made.rows, made.row_scales = byte(m, k), byte(m, k // 32)
        if columns:
            made.columns, made.column_scales = byte(m, k), byte(m // 32, k)
    return made


def quantize(
    recipe: str, x: torch.Tensor, *, rows: bool = True, columns: bool = True, square: bool = False
) -> Quantized:
    """``quantizer(x)``: the result, and two numbers of current scaling (:1034) that go at once."""
    flat = x.reshape(-1, x.shape[-1])
    made = empty(recipe, tuple(flat.shape), x.device, rows=rows, columns=columns, square=square)
    if recipe == "tensorwise":
        torch.empty(2, dtype=torch.float32, device=x.device)
    return made


def _workspace(device: torch.device) -> None:
    """cpp_extensions/gemm.py:39 get_cublas_workspace_size_bytes, kept for good (``lru_cache``)."""
    if not _WORKSPACES and device.type == "cuda":
        large = torch.cuda.get_device_capability()[0] >= 9
        size = 32 * 1024 * 1024 + 1024 if large else 4 * 1024 * 1024
        _WORKSPACES.append(torch.empty(size, dtype=torch.uint8, device=device))


def gemm(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """csrc/extensions/gemm.cpp:185: the output, in high precision."""
    _workspace(device)
    return torch.empty(shape, dtype=dtype, device=device)


def _activation_dtype(x: torch.Tensor) -> torch.dtype:
    """module/base.py:1482 set_activation_dtype."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


class _Linear(torch.autograd.Function):
    """module/linear.py: _linear_forward_impl and _linear_backward on one GPU, without a cache of weights."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, weight: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, keeps: bool
    ) -> torch.Tensor:
        """In 8 bits inside of a region for it, else in 16."""
        ctx.recipe, ctx.dtype, ctx.shape = STATE["recipe"], _activation_dtype(x), x.shape
        ctx.has_bias = bias is not None
        kept: list[torch.Tensor | None]
        if ctx.recipe:
            narrow = quantize(ctx.recipe, x, columns=keeps)  # :427-440
            matrix = quantize(ctx.recipe, weight, columns=keeps, square=True)  # :461-487
            if bias is not None:
                bias = bias.to(ctx.dtype)  # :500
            out = gemm((*x.shape[:-1], weight.shape[0]), ctx.dtype, x.device)  # :531
            if not any_layout(x.device) or ctx.recipe in ("blockwise", "mxfp8"):
                narrow.rows, narrow.row_scales = None, None  # :603 update_usage(rowwise_usage=False)
            kept = [*narrow.tensors(), *matrix.tensors(), weight, bias]  # :633-652
        else:
            seen, matrix_copy = x.to(ctx.dtype), weight.to(ctx.dtype)  # :442, :493 cast_if_needed
            if bias is not None:
                bias = bias.to(ctx.dtype)
            out = gemm((*x.shape[:-1], weight.shape[0]), ctx.dtype, x.device)
            kept = [seen, matrix_copy, weight, bias]
        if keeps:
            ctx.save_for_backward(*kept)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """Gradients of weight, input and bias."""
        kept = ctx.saved_tensors
        weight = kept[-2]
        gradient = gradient.reshape(-1, gradient.shape[-1]).contiguous()  # base.py:1701
        of_bias, narrow = None, None
        if ctx.has_bias:
            of_bias = torch.empty(weight.shape[0], dtype=ctx.dtype, device=gradient.device)  # base.py:1775
        if ctx.recipe:
            narrow = quantize(ctx.recipe, gradient)  # base.py:1787
        of_x = gemm((gradient.shape[0], weight.shape[1]), ctx.dtype, gradient.device)  # linear.py:1045
        of_weight = gemm(tuple(weight.shape), ctx.dtype, gradient.device)  # :1290
        del narrow
        return of_weight, of_x.view(ctx.shape), of_bias, None


class Linear(torch.nn.Module):
    """``te.Linear``, whose weight is made on the card (base.py:1804 reset_parameters)."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, params_dtype: Any = torch.float32
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(
            torch.empty(out_features, in_features, dtype=params_dtype, device="cuda")
        )
        self.bias = (
            torch.nn.Parameter(torch.empty(out_features, dtype=params_dtype, device="cuda")) if bias else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """base.py:1637 makes the input contiguous; linear.py:1417 asks whether gradients are wanted."""
        return _Linear.apply(self.weight, x.contiguous(), self.bias, torch.is_grad_enabled())


@dataclass
class Divided:
    """A matrix of Megatron: its input is that of ``gathers`` GPUs, or its result summed over ``scatters``."""

    recipe: str
    gathers: int = 1
    scatters: int = 1
    norm: bool = False
    whole: bool = False


class DividedLinear(torch.autograd.Function):
    """module/layernorm_linear.py _LayerNormLinear where ``norm``, else module/linear.py, in a group of GPUs.

    The weight in 8 bits is another tensor, which the module has (``weight_workspace``), and its gradient is
    added to Megatron's buffer.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, how: Divided
    ) -> torch.Tensor:
        """The cast input, the product of all tokens, and what backward reads."""
        ctx.how, ctx.shape, ctx.width = how, x.shape, weight.shape[0]
        by_tensor = how.recipe in ("delayed", "tensorwise")
        ctx.along_rows = by_tensor and how.gathers > 1
        columns = not ctx.along_rows and not how.whole
        if how.norm and how.recipe != "delayed":
            # normalization.cpp:141-170: the result first, then the norm in high precision, which goes.
            mine = empty(how.recipe, tuple(x.shape), x.device, rows=True, columns=columns)
            normed = torch.empty_like(x)
            del normed
        else:
            mine = quantize(how.recipe, x, columns=columns)
        total = None
        if how.gathers > 1:  # distributed.py:1034, :1148, :1587
            shape = (x.shape[0] * how.gathers, x.shape[1])
            total = empty(how.recipe, shape, x.device, rows=True, columns=False)
        out = gemm((x.shape[0] * how.gathers, ctx.width), x.dtype, x.device)
        del total
        if how.scatters > 1:
            out = torch.empty(x.shape[0] // how.scatters, ctx.width, dtype=x.dtype, device=x.device)
        if how.whole:
            ctx.save_for_backward(x)
            return out
        if not ctx.along_rows:
            mine.rows, mine.row_scales = None, None
        ctx.save_for_backward(*mine.tensors(), *([x] if how.norm else []))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """The gradient of the input; that of the weight is no tensor."""
        how, kept = ctx.how, ctx.saved_tensors
        narrow = _gathered_gradient(how, gradient)
        total, pieces, tokens = None, None, ctx.shape[0] * how.gathers
        shape = (tokens, ctx.shape[1])
        if how.whole:  # linear.py:968: along columns, by whole tensors along both
            total = quantize(how.recipe, kept[0], rows=how.recipe == "tensorwise")
        elif how.gathers > 1:
            total = empty(how.recipe, shape, gradient.device, rows=ctx.along_rows, columns=not ctx.along_rows)
            if how.recipe == "blockwise":  # distributed.py:1176 interleaved_columnwise_data
                pieces = torch.empty_like(total.columns)
        of_all = gemm(shape, gradient.dtype, gradient.device)
        of_x = (
            torch.empty(ctx.shape, dtype=gradient.dtype, device=gradient.device)
            if how.gathers > 1
            else of_all
        )
        del pieces
        if ctx.along_rows:  # storage/float8_tensor_storage.py:258 _create_transpose
            total.columns = torch.empty(shape[::-1], dtype=torch.uint8, device=gradient.device)
        del total, narrow
        if how.norm:
            of_x = torch.empty_like(of_x)  # normalization.cpp:216 rmsnorm_bwd
        return of_x, None, None


def _gathered_gradient(how: Divided, gradient: torch.Tensor) -> Quantized:
    """base.py:1720 grad_output_preprocess; distributed.py:989 _all_gather_fp8, :1083, :1527."""
    by_tensor = how.recipe in ("delayed", "tensorwise")
    if how.scatters == 1:
        return quantize(how.recipe, gradient)
    mine = quantize(how.recipe, gradient, columns=not by_tensor)
    shape = (gradient.shape[0] * how.scatters, gradient.shape[1])
    made = empty(how.recipe, shape, gradient.device, rows=True, columns=True)
    pieces = torch.empty_like(made.columns) if how.recipe == "blockwise" else None
    del mine, pieces
    return made


@contextmanager
def _autocast(enabled: bool = True, fp8_recipe: str = "", **_: object) -> Iterator[None]:
    """``fp8_autocast``: the region alone is in 8 bits, and backward is not in it."""
    before, STATE["recipe"] = STATE["recipe"], fp8_recipe if enabled else ""
    try:
        yield
    finally:
        STATE["recipe"] = before


def _named(name: str, **content: object) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.util.spec_from_loader(name, loader=None)
    module.__path__ = []
    vars(module).update(content)
    sys.modules[name] = module
    return module


def install() -> None:
    """Make ``import transformer_engine`` find these modules, and its version, in this process."""
    known: Callable[[str], Any] = importlib.metadata.metadata

    def metadata(name: str) -> Any:
        return {} if name == "transformer-engine" else known(name)

    importlib.metadata.metadata = metadata  # type: ignore[assignment]
    recipes = _named(
        f"{NAME}.common.recipe",
        DelayedScaling=lambda **_: "delayed",
        MXFP8BlockScaling=lambda **_: "mxfp8",
        Format=types.SimpleNamespace(HYBRID=1, E4M3=2),
    )
    fp8 = _named(f"{NAME}.pytorch.fp8", check_mxfp8_support=lambda: (True, ""))
    other = type("Other", (torch.nn.Module,), {})
    pytorch = _named(
        f"{NAME}.pytorch",
        Linear=Linear,
        LayerNorm=other,
        TransformerLayer=other,
        fp8_autocast=_autocast,
        fp8=fp8,
    )
    common = _named(f"{NAME}.common", recipe=recipes)
    _named(NAME, pytorch=pytorch, common=common)
