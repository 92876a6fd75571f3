"""One decoder layer: where its norms stand, and how attention and feed-forward part are added to the stream.

Source: transformers 5.23 models/*/modeling_*.py, the ``forward`` of each decoder layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from planner.domain.model import BlockSpec, NormSpec
from planner.program.checkpoint import checkpointed, checkpointed_reentrant
from planner.program.layers.attention.attention import attention
from planner.program.layers.feed_forward import feed_forward, inline_feed_forward
from planner.program.layers.layer_inputs import add_layer_input, of_whole_layer
from planner.program.layers.megatron.layer import megatron_layer
from planner.program.layers.mixers import mixer
from planner.program.layers.mixture.experts import beside_dense
from planner.program.layers.norms import norm
from planner.program.layers.streams import layer_of_streams
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit, keep
from planner.program.view import LayerView
from planner.program.weights.matrices import dropout

Part = Callable[[Operators, LayerView, Tensor], Tensor]


def layer(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """The stream after one layer."""
    if view.stack.model_code == "megatron-core":
        return megatron_layer(torch, view, x)
    torch.flat = view.block.attention.pieces != "none"
    trained = view
    if view.trains_mlp_only:
        # Norms and attention run as those of a frozen layer.
        view = replace(view, trains_base=False)
    if view.block.parallel:
        return _parallel(torch, view, trained, x)
    if view.block.streams > 1:
        return layer_of_streams(torch, view, x)
    kept: list[Tensor] = []
    if view.block.layer_inputs_width:
        x = of_whole_layer(torch, x, kept)
    passed = [x]
    del x
    return _in_turn(torch, view, trained, passed, kept)


def _in_turn(
    torch: Operators, view: LayerView, trained: LayerView, passed: list[Tensor], kept: list[Tensor]
) -> Tensor:
    """One part after the other, each added to the stream; ``passed`` holds that, and is emptied."""
    before, x = _norms_around(view)[0], passed.pop()
    normed: Tensor | None = None
    for number, part in enumerate(_parts_of(view.block)):
        until, inline = view.block.keeps_normed[number], view.block.inline_mlp and part is feed_forward
        residual = x = torch.reshaped(x, is_view=True) if inline else x
        if before:
            seen = torch.to(x, view.dtypes.norm) if view.block.wide_stream else x
            x = _normed(torch, view, before[number], seen, f"norm {number}")
            del seen
        if view.block.wide_stream:
            residual = torch.to(residual, "fp32")
        if until == "layer":
            kept.append(x)
        normed, passed = None if until == "part" else x, [x]
        del x
        if inline:
            passed.append(inline_feed_forward(torch, trained, passed))
        else:
            passed.append(_wrapped(torch, trained if part is feed_forward else view, part, passed.pop()))
        if part is feed_forward and view.block.mlp.router == "beside":
            passed.append(beside_dense(torch, view, passed.pop(), residual, _norms_of(view)[4:]))
        x = _branch(torch, view, number, passed, kept)
        x = torch.add(residual, torch.same(x, "mul") if view.block.scales_branches else x)
        torch.summed.clear()
        if until == "sum":
            normed = None
        x = torch.reshaped(x, is_view=True) if inline else x
        if view.block.norms_sums:
            x = _normed(torch, view, _norms_around(view)[1][number], x, f"norm {number + 2}")
    del normed
    width = view.block.layer_inputs_width
    return add_layer_input(torch, view, _norms_of(view)[4], x, kept) if width else x


def _branch(
    torch: Operators, view: LayerView, number: int, passed: list[Tensor], kept: list[Tensor]
) -> Tensor:
    """What a part adds to the stream, from what it returned; ``passed`` holds that, and is emptied."""
    x, behind = passed.pop(), _norms_around(view)[1]
    if view.block.keeps_attended and not number:
        kept.append(x)
    x = _dropped(torch, view, x)
    if behind and not view.block.norms_sums:
        x = _normed(torch, view, behind[number], x, f"norm {number + 2}")
    if view.block.weighs_branches:
        # A variable refers to the product with a vector: transformers 5.23 models/internvl.
        count = view.block.extra_params / 2
        vector = torch.parameter(Unit.ONE, count, view.dtypes.base, trained=view.trains_base)
        x = torch.mul(vector, x)
        kept.append(x)
    return x


def _dropped(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """What a part returned, behind the model's own dropout where it stands outside the part."""
    return dropout(torch, x) if view.block.dropouts and not view.block.drops_inside else x


def _norms_around(view: LayerView) -> tuple[list[NormSpec], list[NormSpec]]:
    """The norms before both parts, and those behind them."""
    norms = _norms_of(view)
    return ([], norms) if view.block.reads_stream else (norms[:2], norms[2:])


def _parts_of(block: BlockSpec) -> list[Part]:
    """What mixes tokens and the feed-forward part, or one of the two where the layer has one norm."""
    first = attention if block.mixer is None else _both if block.attends else mixer
    if sum(norm.copies for norm in block.norms if norm.on == "hidden") > 1:
        return [first, feed_forward]
    return [first] if block.attends or block.mixer is not None else [feed_forward]


def _both(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """A mixer and attention side by side, whose inputs and outputs are multiplied by numbers.

    Source: transformers 5.23 models/falcon_h1/modeling_falcon_h1.py FalconH1DecoderLayer.
    """
    mixed = torch.same(mixer(torch, view, x), "mul")
    attended = torch.same(attention(torch, view, torch.same(x, "mul")), "mul")
    # Variables of the layer.
    torch.returned += [mixed, attended]
    return torch.add(mixed, attended)


def _normed(torch: Operators, view: LayerView, spec: NormSpec, x: Tensor, name: str) -> Tensor:
    return _wrapped(torch, view, lambda torch, view, x: norm(torch, view, spec, x, name), x)


def _wrapped(torch: Operators, view: LayerView, part: Part, x: Tensor) -> Tensor:
    """One part of a layer, checkpointed by itself where the stack does so.

    Source: nemo_automodel components/distributed/parallelizer.py (``checkpoint_wrapper`` of norms,
    attention and MLP); axolotl 0.19.0 monkeypatch/accelerate/fsdp2.py fsdp2_prepare_model wraps layers
    whose children accelerate 1.15 utils/fsdp_utils.py fsdp2_apply_ac has wrapped.
    Ignored: layers whose two parts run side by side, which are not wrapped.
    """
    if not (view.wraps_parts or view.wraps_parts_again):
        return part(torch, view, x)
    again = checkpointed_reentrant if view.recipe.checkpoint_reentrant else checkpointed
    if part in (attention, mixer, _both) and not view.recipe.checkpoint_reentrant:
        x = _by_name(torch, x)
    return again(torch, partial(part, torch, view), x)


def _by_name(torch: Operators, x: Tensor) -> Tensor:
    """``x`` as an argument with a name, which a checkpoint that is not reentrant keeps as it is: one around
    it does not see it, and it lives as long as the part's graph.

    Source: torch 2.13 utils/checkpoint.py _checkpoint_without_reentrant_generator (``input_saver`` gets a
    dictionary of such arguments); transformers 5.23 models/llama/modeling_llama.py LlamaDecoderLayer.forward.
    """
    return record(torch, x.alias(), [x], [keep(x.alias())], lambda _, gradient: [gradient])


def _parallel(torch: Operators, view: LayerView, trained: LayerView, x: Tensor) -> Tensor:
    """Both parts read the layer's input, through one norm or one each, and are summed at the end."""
    norms = _norms_of(view)
    if len(norms) > 1 and not view.block.norms_first:
        attended = _dropped(torch, view, attention(torch, view, norm(torch, view, norms[0], x)))
        fed = _dropped(torch, view, feed_forward(torch, trained, norm(torch, view, norms[1], x, "norm 1")))
        return _sum(torch, view, x, attended, fed)
    first = second = norm(torch, view, norms[0], x)
    if view.block.norms_first:
        second = norm(torch, view, norms[1], x, "norm 1")
    attended = _dropped(torch, view, attention(torch, view, first))
    fed = _dropped(torch, view, feed_forward(torch, trained, second))
    return _sum(torch, view, x, attended, fed)


def _sum(torch: Operators, view: LayerView, x: Tensor, attended: Tensor, fed: Tensor) -> Tensor:
    """The stream and both branches, in the order of the code; Falcon adds the branches in place."""
    if view.block.branch_sum == "stream":
        return torch.add(torch.add(x, attended), fed)
    if view.block.branch_sum == "in_place":
        return torch.add(x, torch.add_in_place(fed, attended))
    return torch.add(torch.add(attended, fed), x)


def _norms_of(view: LayerView) -> list[NormSpec]:
    """The norms over the stream, in the order in which they run."""
    return [spec for spec in view.block.norms if spec.on == "hidden" for _ in range(spec.copies)]
