"""``scaled_dot_product_attention`` as CUDA runs it: which kernel, on which shapes,
and what that kernel takes while it runs.

The fused operators themselves are torch's: their autograd formulas save what they save on CUDA (q, k,
v, output, log-sum-exp).
"""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from planner.units import KIB, MIB

_FUSED_HEAD_MULTIPLE = 8
_FLASH_MAX_HEAD = 256
_HALF = (torch.bfloat16, torch.float16)
# aten/src/ATen/SDPBackend.h.
_NUMBERS = {"math": 0, "flash": 1, "efficient": 2}
_aten = torch.ops.aten
# Without types: which kernels the program leaves on.
_SWITCHES: Any = torch.backends.cuda


def attention_on(*, has_flash: bool) -> Callable[..., torch.Tensor]:
    """The operator ``scaled_dot_product_attention`` on a card that has torch's FlashAttention or not."""

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        return _attention_on_cuda(*args, has_flash=has_flash, **kwargs)

    return attention


def _attention_on_cuda(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> torch.Tensor:
    """The composite operator of torch 2.13 (ATen/native/transformers/attention.cpp)
    with CUDA's choice of kernel.

    The order is flash, memory-efficient, math (ATen/native/transformers/cuda/sdp_utils.cpp).

    ``options`` are ``scale``, ``enable_gqa`` and ``has_flash``.
    """
    scale, grouped = options.get("scale"), options.get("enable_gqa", False)
    kernel = choose_kernel(
        (query, key, value), attn_mask, grouped=grouped, has_flash=options.get("has_flash", True)
    )
    if kernel == "flash":
        width = query.size(-1)
        if width % _FUSED_HEAD_MULTIPLE:
            scale = scale or 1 / math.sqrt(width)
            query, key, value = (_padded(each) for each in (query, key, value))
        flash = _aten._scaled_dot_product_flash_attention
        out: torch.Tensor = flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :width] if out.size(-1) != width else out
    if kernel == "efficient":
        bias = _bias(attn_mask, query, key)
        keeps_lse = query.requires_grad or key.requires_grad or value.requires_grad
        efficient = _aten._scaled_dot_product_efficient_attention
        result: torch.Tensor = efficient(
            query, key, value, bias, keeps_lse, dropout_p, is_causal, scale=scale
        )[0]
        return result
    if isinstance(query, FakeTensor):
        return _unfused(query, key, value, attn_mask, (dropout_p, is_causal, grouped), scale)
    unfused = _aten._scaled_dot_product_attention_math
    plain: torch.Tensor = unfused(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=grouped
    )[0]
    return plain


def _unfused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    switches: tuple[float, bool, bool],
    scale: float | None,
) -> torch.Tensor:
    """Single operators, in fp32 for 16-bit inputs.  ``switches``: dropout, whether it is causal, and whether
    heads of keys are fewer.  The operator itself adds the mask to a copy of scores where they are fake.

    Source: ATen/native/transformers/attention.cpp ``_scaled_dot_product_attention_math``;
    ATen/native/SoftMax.cpp ``_safe_softmax``, which marks what is minus infinity, and empty rows.
    """
    dropout, is_causal, grouped = switches
    wide = [each.float() if each.dtype in _HALF else each for each in (query, key, value)]
    factor = math.sqrt(scale or 1 / math.sqrt(query.size(-1)))
    scaled = wide[0] * factor
    if is_causal:
        lower = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
        mask = torch.where(lower, 0.0, torch.scalar_tensor(-math.inf, dtype=scaled.dtype))
        del lower
    times = query.size(-3) // key.size(-3) if grouped else 1
    keys, values = (each.repeat_interleave(times, -3) if grouped else each for each in wide[1:])
    scores = torch.matmul(scaled, (keys * factor).transpose(-2, -1))
    if mask is not None:
        scores.add_(mask)
    shares: torch.Tensor = _aten._safe_softmax(scores, -1)
    with torch.no_grad():
        marks = scores.isneginf()
        # Rows, and the number that they get.
        _small = marks.all(-1, keepdim=True), scores.new_empty(())
    del scores, marks, _small
    if dropout > 0:
        shares = torch.dropout(shares, dropout, True)
    _returned = shares.to(query.dtype)
    return torch.matmul(shares, values).to(query.dtype)


def choose_kernel(
    inputs: tuple[torch.Tensor, ...], mask: torch.Tensor | None, *, grouped: bool, has_flash: bool
) -> str:
    """``flash``, ``efficient`` or ``math``, as ``sdp::select_sdp_backend`` decides.

    ``inputs`` are query, key and value; ``grouped``: fewer key heads are allowed (``enable_gqa``),
    else they must match.  Cards without flash have no memory-efficient kernel in bf16, either.
    What the program switched off (``torch.nn.attention.sdpa_kernel``) is not taken.  cuDNN's, which takes
    what flash takes, stands last unless a program leaves nothing else.
    """
    if flash_takes(inputs, mask, grouped=grouped, has_flash=has_flash):
        return "flash"
    if efficient_takes(inputs, has_flash=has_flash):
        return "efficient"
    if _SWITCHES.math_sdp_enabled():
        return "math"
    if _SWITCHES.cudnn_sdp_enabled() and _flash_could(inputs, mask, grouped=grouped, has_flash=has_flash):
        return "flash"
    message = "No available kernel. Aborting execution."
    raise RuntimeError(message)


def flash_takes(
    inputs: tuple[torch.Tensor, ...], mask: torch.Tensor | None, *, grouped: bool, has_flash: bool
) -> bool:
    """``sdp::can_use_flash_attention``."""
    return _SWITCHES.flash_sdp_enabled() and _flash_could(inputs, mask, grouped=grouped, has_flash=has_flash)


def _flash_could(
    inputs: tuple[torch.Tensor, ...], mask: torch.Tensor | None, *, grouped: bool, has_flash: bool
) -> bool:
    query, key, value = inputs
    width = query.size(-1)
    same_width = width == key.size(-1) == value.size(-1)
    fits = has_flash and query.dtype in _HALF and same_width and width <= _FLASH_MAX_HEAD
    return fits and mask is None and (_same_heads(inputs) or grouped)


def efficient_takes(inputs: tuple[torch.Tensor, ...], *, has_flash: bool) -> bool:
    """``sdp::can_use_mem_efficient_attention``: with any mask, and no groups."""
    query, _, value = inputs
    if not _SWITCHES.mem_efficient_sdp_enabled() or (query.dtype == torch.bfloat16 and not has_flash):
        return False
    aligned = not any(each.size(-1) % _alignment(query.dtype) for each in (query, value))
    return aligned and _same_heads(inputs)


def _same_heads(inputs: tuple[torch.Tensor, ...]) -> bool:
    return len({each.size(-3) for each in inputs}) == 1


def kernel_number(
    has_flash: bool,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *_: Any,
    enable_gqa: bool = False,
    **__: Any,
) -> int:
    """The operator ``_fused_sdp_choice``: the chosen kernel as a number of ``sdp::SDPBackend``.

    Never cuDNN's, which wheels for CUDA 13 prefer on some cards (data/packages/torch.toml).
    """
    kernel = choose_kernel((query, key, value), attn_mask, grouped=enable_gqa, has_flash=has_flash)
    return _NUMBERS[kernel]


def _alignment(dtype: torch.dtype) -> int:
    return 8 if dtype in _HALF else 4


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    missing = -tensor.size(-1) % _FUSED_HEAD_MULTIPLE
    return torch.nn.functional.pad(tensor, (0, missing))


def _bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """A boolean mask becomes an additive one in the dtype of the query,
    its rows padded to 16 elements (``preprocess_mask``).
    """
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        additive = torch.zeros_like(mask, dtype=query.dtype)
        additive.masked_fill_(mask.logical_not(), -math.inf)
        mask = additive
    width = mask.size(-1)
    if width % 16:
        mask = torch.nn.functional.pad(mask, (0, 16 - width % 16))[..., :width]
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))


def _flash_backward_workspace(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *_: Any, **__: Any
) -> list[int]:
    """``mha_bwd``: softmax_d, the fp32 accumulator of the query gradient,
    and per-head key and value gradients when grouped.

    Source: ATen/native/transformers/cuda/flash_attn/flash_api.cpp.
    """
    batch, heads, length, width = query.shape
    rounded_length = -(-length // 128) * 128
    rounded_width = -(-width // 32) * 32 if width <= 192 else 256
    per_row = batch * heads * rounded_length
    sizes = [per_row * 4, per_row * rounded_width * 4]
    if key.size(1) != heads:
        expanded = batch * heads * key.size(2) * width * key.element_size()
        sizes += [expanded, expanded]
    del grad_out
    return sizes


def _efficient_backward_workspace(
    grad_out: torch.Tensor, query: torch.Tensor, *_: Any, **__: Any
) -> list[int]:
    """``_efficient_attention_backward``: delta, one fp32 per row,
    and an fp32 accumulator of the query gradient.

    The accumulator is made of whole tiles of 64 or 128 rows, each with a lock of 16 bytes.
    Ignored: above a width of 128, the accumulators of the key and value gradients, one tile per split.
    Source: ATen/native/transformers/cuda/mem_eff_attention/kernel_backward.h ``kNeedsAccumGradQ`` (true from
    compute capability 7.0 on), ``workspace_elements_gq``, ``GradQTempStorage``; attention_backward.cu.
    """
    batch, heads, length, width = query.shape
    del grad_out
    tile_rows = 64 if width <= 64 or width > 128 else 128
    tile_columns = next((columns for columns in (32, 64, 96, 128) if width <= columns), 64)
    tiles = -(-length // tile_rows) * -(-width // tile_columns)
    return [batch * heads * length * 4, batch * heads * tiles * (tile_rows * tile_columns * 4 + 16)]


def _efficient_rows_workspace(grad_out: torch.Tensor, query: torch.Tensor, *rest: Any, **_: Any) -> list[int]:
    """The same of tensors that are (batch, tokens, heads, width), which xformers hands over.

    Samples that lie end to end each begin a tile of their own, and the longest one counts for each.
    """
    edges, longest = rest[4], rest[6]
    batch, length = (query.size(0), query.size(1)) if edges is None else (edges.numel() - 1, longest)
    shape = (batch, query.size(2), length, query.size(3))
    return _efficient_backward_workspace(grad_out, torch.empty(shape, dtype=query.dtype, device="meta"))


def efficient_gradients(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any
) -> tuple[torch.Tensor, ...]:
    """What ``_efficient_attention_backward`` returns.  The shape function of torch 2.13 lacks the argument
    ``out``, and takes all behind it for the one before.

    Source: ATen/native/transformers/cuda/attention_backward.cu.
    """
    value, bias, wants_bias = rest[0], rest[1], rest[12]
    if options.get("shared_storage_dqdkdv"):
        joined = query.new_empty((*query.shape[:-2], 3, *query.shape[-2:]))
        gradients = tuple(joined.select(-3, number) for number in range(3))
    else:
        gradients = tuple(each.new_empty(each.shape) for each in (query, key, value))
    if bias is None or not wants_bias:
        return *gradients, grad_out.new_empty(0)
    width = -(-bias.size(-1) // 16) * 16
    return *gradients, bias.new_empty((*bias.shape[:-1], width))[..., : bias.size(-1)]


def flash_workspace(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *rest: Any, **_: Any
) -> list[int]:
    """Bytes that the backward kernel takes and returns: ``softmax_d``, ``dq_accum``;
    per-head dk and dv where heads are grouped.

    Rows are rounded to 128 per sample; without padding their number is the tokens plus 128 for each sample.
    """
    del grad_out
    edges = rest[3]
    heads, width = query.size(-2), query.size(-1)
    rounded = -(-width // 32) * 32 if width <= 192 else 256
    rows = (
        query.size(0) * (-(-query.size(1) // 128) * 128)
        if edges is None
        else query.size(0) + 128 * (edges.numel() - 1)
    )
    sizes = [rows * heads * 4, rows * heads * rounded * 4]
    if key.size(-2) != heads:
        expanded = key.numel() // key.size(-2) * heads * key.element_size()
        sizes += [expanded, expanded]
    return sizes


def cublas_workspace_bytes(compute_capability: str) -> int:
    """What cuBLAS takes at the first product and keeps: 32 MiB from Hopper on,
    8.125 MiB before and on a card that is not known.

    Source: ATen/cuda/CUDABlas.cpp and CublasHandlePool.cpp, ``getChosenWorkspaceSize``:
    4096 KiB twice and 16 KiB eight times.
    """
    major = compute_capability.partition(".")[0]
    return 32 * MIB if major.isdigit() and int(major) >= 9 else 2 * 4 * MIB + 8 * 16 * KIB


def _logsumexp_workspace(tensor: torch.Tensor, dim: Sequence[int], *_: Any, **__: Any) -> list[int]:
    """``maxes``, and ``(self - maxes).exp_()``, a tensor as large as the input.  Source:
    ATen/native/ReduceOps.cpp logsumexp_out_impl.  Left out: what compares ``maxes`` with infinity.
    """
    n_bytes = tensor.numel() * tensor.element_size()
    return [n_bytes // math.prod(tensor.shape[each] for each in dim or range(tensor.dim())), n_bytes]


def _softmax_workspace(grad_out: torch.Tensor, output: torch.Tensor, *_: Any, **__: Any) -> list[int]:
    """``grad * output``.  Source: ATen/native/cuda/SoftMax.cu softmax_backward_cuda_out."""
    del grad_out
    return [output.numel() * output.element_size()]


def _svd_workspace(matrix: torch.Tensor, *_: Any, **__: Any) -> list[int]:
    """A copy in columns, which the solver overwrites.
    What cuSOLVER asks for beside it is not in torch's code, and left out.

    Source: torch 2.13 ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp ``svd_cusolver``
    (cloneBatchedColumnMajor; gesvdj_buffersize).
    """
    return [matrix.nbytes]


PRODUCTS = frozenset(
    getattr(getattr(_aten, name), kind)
    for name in ("mm", "addmm", "bmm", "baddbmm")
    for kind in ("default", "out")
)
"""What cuBLAS computes, with a workspace that it keeps."""
KERNEL_WORKSPACES: dict[Any, Callable[..., list[int]]] = {
    _aten.logsumexp.default: _logsumexp_workspace,
    _aten._softmax_backward_data.default: _softmax_workspace,
    _aten._linalg_svd.default: _svd_workspace,
    _aten._scaled_dot_product_flash_attention_backward.default: _flash_backward_workspace,
    _aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward_workspace,
    _aten._flash_attention_backward.default: flash_workspace,
    _aten._efficient_attention_backward.default: _efficient_rows_workspace,
}
"""Bytes that CUDA kernels take and return inside one operator, by the operator."""
