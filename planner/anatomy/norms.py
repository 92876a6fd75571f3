"""What a norm keeps for backward, and what lives only while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from planner.anatomy.ledger import BlockView
from planner.domain.model import NormSpec


@dataclass(frozen=True, slots=True)
class NormAmounts:
    """Bytes per token that one norm ``saves``, and the others alive in its ``forward`` and ``backward``.

    ``fixed_saves`` are bytes that it keeps whatever the tokens.
    """

    saves: int
    forward: int
    backward: int
    fixed_saves: int = 0


def keeps_its_input(view: BlockView) -> bool:
    """Whether norms of the stream keep it as it is: neither a wider copy nor the centred values.

    Source: as for :func:`norm_amounts`.
    """
    kinds = [norm for norm in view.block.norms if norm.on == "hidden"]
    if not kinds or any(norm.scaling == "centred" for norm in kinds):
        return False
    wide = view.regime.residual == 4 or not view.regime.autocast
    return view.regime.residual == 4 or view.stack.fused_norm or (wide and all(norm.kind == "layer" for norm in kinds))


def norm_amounts(view: BlockView, norm: NormSpec, in_bytes: int) -> NormAmounts:
    """Bytes of one norm (of its ``copies``) over features of ``in_bytes`` each.

    ``nn.LayerNorm`` keeps its input, upcast first under autocast, and two statistics per row (in fp32, as on CUDA).  One written
    out keeps its input for the variance, the centred input for the division, one statistic, and the quotient if its weight is
    trained; backward adds the gradients of the quotient, of the centred input and of the variance's input.  A fused RMS
    norm keeps its input and one statistic.  One written in Python keeps the fp32 input (the input itself when that is fp32), one
    statistic, and what its weight multiplies if that is trained: in the input's dtype (``cast``) or fp32; Gemma and Cohere also
    keep the fp32 weight that they compute, Cohere the centred input twice.
    Source: transformers 5.23 models/{llama,olmo2,gemma,cohere}/modeling_*.py; rasbt/LLMs-from-scratch ch05 00_orig.py LayerNorm.
    """
    regime = view.regime
    width, rows = norm.width * norm.rows_per_token, norm.rows_per_token
    out = width * regime.norm_out
    if norm.kind == "layer" and norm.scaling == "cast":
        kept_bytes = 4 if regime.autocast else in_bytes
        return NormAmounts(width * kept_bytes + 8 * rows, out, out + 4 * width)
    if norm.scaling == "operators":
        kept = width * in_bytes * (3 if view.trains_base else 2)
        return NormAmounts(kept + in_bytes * rows, out + width * in_bytes, out + 3 * width * in_bytes)
    if view.stack.fused_norm:
        return NormAmounts(width * in_bytes + 4 * rows, out, out + width * in_bytes)
    inputs = 2 if norm.scaling == "centred" else 1
    scaled = in_bytes if norm.scaling == "cast" else 4
    saves = width * 4 * inputs + 4 * rows + (width * scaled if view.trains_base else 0)
    computes_weight = norm.scaling == "one_plus" or (norm.scaling == "centred" and regime.norm_weight < 4)
    # While it runs: the fp32 product, its cast and the output; backward: three fp32 tensors of this width at once.
    return NormAmounts(saves, width * (4 + in_bytes) + out, out + 12 * width, 4 * norm.width if computes_weight else 0)
