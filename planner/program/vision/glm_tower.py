"""GLM's tower: a norm and interpolated positions before the layers; behind them a norm, a convolution that
makes one token of several patches, and a projector with a gated part.

Source: transformers 5.23 models/glm4v/modeling_glm4v.py Glm4vVisionModel, Glm4vVisionEmbeddings,
Glm4vVisionPatchMerger.
Ignored: places in the table, a few numbers for each patch.
"""

from __future__ import annotations

from planner.program.layers.activations import gated
from planner.program.layers.norms import norm
from planner.program.ops.autograd import record, save
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.vision.tower_parts import SeeingView, convolution
from planner.program.weights.matrices import linear


def placed(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """The stream behind a norm, with positions that are interpolated in fp32."""
    view = seeing.entry
    x = norm(torch, view, view.block.norms[0], x)
    wide = _positions(torch, view, seeing.tower.width)
    return torch.add(x, torch.to(wide, view.dtypes.base))


def _positions(torch: Operators, view: LayerView, width: int) -> Tensor:
    """``grid_sample`` of the whole table, which saves it."""
    with torch.inside("embeddings"):
        count, dtype = view.block.extra_params, view.dtypes.base
        table = torch.to(torch.parameter(Unit.ONE, count, dtype, trained=view.trains_base), "fp32")

        def backward(*_: object) -> list[Tensor | None]:
            return [torch.new(Unit.ONE, count, "fp32", "grid_sampler_backward")]

        rows = torch.new(Unit.PATCHES, width, "fp32", "grid_sampler")
        return record(torch, rows, [table], save(torch, [table], [table]), backward)


def downsampled(torch: Operators, seeing: SeeingView, x: Tensor) -> Tensor:
    """Tokens of patches.  The tower also returns what the convolution made."""
    view = seeing.projector
    first, *gates, last = view.block.linears[1:]
    x = norm(torch, seeing.entry, seeing.tower.behind[0], x)
    with torch.inside("downsample"):
        x = convolution(torch, view, x)
    torch.shared["last_hidden_state"] = x.alias()
    with torch.inside("merger"):
        out = linear(torch, view, first, x)
        out = torch.kernel(norm(torch, view, view.block.norms[0], out), "gelu")
        return linear(torch, view, last, gated(torch, view, (gates[0], gates[1]), out))
