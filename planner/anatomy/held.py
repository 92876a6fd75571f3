"""What the program's variables hold while a layer runs forward, beside what autograd keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.anatomy.kept_inputs import is_kept
from planner.anatomy.ledger import BlockView, Step
from planner.anatomy.norms import keeps_its_input
from planner.domain.recipe import Number

# Their steps count the tensor that they read themselves.
_COUNT_THEIR_INPUT = ("attn_in", "mlp_in")


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes per token that are alive while the steps of one part of a layer run.

    ``training``: beside what the layer has saved by then.  ``plain``: in a forward that saves nothing, beside the layer's input.
    ``backward``: gradients that wait for the other part.
    """

    training: int
    plain: int
    backward: int = 0


def held_by_parts(view: BlockView) -> tuple[Held, Held]:
    """What is held while attention runs, and while the feed-forward part does.

    A module's arguments live until it returns: what a norm made for a part is there while that part runs, also where the matrices
    keep casts of it.  The sum after the first part is not counted again where the second norm keeps it, nor is the layer's input,
    which belongs to the layer before or to the checkpoint.
    Source: torch 2.13 nn/modules/module.py _call_impl (``args``); transformers 5.23 models/llama/modeling_llama.py.
    """
    if view.block.parallel:
        return _parallel(view)
    stream, out = view.hidden * view.regime.residual, view.hidden * view.regime.norm_out
    if view.block.reads_stream:
        return Held(0, 0), Held(stream, stream)
    first, second = (0 if is_kept(view, reads) else out for reads in _COUNT_THEIR_INPUT)
    between = 0 if keeps_its_input(view) else stream
    return Held(first, out), Held(between + second, stream + out)


def _parallel(view: BlockView) -> tuple[Held, Held]:
    """The same where both parts read the layer's input and are summed at the end.

    The second part runs beside the result of the first; both norms' outputs are there from the start where the code makes both
    first.  Backward: the first part's share of the output's gradient waits, a cast of its own where the stream is fp32; what the
    second part makes of the norm's gradient waits for the first part to add its own.
    Source: transformers 5.23 models/{falcon,phi,gptj,cohere,gpt_neox}/modeling_*.py; torch 2.13 autograd/engine.cpp (nodes run in
    the reverse order of the forward).
    """
    regime = view.regime
    out = view.hidden * regime.norm_out
    first, second = (0 if is_kept(view, reads) else out for reads in _COUNT_THEIR_INPUT)
    plain, waits = out, 0
    if view.shares_norm:
        first = second = min(first, second)
        waits = out
    elif view.block.norms_first:
        first = second = first + second
        plain, waits = 2 * out, out
    result = view.hidden * regime.compute
    return Held(first, plain, waits), Held(second + result, plain + result, result if regime.residual > regime.compute else 0)


def beside(step: Step, held: Held, stream: Number) -> Step:
    """``step``, which counts the ``stream``, with what is ``held`` in its place."""
    counted = step.name in _COUNT_THEIR_INPUT
    plain = step.saves + step.forward if step.plain is None else step.plain
    return replace(
        step,
        forward=step.forward - stream + (0 if counted else held.training),
        plain=plain - stream + (0 if counted else held.plain),
        backward=step.backward + held.backward,
        moments=tuple(replace(moment, features=moment.features + held.backward) for moment in step.moments),
    )
