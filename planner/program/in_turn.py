"""What a GPU of one process does where the layers before or behind its own are on other GPUs.

Hooks bring each module's inputs to its GPU: what layers hand on, and the masks anew for each layer.  The
logits go to the first GPU, where the batch came from.
Source: accelerate 1.15 hooks.py AlignDevicesHook.pre_forward, post_forward (``io_same_device``),
big_modeling.py dispatch_model; torch 2.13 ToCopyBackward0 in tools/autograd/derivatives.yaml.
Ignored: copies of rotary tables, as the tables themselves; that of the stream on the GPU of these tables,
which goes at once; that a checkpointed first layer saves its input where it came from.
"""

from __future__ import annotations

from planner.domain.recipes.parallel import NORM
from planner.program.head.ends import EndsView, last_norm, returned
from planner.program.head.inputs import make_masks
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Node, Tensor, Unit
from planner.program.recorded_part import Shape


def arrived(torch: Operators, ends: EndsView, entry: Shape) -> Tensor:
    """The stream of the GPU before, whose gradient goes back to it; and the masks, of which layers make
    copies.
    """
    make_masks(torch, ends.masked)
    stream = torch.new(entry.unit, entry.count, entry.dtype, "to")
    if torch.grad_enabled:
        stream.node = Node("to", torch.n_nodes, lambda *_: [])
        torch.n_nodes += 1
    return stream


def left(ends: EndsView, torch: Operators, x: Tensor) -> Tensor:
    """The stream goes to the GPU behind, which sends its gradient back.  On the first GPU the logits come
    before it.
    """
    stage = ends.model.stage
    assert stage is not None
    passed = [x]
    del x
    if stage.has(NORM):
        passed = [last_norm(torch, ends, passed)]
    else:
        torch.shared.clear()
    gone = gone_to_next(torch, ends, passed)
    torch.enter("forward_out")
    if stage.rank == 0:
        returned(torch, ends, [_logits(torch, ends)])
    return gone


def gone_to_next(torch: Operators, ends: EndsView, passed: list[Tensor]) -> Tensor:
    """What is left of a tensor that was copied to another GPU: a checkpointed layer there saves it."""
    kept = passed if ends.layer.recipe.gradient_checkpointing else []
    out = Tensor(None, Unit.ONE, 1, passed[0].dtype)
    unit, count, dtype = passed[0].unit, passed[0].count, passed[0].dtype
    record(torch, out, passed, kept, lambda *_: [torch.new(unit, count, dtype, "to", cost=None)])
    passed.clear()
    return out


def came_back(torch: Operators, ends: EndsView, passed: list[Tensor]) -> list[Tensor]:
    """What a head reads that is tied to the table of the first GPU: the output of a norm on another one."""
    stage = ends.model.stage
    if stage is None or not stage.in_turn or stage.has(NORM) or not stage.chunks[0]:
        return passed
    return [torch.same(passed.pop(), "to")]


def _logits(torch: Operators, ends: EndsView) -> Tensor:
    model = ends.model
    wide = ends.widens_logits or model.wide_logits
    dtype = "fp32" if wide else ends.head.dtypes.compute
    return torch.new(Unit.TOKENS, model.head.out_features, dtype, "to")
