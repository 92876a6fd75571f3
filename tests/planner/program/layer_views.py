"""Views of small layers, for tests of what a part of one allocates: 64 features, 128 between matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockSpec, LinearSpec, MlpSpec, NormSpec
from planner.program.view import LayerView
from tests.planner.program.matrix_runs import view_of

HIDDEN, WIDTH = 64, 128
GATED = (
    LinearSpec("gate_proj", "mlp", HIDDEN, WIDTH, "mlp_in"),
    LinearSpec("up_proj", "mlp", HIDDEN, WIDTH, "mlp_in"),
    LinearSpec("down_proj", "mlp", WIDTH, HIDDEN, "mlp_mid"),
)
PLAIN = (
    LinearSpec("fc1", "mlp", HIDDEN, WIDTH, "mlp_in"),
    LinearSpec("fc2", "mlp", WIDTH, HIDDEN, "mlp_mid"),
)
FUSED = (LinearSpec("gate_up_proj", "mlp", HIDDEN, 2 * WIDTH, "mlp_in"), GATED[2])
ATTENTION = AttentionSpec(1, 1, HIDDEN, HIDDEN, position="none")
PROJECTIONS = (
    *(LinearSpec(name, "attention", HIDDEN, HIDDEN, "attn_in") for name in ("query", "key", "value")),
    LinearSpec("out", "attention", HIDDEN, HIDDEN, "attn_out"),
)


def norms_of(copies: int, **changes: Any) -> tuple[NormSpec, ...]:
    """So many RMS norms over the stream."""
    return (NormSpec("rms", HIDDEN, copies, **changes),)


def layer_of(method: str, mlp: MlpSpec, linears: tuple[LinearSpec, ...], **changes: Any) -> LayerView:
    """A layer of these matrices under ``method`` in bf16; ``changes``: of the block, or as for a matrix."""
    of_block = {name: value for name, value in changes.items() if hasattr(BlockSpec, name)}
    others = {"base": "bf16", "norm": "bf16", "autocast": False}
    others |= {name: value for name, value in changes.items() if name not in of_block}
    block = BlockSpec(
        ATTENTION, mlp, (*PROJECTIONS, *linears), of_block.pop("norms", norms_of(2)), **of_block
    )
    return replace(view_of(method, **others), block=block)
