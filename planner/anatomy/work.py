"""How much arithmetic a model needs per token: multiply-accumulates by pass, attention pairs, adapters.

One multiply-accumulate (MAC) is 2 FLOP.  Counts are exact integers of the shapes; the numbers of a recipe
(batch, length, rank) enter only where FLOP are formed, so one cached :class:`Work` answers a whole grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from planner.anatomy.adapters import is_adapted
from planner.anatomy.trained import LayerPasses, ModelPasses
from planner.arrays import minimum, where
from planner.domain.model import BlockSpec, LinearSpec, ModelSpec
from planner.domain.recipes.recipe import Number, Recipe

FLOP_PER_MAC = 2

Pairs = Literal["square", "triangle", "band"]
"""Which token-key pairs an attention kernel computes: all; the causal half;
the causal half inside the window.
"""


@dataclass(frozen=True, slots=True)
class WorkKey:
    """The categorical settings that decide which products are computed;
    hashable also when numeric axes are arrays.

    ``targets`` is ``None`` without LoRA.  ``selective``: a checkpoint keeps what every second product
    returns.  ``passes``: those of each layer where only some are trained.
    """

    targets: tuple[str, ...] | None
    modules_to_save: tuple[str, ...]
    checkpointing: bool
    reentrant: bool
    selective: bool = False
    passes: ModelPasses | None = None


@dataclass(frozen=True, slots=True)
class Macs:
    """Multiply-accumulates per token by pass.

    ``forward``; ``input_gradient`` (with respect to the input); ``weight_gradient`` (trained matrices only);
    ``recompute`` (forward again inside checkpointed blocks).
    """

    forward: int = 0
    input_gradient: int = 0
    weight_gradient: int = 0
    recompute: int = 0

    def __add__(self, other: Macs) -> Macs:
        return Macs(
            self.forward + other.forward,
            self.input_gradient + other.input_gradient,
            self.weight_gradient + other.weight_gradient,
            self.recompute + other.recompute,
        )

    def of_layers(self, layers: Sequence[LayerPasses]) -> Macs:
        """The work of ``layers`` that are alike but for their passes, if this is one that has all of them.

        What a matrix of a trained layer reads needs a gradient, for it is behind a trained norm.
        Ignored: models without a norm before the first matrix of a layer; that attention has no weight
        gradient where only the feed-forward part is trained.
        """
        return Macs(
            self.forward * len(layers),
            self.input_gradient * sum(each.differentiated or each.trained for each in layers),
            self.weight_gradient * sum(each.trained for each in layers),
            self.recompute * sum(each.rebuilt for each in layers),
        )

    def times(self, count: int) -> Macs:
        """The same work ``count`` times."""
        return Macs(
            self.forward * count,
            self.input_gradient * count,
            self.weight_gradient * count,
            self.recompute * count,
        )

    @property
    def backward(self) -> int:
        """Input and weight gradients together."""
        return self.input_gradient + self.weight_gradient

    @property
    def needed(self) -> int:
        """What the method needs, without recomputation."""
        return self.forward + self.backward

    @property
    def total(self) -> int:
        """All that is computed."""
        return self.needed + self.recompute


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Attention of ``layers`` equal layers: ``features`` = heads x (query-key + value features),
    MACs per token and key.

    ``biased`` marks a position bias added to the scores (ALiBi),
    which generic kernels take as an explicit mask.
    """

    layers: int
    features: int
    heads: int
    window_tokens: int | None
    biased: bool


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one model under one :class:`WorkKey`.

    ``dense``: block matrices that every token passes; ``experts``: routed expert matrices (``active_copies``
    of them per token); ``head``: output projection and embedding projections; ``adapters``: LoRA matrices
    **per unit of rank**.  ``expert_share`` is active over stored experts (rows per expert = tokens x share; 0
    without experts).
    """

    dense: Macs
    experts: Macs
    head: Macs
    adapters: Macs
    attention: tuple[AttentionWork, ...]
    expert_share: float

    @property
    def base(self) -> Macs:
        """All matrices of the model itself."""
        return self.dense + self.experts + self.head


def rebuilt(work: Work, share: float) -> Work:
    """``work`` where only a ``share`` of the layers is rebuilt in backward.

    Ignored: that the head's adapter, of one, is no layer; which of several kinds of layers is rebuilt.
    """
    if share in (0.0, 1.0):
        return work
    parts = {name: getattr(work, name) for name in ("dense", "experts", "adapters")}
    fewer = {name: replace(macs, recompute=round(macs.recompute * share)) for name, macs in parts.items()}
    return replace(work, **fewer)


def work_key(recipe: Recipe, passes: ModelPasses | None = None) -> WorkKey:
    """The key of a recipe; ``passes``: those of each layer where only some are trained."""
    adapter = recipe.adapter
    return WorkKey(
        targets=adapter.targets if adapter else None,
        modules_to_save=adapter.modules_to_save if adapter else (),
        checkpointing=recipe.gradient_checkpointing,
        reentrant=recipe.checkpoint_reentrant,
        selective=recipe.checkpoint_policy == "selective-op",
        passes=passes,
    )


@lru_cache(maxsize=256)
def work_of(model: ModelSpec, key: WorkKey) -> Work:
    """Work counts of ``model``.

    Counts: 1 MAC per weight and token forward, one for the input gradient, one for the weight gradient of
    trained matrices (2N, 2N, 2N FLOP); the token table is a gather: 0.  With LoRA the base has no weight
    gradient, and without checkpointing the first layer needs no gradient of its input, which nothing below
    trains (with it, PEFT makes the embedding output require one).  Layers that are not trained have no weight
    gradient, those that backward does not reach nothing but the forward pass.
    Source: torch ``derivatives.yaml`` (mm), peft 0.21 ``tuners/lora/layer.py``; checked against
    ``torch.utils.flop_counter``.
    Ignored: norms, activations, rotary and softmax arithmetic (below 1 % of FLOP,
    counted as memory traffic instead).
    """
    dense = experts = adapters = Macs()
    stored = active = 0
    first = True
    layers = list(key.passes.layers if key.passes else ())
    for group in model.groups:
        n_products = 0
        passes, layers = layers[: group.count], layers[group.count :]
        for position, linear in enumerate(group.block.linears):
            inner, branch = _linear_work(
                linear, group.block, key, is_last=position == len(group.block.linears) - 1
            )
            if key.selective:
                inner, branch, n_products = _rebuilt_selectively(linear, inner, branch, n_products)
            count = group.count
            if first and _starts_the_graph(linear, group.block, key, model):
                inner_first, branch_first = _without_input_gradient(linear, inner, branch)
                dense, adapters, count = dense + inner_first, adapters + branch_first, count - 1
            adapters = adapters + branch.times(count)
            whole = inner.of_layers(passes) if key.passes else inner.times(count)
            if linear.group == "expert":
                experts = experts + whole
                stored, active = stored + linear.copies, active + linear.active_copies
            else:
                dense = dense + whole
        mixing = _mixer_work(group.block, key)
        dense = dense + (mixing.of_layers(passes) if key.passes else mixing.times(group.count))
        first = False
    head, head_adapter = _head_work(model, key)
    return Work(
        dense,
        experts,
        head,
        adapters + head_adapter,
        _attention_work(model),
        active / stored if stored else 0.0,
    )


def _mixer_work(block: BlockSpec, key: WorkKey) -> Macs:
    """What a layer without attention multiplies beside its matrices.

    Backward computes the forward pass again and makes two products for each.  Source:
    planner/program/layers/mixers.py names the code.
    """
    if block.mixer is None:
        return Macs()
    macs = block.mixer.macs_per_token
    return Macs(macs, 3 * macs, 0, macs if key.checkpointing else 0)


def _linear_work(linear: LinearSpec, block: BlockSpec, key: WorkKey, *, is_last: bool) -> tuple[Macs, Macs]:
    """(base, adapter per unit of rank) work of one matrix inside a block."""
    macs = linear.in_features * linear.out_features * linear.active_copies
    trained = key.targets is None or _is_saved_whole(linear, key)
    adapted = key.targets is not None and is_adapted(linear, key.targets)
    stops_here = is_last and key.checkpointing and not key.reentrant and _ends_the_block(linear, block)
    recompute = macs if key.checkpointing and not (stops_here and not adapted) else 0
    base = Macs(macs, macs, macs if trained else 0, recompute)
    if not adapted:
        return base, Macs()
    features = (linear.in_features + linear.out_features) * linear.active_copies
    again = (
        (linear.in_features * linear.active_copies if stops_here else features) if key.checkpointing else 0
    )
    return base, Macs(features, features, features, again)


def _rebuilt_selectively(
    linear: LinearSpec, base: Macs, branch: Macs, n_before: int
) -> tuple[Macs, Macs, int]:
    """(base, adapter) work where every second product without a bias is computed again,
    and the products so far.

    Ignored: that the two products of an adapter differ in size.
    """
    n_products = n_before + (not linear.bias)
    if linear.bias or n_products % 2:
        base = replace(base, recompute=0)
    branch = replace(branch, recompute=branch.recompute // 2)
    return base, branch, n_products + 2 * (branch.forward > 0)


def _ends_the_block(linear: LinearSpec, block: BlockSpec) -> bool:
    """Whether non-reentrant recomputation stops before this product.

    It stops as soon as every saved tensor exists again; a linear saves its inputs before it multiplies, so a
    last matrix whose output nothing saves is not computed a second time.  Source: torch
    ``utils/checkpoint.py`` (``_StopRecomputationError``).
    Ignored: residual dropout, whose mask needs that output (one matrix of about seven).
    """
    post_norm = sum(norm.copies for norm in block.norms if norm.on == "hidden") > 2
    return linear.group == "mlp" and linear.reads == "mlp_mid" and not post_norm


def _starts_the_graph(linear: LinearSpec, block: BlockSpec, key: WorkKey, model: ModelSpec) -> bool:
    if key.targets is None or key.checkpointing or linear.group == "expert":
        return False
    if any(name.rpartition(".")[2] == model.token_embedding.name for name in key.modules_to_save):
        return False
    return linear.reads in ("attn_in", "mixer_in") or (block.parallel and linear.reads == "mlp_in")


def _without_input_gradient(linear: LinearSpec, base: Macs, branch: Macs) -> tuple[Macs, Macs]:
    b_only = linear.out_features * linear.active_copies if branch.forward else 0
    return (
        Macs(base.forward, 0, base.weight_gradient, base.recompute),
        Macs(branch.forward, b_only, branch.weight_gradient, branch.recompute),
    )


def _is_saved_whole(linear: LinearSpec, key: WorkKey) -> bool:
    return any(name.rpartition(".")[2] == linear.name for name in key.modules_to_save)


def _head_work(model: ModelSpec, key: WorkKey) -> tuple[Macs, Macs]:
    """(base, adapter per unit of rank) work outside the blocks; never checkpointed."""
    total, branch = Macs(), Macs()
    for linear in (model.head, *model.extra_linears):
        macs = linear.in_features * linear.out_features
        if model.value_head and linear is model.head:
            # Nothing comes back from the words.
            total = total + Macs(macs, 0, 0)
            continue
        trained = _trains_head(key) or _is_saved_whole(linear, key)
        # An embedding projection below the first block returns a gradient only when the table under it is
        # trained.
        returns = linear.reads != "embed" or key.targets is None
        total = total + Macs(macs, macs if returns else 0, macs if trained else 0)
        if key.targets is not None and is_adapted(linear, key.targets):
            features = linear.in_features + linear.out_features
            branch = branch + Macs(features, features, features)
    return total, branch


def _trains_head(key: WorkKey) -> bool:
    """Whether the head itself is trained.  Ignored:
    a model of which nothing below the head is needs no gradient of its input.
    """
    return key.targets is None and (key.passes is None or "head" in key.passes.ends)


def _attention_work(model: ModelSpec) -> tuple[AttentionWork, ...]:
    parts = []
    for group in model.groups:
        spec = group.block.attention
        if not spec.n_heads:
            continue
        features = spec.n_heads * (spec.head_dim + spec.value_head_dim)
        parts.append(
            AttentionWork(group.count, features, spec.n_heads, spec.window_tokens, spec.position == "alibi")
        )
    return tuple(parts)


def matmul_flop(macs: int, tokens: Number) -> Number:
    """FLOP of ``macs`` multiply-accumulates per token over ``tokens`` tokens."""
    return FLOP_PER_MAC * macs * tokens


@lru_cache(maxsize=64)
def newton_schulz_flop(model: ModelSpec) -> int:
    """FLOP of Muon's five iterations over every matrix of the layers: ``X X^T``, its square,
    and a product with ``X``.

    Source: llamafactory 0.9.5 third_party/muon/muon.py zeropower_via_newtonschulz5.  Ignored:
    that frozen layers have none.
    """
    iterations, total = 5, 0
    for group in model.groups:
        for linear in group.block.linears:
            shorter = min(linear.in_features, linear.out_features)
            products = 2 * linear.in_features * linear.out_features * shorter + shorter**3
            total += group.count * linear.copies * iterations * FLOP_PER_MAC * products
    return total


@lru_cache(maxsize=64)
def orthogonalized_params(model: ModelSpec) -> int:
    """Elements of the matrices that Muon orthogonalises: all of the layers."""
    return sum(
        group.count * linear.copies * linear.in_features * linear.out_features
        for group in model.groups
        for linear in group.block.linears
    )


def mean_keys(part: AttentionWork, seq_len: Number, pairs: Pairs) -> Number:
    """Keys that a token meets on average, in tokens.

    ``square``: ``s``.  ``triangle``: ``(s + 1) / 2``, but the square where a window or a position bias forces
    an explicit mask.  ``band``: with a window of ``w < s`` tokens ``w - w (w - 1) / (2 s)``, else the
    triangle.
    Source: counting the pairs of a (banded) lower triangle;
    transformers 5.23 ``masking_utils.py`` for when a mask is explicit.
    """
    if pairs == "square" or (pairs == "triangle" and part.biased):
        return seq_len
    triangle = (seq_len + 1) / 2
    if part.window_tokens is None:
        return triangle
    if pairs == "triangle":
        return where(seq_len > part.window_tokens, seq_len, triangle)
    width = minimum(seq_len, part.window_tokens)
    return width - width * (width - 1) / (2 * seq_len)


def attention_forward_flop(work: Work, tokens: Number, seq_len: Number, pairs: Pairs) -> Number:
    """FLOP of scores and weighted values of one forward pass:
    2 x tokens x keys x heads x (query-key + value features) per layer.

    Source: FlashAttention-2 (arXiv 2307.08691) section 4.1, 4 x s^2 x d x heads, halved when causal.  The
    backward pass needs twice that (four products), a flash kernel 2.5 times (it computes the scores again).
    """
    total: Number = 0
    for part in work.attention:
        total = total + FLOP_PER_MAC * part.layers * part.features * mean_keys(part, seq_len, pairs) * tokens
    return total


def model_flop(work: Work, rank: Number, tokens: Number, seq_len: Number) -> Number:
    """FLOP that the method needs for ``tokens`` tokens, without recomputation:
    the numerator of model FLOP utilisation.

    Forward, input gradients and the weight gradients of what is trained,
    plus causal attention (backward twice the forward).
    Source: PaLM (arXiv 2204.02311) appendix B, with frozen matrices left out of the weight gradients.
    """
    products = matmul_flop(work.base.needed, tokens) + matmul_flop(work.adapters.needed, tokens) * rank
    return products + 3 * attention_forward_flop(work, tokens, seq_len, "band")


def forward_flop(work: Work, tokens: Number, seq_len: Number) -> Number:
    """FLOP of one forward pass of ``tokens`` tokens without adapters, as the model before training needs.

    Source: as :func:`model_flop`.
    """
    return matmul_flop(work.base.forward, tokens) + attention_forward_flop(work, tokens, seq_len, "band")
