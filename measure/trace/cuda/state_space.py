"""The fused kernel of Mamba 2 layers: what the packages mamba-ssm and causal-conv1d allocate.

Both need a GPU to import.  Without them Transformers runs plain torch, which is another program.
Source: mamba-ssm 2.3.2 mamba_ssm/ops/triton/ssd_combined.py (MambaSplitConv1dScanCombinedFn,
_mamba_chunk_scan_combined_fwd and _bwd), ssd_chunk_state.py, ssd_chunk_scan.py, ssd_state_passing.py,
layernorm_gated.py; causal-conv1d 1.6 cpp_functions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

# Blocks that a chunk and a state are divided into, at least.
_CHUNK_BLOCK, _STATE_BLOCK = 32, 64


@dataclass(frozen=True, slots=True)
class ScanShape:
    """How one call is cut: sizes of a batch, heads, groups of heads, states and chunks;
    ``multiprocessors`` of the card.
    """

    batch: int
    length: int
    heads: int
    head_dim: int
    groups: int
    state: int
    chunk: int
    multiprocessors: int

    @property
    def width(self) -> int:
        """Features of all heads."""
        return self.heads * self.head_dim

    @property
    def n_chunks(self) -> int:
        """Chunks of a sample."""
        return -(-self.length // self.chunk)

    @property
    def splits(self) -> int:
        """Parts in which the heads of a group are summed: as many as keep all multiprocessors busy."""
        in_group = self.heads // self.groups
        each = max(min(-(-self.batch * self.n_chunks * self.heads // self.multiprocessors), in_group), 1)
        return -(-in_group // each)

    def numbers(self, like: torch.Tensor, *blocks: int) -> torch.Tensor:
        """One fp32 number for each head and position, of each of ``blocks``."""
        return like.new_empty(self.batch, self.heads, self.n_chunks, *blocks, self.chunk, dtype=torch.float32)

    def states(self, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The state of each head before each chunk."""
        return like.new_empty(self.batch, self.n_chunks, self.heads, self.head_dim, self.state, dtype=dtype)

    def last_states(self, like: torch.Tensor) -> torch.Tensor:
        """The state of each head behind the last chunk."""
        return like.new_empty(self.batch, self.heads, self.head_dim * self.state, dtype=torch.float32)

    def scores(self, like: torch.Tensor, *splits: int) -> torch.Tensor:
        """C times B for each pair of positions of a chunk."""
        return like.new_empty(
            self.batch, self.n_chunks, *splits, self.groups, self.chunk, self.chunk, dtype=torch.float32
        )


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """What the convolution can read: rows that begin at multiples of eight elements."""
    return x if x.stride(1) % 8 == 0 else x.contiguous()


def _convolved(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(_aligned(x).transpose(1, 2)).transpose(1, 2)


def _scanned(shape: ScanShape, x: torch.Tensor, *, gated: bool) -> tuple[torch.Tensor, ...]:
    """The output, that before the gate where the kernel has one, and what else the caller refers to."""
    steps, decays = shape.numbers(x), shape.numbers(x)
    states = shape.states(x, torch.float32)
    states, last = shape.states(x, x.dtype), shape.last_states(x)
    _scores = shape.scores(x)
    out = x.new_empty(shape.batch, shape.length, shape.width)
    return out, torch.empty_like(out) if gated else out, steps, decays, states, last


def _norm_gradients(
    shape: ScanShape, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the gated norm's input and weight; that of the gate is written into what the caller made."""
    of_x = torch.empty_like(x)
    group = shape.width // shape.groups
    block = min(65536 // x.element_size(), 1 << (group - 1).bit_length())
    warps = min(max(block // 256, 1), 8)
    rows = -(-shape.multiprocessors * -(-4 // warps) // shape.groups)
    partial = weight.new_empty(rows, shape.width, dtype=torch.float32)
    return of_x, partial.sum(0).to(weight.dtype)


def _gate_gradients(shape: ScanShape, x: torch.Tensor, skip: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of the scan's output and what skips it, and the gated output again."""
    blocks = -(-shape.chunk // _CHUNK_BLOCK)
    of_skip = x.new_empty(blocks, shape.batch, shape.n_chunks, shape.heads, 1, dtype=torch.float32)
    out, gradient = (x.new_empty(shape.batch, shape.length, shape.width) for _ in range(2))
    return gradient, of_skip.sum((0, 1, 2)).sum(-1).to(skip.dtype), out


def _passed_back(
    shape: ScanShape, states: torch.Tensor, of_states: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Gradients of states and decays between chunks, and the states in the dtype of the products."""
    gradients = torch.empty_like(of_states, dtype=dtype)
    narrow = torch.empty_like(states, dtype=dtype) if states.dtype != dtype else states
    blocks = -(-shape.head_dim * shape.state // _STATE_BLOCK)
    decays = states.new_empty(shape.batch, shape.heads, shape.n_chunks, blocks)
    return gradients, decays.sum(-1), narrow


def _of_shared(shape: ScanShape, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of decays, and of B or C, summed over the parts of each group."""
    decays = shape.numbers(x)
    parts = x.new_empty(
        shape.batch, shape.length, shape.splits, shape.groups, shape.state, dtype=torch.float32
    )
    return decays, parts.sum(2)


def _scan_gradients(
    shape: ScanShape, x: torch.Tensor, step: torch.Tensor, skip: torch.Tensor, *, gated: bool
) -> tuple[torch.Tensor, ...]:
    """Of steps, decays and what skips the scan; those of x, B,
    C and gate are written into what the caller made.

    With a gate the gated output comes last, computed again.  Variables live until the function returns,
    as in the kernel's own backward pass.
    """
    _raw = step.clone()
    _steps, _decays = shape.numbers(x), shape.numbers(x)
    scores = shape.scores(x)
    states = shape.states(x, torch.float32)
    states, _last = shape.states(x, torch.float32), shape.last_states(x)
    gate = _gate_gradients(shape, x, skip) if gated else ()
    of_states = shape.states(x, torch.float32)
    of_states, between, states = _passed_back(shape, states, of_states, x.dtype)
    blocks = -(-shape.chunk // _CHUNK_BLOCK)
    of_skip = x.new_zeros(blocks, shape.batch, shape.n_chunks, shape.heads, 1, dtype=torch.float32)
    _of_steps = shape.numbers(x)
    of_skip = of_skip.sum((0, 1, 2)).sum(-1).to(skip.dtype)
    after, _of_b = _of_shared(shape, x)
    torch.cumsum(after, -1, out=after)
    before, _of_c = _of_shared(shape, x)
    _of_scores = shape.scores(x, shape.splits).sum(2).to(scores.dtype)
    _earlier = before.flip([-1]).cumsum(-1).flip([-1])
    _of_decays = shape.numbers(x, blocks).sum(3)
    _both = torch.empty_like(after)  # a sum, which the recorder would take for one of autograd's own
    del _both, between
    of_bias, of_a = (x.new_empty(shape.heads, dtype=torch.float32) for _ in range(2))
    return (of_bias, of_a, gate[1] if gate else of_skip, *gate[2:])


class SplitScan(torch.autograd.Function):
    """Convolution, scan, gate or gated norm, and output projection, from the product of the input projection.

    Weights: of the convolution with its bias, steps' bias, A, D, of the norm,
    of the output projection with its bias.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def forward(ctx: Any, shape: ScanShape, joined: torch.Tensor, *weights: Any) -> torch.Tensor:
        """Saved are the product, the weights and the scan's output; the convolution is computed again."""
        *others, norm, matrix, bias = weights
        convolved = _convolved(_parts_of(shape, joined)[0])
        out, scanned, *_kept = _scanned(shape, convolved, gated=norm is None)
        rstd = None
        if norm is not None:
            out = torch.empty_like(scanned)
            rstd = out.new_empty(shape.groups * shape.batch * shape.length, dtype=torch.float32)
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            out, matrix = out.to(dtype), matrix.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        out = functional.linear(out, matrix, bias)
        ctx.shape = shape
        ctx.save_for_backward(joined, *others, scanned, norm, rstd, matrix, bias)
        return out

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Every gradient is made, whether it is needed or not."""
        shape: ScanShape = ctx.shape
        joined, conv, conv_bias, _bias, _a, skip, scanned, norm, _rstd, matrix, bias = ctx.saved_tensors
        (gradient,) = gradients
        out = torch.empty_like(scanned)
        parts, step = _parts_of(shape, joined)
        x = _convolved(parts)
        of_joined = torch.empty_like(joined)
        of_parts = torch.empty(parts.shape, dtype=parts.dtype, device=parts.device)
        of_out = functional.linear(gradient, matrix.t())
        of_norm = None
        if norm is not None:
            _of_scan, of_norm = _norm_gradients(shape, scanned, norm)
        of_bias, of_a, of_skip, *again = _scan_gradients(shape, x, step, skip, gated=norm is None)
        of_matrix = torch.einsum("bso,bsd->od", gradient, again[0] if again else out)
        of_out_bias = None if bias is None else gradient.sum((0, 1))
        of_conv = torch.zeros_like(conv, dtype=torch.float32)
        of_conv_bias = None if conv_bias is None else torch.zeros_like(conv_bias, dtype=torch.float32)
        of_conv = of_conv.type_as(conv)
        of_conv_bias = None if of_conv_bias is None else of_conv_bias.type_as(conv_bias)
        del of_parts, of_out
        return None, of_joined, of_conv, of_conv_bias, of_bias, of_a, of_skip, of_norm, of_matrix, of_out_bias


def _parts_of(shape: ScanShape, joined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is convolved, behind the gate, and the steps."""
    return joined[..., shape.width : -shape.heads], joined[..., -shape.heads :]


def split_scan(multiprocessors: int) -> Callable[..., torch.Tensor]:
    """``mamba_split_conv1d_scan_combined`` on a card with so many ``multiprocessors``."""

    def scan(
        joined: torch.Tensor,
        conv: torch.Tensor,
        conv_bias: Any,
        bias: torch.Tensor,
        a: torch.Tensor,
        **given: Any,
    ) -> torch.Tensor:
        skip, groups = given["D"], given["ngroups"]
        heads, head_dim = skip.shape[0], given["headdim"]
        state = (conv.shape[0] - heads * head_dim) // groups // 2
        shape = ScanShape(
            joined.shape[0],
            joined.shape[1],
            heads,
            head_dim,
            groups,
            state,
            given["chunk_size"],
            multiprocessors,
        )
        last = (given["rmsnorm_weight"], given["outproj_weight"], given["outproj_bias"])
        inputs = (joined, conv, conv_bias, bias, a, skip, *last)
        out: torch.Tensor = SplitScan.apply(shape, *inputs)  # type: ignore[no-untyped-call]
        return out

    return scan
