"""The vocabulary of a layer's ledger: one step, and the view of a layer that decides its amounts."""

from __future__ import annotations

from dataclasses import dataclass

from planner.anatomy.adapters import is_adapted
from planner.anatomy.parameters import is_quantizable
from planner.anatomy.regime import Regime
from planner.domain.model import BlockSpec, LinearSpec
from planner.domain.recipe import Number, Recipe
from planner.domain.stack import Stack


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a layer.

    ``saves`` bytes per token stay until the step's backward; ``forward`` and ``backward`` are the other bytes per token alive
    while it runs.  ``pair_*`` are the same per token and key, ``fixed_*`` do not depend on tokens (dequantised weights).
    """

    name: str
    saves: Number
    forward: Number
    backward: Number
    pair_saves: Number = 0
    pair_forward: Number = 0
    pair_backward: Number = 0
    fixed_saves: Number = 0
    fixed_forward: Number = 0
    fixed_backward: Number = 0


@dataclass(frozen=True, slots=True)
class BlockView:
    """Everything that decides the ledger of a layer.

    ``padded`` says whether an attention mask exists, which switches grouped-query kernels to expanded keys and values.
    """

    block: BlockSpec
    hidden: int
    regime: Regime
    recipe: Recipe
    stack: Stack
    padded: bool

    @property
    def trains_base(self) -> bool:
        """Whether the block's own matrices are trained."""
        return self.recipe.method == "full"

    def adapted(self, linear: LinearSpec) -> bool:
        """Whether LoRA adapts this matrix."""
        adapter = self.recipe.adapter
        return adapter is not None and is_adapted(linear, adapter.targets)

    def quantized(self, linear: LinearSpec) -> bool:
        """Whether this matrix is stored in 8 or 4 bits."""
        return self.regime.quantized and is_quantizable(linear, self.stack.fused_experts)

    @property
    def shares_norm(self) -> bool:
        """Whether one norm feeds both branches (Phi, Falcon-7B, GPT-J, Cohere)."""
        return self.block.parallel and sum(norm.copies for norm in self.block.norms if norm.on == "hidden") == 1
