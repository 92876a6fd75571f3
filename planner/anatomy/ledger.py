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
class Moment:
    """Bytes alive at one moment: ``features`` per token, and ``fixed``."""

    features: Number
    fixed: Number = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a layer.

    ``saves`` bytes per token stay until the step's backward; ``forward`` and ``backward`` are the other bytes per token alive
    while it runs.  ``pair_*`` are the same per token and key, ``fixed_*`` do not depend on tokens (dequantised weights).
    ``gradients`` are bytes of weight gradients that its backward makes, ``largest_gradient`` the most that one of them adds.
    ``released``, ``fixed_released``: of all in its backward, what has gone when the last of its gradients comes.
    ``plain``: bytes per token alive while it runs in a forward that keeps nothing, where that is not ``saves`` and ``forward``.
    ``moments``: where the backward has several, each with what it has of ``backward`` and ``fixed_backward``, which then are 0.
    ``unrebuilt``: of ``forward``, what comes after its last saved tensor, which a layer that is rebuilt does not make at its end.
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
    gradients: Number = 0
    largest_gradient: Number = 0
    released: Number = 0
    fixed_released: int = 0
    plain: Number | None = None
    unrebuilt: Number = 0
    moments: tuple[Moment, ...] = ()

    @property
    def backward_moments(self) -> tuple[Moment, ...]:
        """All moments of its backward."""
        return self.moments or (Moment(self.backward, self.fixed_backward),)


@dataclass(frozen=True, slots=True, eq=False)
class BlockView:
    """Everything that decides the ledger of a layer.

    ``padded`` says whether an attention mask exists, because of padding or of a window that the sequence reaches, which switches
    grouped-query kernels to expanded keys and values.
    ``is_first``: the layer's input needs no gradient, because nothing before it is trained.
    ``single``: a micro-batch is one sample, so that heads are batches of products without a copy.
    Views are equal when their ledgers are: of the recipe only method, dtypes, adapters, attention kernel and kind of
    checkpointing count.
    """

    block: BlockSpec
    hidden: int
    regime: Regime
    recipe: Recipe
    stack: Stack
    padded: bool
    is_first: bool = False
    single: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockView) and self._settings() == other._settings()

    def __hash__(self) -> int:
        recipe, mlp = self.recipe, self.block.mlp
        return hash((self.hidden, mlp.width, mlp.n_experts, recipe.method, recipe.numerics, recipe.adapter, recipe.attention))

    def _settings(self) -> tuple[object, ...]:
        recipe = self.recipe
        of_recipe = (recipe.method, recipe.numerics, recipe.adapter, recipe.attention, recipe.checkpoint_reentrant)
        return (self.block, self.hidden, self.regime, self.stack, self.padded, self.is_first, self.single, *of_recipe)

    @property
    def is_one_scenario(self) -> bool:
        """Whether all numbers of the ledger are plain; on a grid the rank is an array."""
        adapter = self.recipe.adapter
        return adapter is None or isinstance(adapter.rank, int | float)

    @property
    def trains_base(self) -> bool:
        """Whether the block's own matrices are trained."""
        return self.recipe.method == "full"

    def adapted(self, linear: LinearSpec) -> bool:
        """Whether LoRA adapts this matrix."""
        adapter = self.recipe.adapter
        return adapter is not None and is_adapted(linear, adapter.targets)

    def needs_gradient(self, linear: LinearSpec) -> bool:
        """Whether what this matrix reads needs a gradient; norms of the first layer's input make nothing that does.

        Source: torch 2.13 derivatives.yaml, ``linear`` and ``native_layer_norm`` save for the gradients that are asked for.
        """
        reads_input = linear.reads == "attn_in" or (self.block.parallel and linear.reads == "mlp_in")
        return not (self.is_first and reads_input)

    def quantized(self, linear: LinearSpec) -> bool:
        """Whether this matrix is stored in 8 or 4 bits."""
        return self.regime.quantized and is_quantizable(linear, self.stack.skips_experts)

    def merged(self, linear: LinearSpec) -> bool:
        """Whether the adapter is added to the weight itself, which PEFT does for tensors that are no module of their own.

        Unsloth takes such adapters apart again: unsloth_zoo 2026.10.9 temporary_patches/moe_utils.py.
        """
        return linear.kind == "parameter" and linear.group == "expert" and self.stack.skips_experts and self.adapted(linear)

    @property
    def expert_bytes(self) -> int:
        """Bytes per element inside routed experts.

        Grouped products have the dtype of their weights, also under autocast.  Source: transformers 5.23 integrations/moe.py
        _grouped_mm.
        """
        return self.regime.base if self.stack.fused_experts else self.regime.linear_out

    @property
    def shares_norm(self) -> bool:
        """Whether one norm feeds both branches (Phi, Falcon-7B, GPT-J, Cohere)."""
        return self.block.parallel and sum(norm.copies for norm in self.block.norms if norm.on == "hidden") == 1
