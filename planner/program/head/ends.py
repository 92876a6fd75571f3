"""What lies around the layers: the token table and its inputs before them; the last norm,
the head and the loss behind.

Source: transformers 5.23 models/{llama,gpt2,opt,bloom,gemma,granite}/modeling_*.py, the ``forward`` of each
model and of its ``ForCausalLM``; accelerate 1.15 utils/operations.py convert_outputs_to_fp32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from planner.domain.model import EmbeddingSpec, LinearSpec, ModelSpec, NormSpec
from planner.program.head.inputs import make_masks, make_turns
from planner.program.head.logits import capped, normalised
from planner.program.head.losses import (
    cuts_head,
    cuts_logits,
    full_loss,
    logits_in_pieces,
    loss_of_pieces,
    piecewise_loss,
    split_loss,
)
from planner.program.head.metrics import measured
from planner.program.head.row_pieces import loss_of_rows, of_rows
from planner.program.head.streams import joined_streams, split_streams
from planner.program.layers.layer_inputs import with_layer_inputs, with_soft_rows
from planner.program.layers.megatron.linears import output_layer
from planner.program.layers.norms import norm
from planner.program.ops.autograd import LEAF_ORDER, record
from planner.program.ops.casts import linear_function
from planner.program.ops.collectives import (
    REDUCE_SCATTER,
    entering,
    gathered,
    gathered_features,
    scattered,
    splits_tokens,
    summed,
)
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Node, Tensor, Unit
from planner.program.recorded_part import Shape
from planner.program.view import LayerView
from planner.program.weights.fake_quantized import is_head_rounded, rounded_product
from planner.program.weights.float8 import in_float8
from planner.program.weights.lora_operators import with_adapter
from planner.program.weights.matrices import autocast, base_product, dropout, linear, weight_copy
from planner.program.weights.te_casts import product_te

_BEFORE = ("embed", "layer_inputs", "streams", "joined_streams", "soft_rows")
"""What matrices read that do not stand between the last norm and the head."""
HEAD_GRADIENT = "head gradient"
"""The head's part of the gradient of a table that is tied to it, which waits for the table's own part."""


@dataclass(frozen=True, slots=True)
class EndsView:
    """The model around its layers; ``kinds``: the views of all kinds of layers.

    ``layer``, ``embed`` and ``head`` are views of one layer for what it shares with the norms around the
    layers, with the tables and with the head; each says whether these are trained.  ``needs_entry``: the
    input of the first layer requires a gradient.  ``n_rows``: see :attr:`planner.program.job.Job.rows_apart`.
    """

    model: ModelSpec
    layer: LayerView
    embed: LayerView
    head: LayerView
    kinds: tuple[LayerView, ...]
    needs_entry: bool
    n_rows: int

    def trains(self, part: LayerView, name: str) -> bool:
        """Whether this table or head is trained: itself, or as a copy in ``modules_to_save``."""
        adapter = part.recipe.adapter
        return part.trains_base or (adapter is not None and name in adapter.saved_names)

    @property
    def tied(self) -> bool:
        """Whether one trained tensor is both table and head: no copies of PEFT, none that FSDP2 parts."""
        parted = self.head.stack.fsdp2_parts_tied and self.head.recipe.sharding.dtensors
        return self.model.tied and self.head.trains_base and not parted

    @property
    def widens_logits(self) -> bool:
        """Whether the model itself casts its logits to fp32, as in Transformers before 4.46."""
        return self.model.fp32_logits and "compute" not in self.layer.stack.loss_forward

    @property
    def masked(self) -> tuple[LayerView, ...]:
        """The views that masks are made for; a window that no layer has is 0 tokens wide: SDPA gets a mask.

        Source: transformers 5.23 models/qwen2_moe/modeling_qwen2_moe.py Qwen2MoeModel.forward,
        configuration_qwen2_moe.py (``sliding_window``).
        """
        if not self.model.makes_window_mask:
            return self.kinds
        block = self.kinds[0].block
        block = replace(block, attention=replace(block.attention, window_tokens=0))
        return *self.kinds, replace(self.kinds[0], block=block, masked=True)

    @property
    def given(self) -> dict[str, Shape]:
        """What the embeddings get from the head, which no gradient of a value's reaches."""
        if not self.tied or (self.model.value_head and self.layer.recipe.task == "reward"):
            return {}
        table, dtype = self.model.token_embedding, self.embed.dtypes.table
        return {HEAD_GRADIENT: Shape(table.param_count, dtype, False, Unit.ONE, HEAD_GRADIENT)}


def embeddings(torch: Operators, ends: EndsView) -> Tensor:
    """The stream that the first layer reads, and what all layers share.

    The variables ``inputs_embeds`` and ``position_embeds`` live until the model returns.
    """
    model, view = ends.model, ends.layer
    tokens = token_rows(torch, ends)
    if model.masks_first:
        make_masks(torch, ends.masked)
    plain = [table for table in model.extra_embeddings if not (table.per_layer or table.soft)]
    positions = [_lookup(torch, ends, table) for table in plain]
    for spec in model.extra_linears:
        if spec.reads == "embed":
            tokens = linear(torch, view, spec, tokens)
    torch.shared["inputs_embeds"] = stream = tokens
    del tokens
    if model.embedding_scale == "stream":
        stream = torch.same(stream, "mul")
    for number, table in enumerate(positions):
        torch.shared[f"position_embeds {number}"] = table
        stream = torch.add(stream, table)
    stream = _with_other_rows(torch, ends, stream)
    if model.embedding_norm:
        stream = norm(torch, view, model.final_norms[0], stream, "word_embeddings_layernorm")
    make_masks(torch, ends.masked)
    if view.block.streams > 1:
        stream = split_streams(torch, view, model, stream)
    if model.embedding_dropout:
        stream = dropout(torch, stream)
    _turns(torch, ends)
    if view.recipe.offloads_activations and not view.stack.offloads_saved and torch.grad_enabled:
        # Inputs of layers on their way to the host and back, or buffers for them.
        n_staged = view.stack.offloaded_inputs_kept
        torch.outputs = [torch.like(stream, "staged", cost=None) for _ in range(n_staged)]
    return stream


def _with_other_rows(torch: Operators, ends: EndsView, stream: Tensor) -> Tensor:
    """The stream with rows of marks of images and sounds in it, and with inputs of each layer beside it."""
    model, view = ends.model, ends.layer
    inputs = next((table for table in model.extra_embeddings if table.per_layer), None)
    if inputs is None:
        return stream
    rows = torch.same(_lookup(torch, ends, inputs), "mul")
    for number, table in enumerate(each for each in model.extra_embeddings if each.soft):
        stream = with_soft_rows(torch, view, model, number, _lookup(torch, ends, table), stream)
        torch.shared["inputs_embeds"] = stream
    return with_layer_inputs(torch, view, model, stream, rows)


def _turns(torch: Operators, ends: EndsView) -> None:
    """Cosines and sines of rotary positions, where the model makes them once for its layers.

    Source: transformers 4.43.4 models/llama/modeling_llama.py LlamaRotaryEmbedding.forward; 4.48.0 to 5.18.0
    models/qwen2/modeling_qwen2.py Qwen2RotaryEmbedding.forward.
    Ignored: that GPT-J, which has a buffer of sines, takes no product.
    """
    if all(each.block.attention.position != "rope" for each in ends.kinds):
        return
    # ZeRO-3 fetches what comes next at each module that is entered.
    with torch.inside("rotary_emb"):
        decoder = ends.model.decoder or ends.model.architecture
        stack = ends.layer.stack
        if not {"all", decoder}.isdisjoint(stack.rotary_in_model) and stack.model_code != "own":
            make_turns(torch, ends.kinds)


def token_rows(torch: Operators, ends: EndsView) -> Tensor:
    """The rows of the token table, scaled or normed inside its module (Gemma, Muse Glimmer), or scaled behind
    it (Granite).
    """
    model = ends.model
    tokens = _whole_rows(torch, ends, [_lookup(torch, ends, model.token_embedding)])
    if model.embedding_scale == "table":
        tokens = torch.same(tokens, "mul")
    elif model.embedding_scale == "norm":
        tokens = norm(torch, ends.layer, NormSpec("rms", model.hidden_size, weight=False), tokens)
    if tokens.node is None and ends.needs_entry and torch.grad_enabled:
        # The hook runs inside the table's module, whose own hooks see the gradient.
        require_gradient(tokens, (*torch.path, torch.modules.index((model.token_embedding.name,))))
    return torch.same(tokens, "mul") if model.embedding_scale == "model" else tokens


def _whole_rows(torch: Operators, ends: EndsView, rows: list[Tensor]) -> Tensor:
    """Each GPU looks up the words that it has, and the rows are summed; ``rows`` is emptied."""
    if ends.model.parts == 1 or ends.layer.by_autotp:
        return rows.pop()
    with torch.inside(ends.model.token_embedding.name):
        if splits_tokens(ends.layer):
            return scattered(torch, ends.layer, rows.pop())
        return summed(torch, ends.layer, rows.pop())


def _lookup(torch: Operators, ends: EndsView, table: EmbeddingSpec) -> Tensor:
    """Rows of a table, whose gradient is dense.

    Where the table is a DTensor, its gradient is that of the whole one.
    Source: torch 2.13 distributed/tensor/_ops/_embedding_ops.py embedding_dense_backward_strategy.
    """
    count, dtype = table.param_count, ends.embed.dtypes.table
    is_divided = ends.layer.stack.whole_table_gradient and not ends.layer.by_autotp
    n_given = count * ends.model.parts if is_divided else count
    # FSDP2 sums before it reduces; without it, or where it waits with that, the whole sum is kept.
    sharding, no_sync = ends.layer.recipe.sharding, ends.layer.stack.fsdp_no_sync
    waits = not sharding.frees_blocks or sharding.reduces_last_only(no_sync)
    n_kept = n_given if waits else count
    with torch.inside(table.name):
        weight = torch.parameter(Unit.ONE, count, dtype, trained=ends.trains(ends.embed, table.name))
        unit = Unit.LENGTH if table.shared else Unit.TOKENS
        out = torch.new(unit, table.width, dtype, "embedding", cost=[Tensor(None, unit, table.width, dtype)])
        if HEAD_GRADIENT in torch.shared:
            weight = _sum_of_both(torch, ends, weight, [torch.shared.pop(HEAD_GRADIENT)])
        seen = weight.alias()
        seen.node, seen.count = weight.node, n_kept

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            whole = torch.new(Unit.ONE, n_given, dtype, "embedding_dense_backward", cost=[gradient])
            if n_kept == n_given:
                return [whole]
            return [torch.new(Unit.ONE, n_kept, dtype, REDUCE_SCATTER, cost=None)]

        return record(torch, out, [seen], [], backward)


def _sum_of_both(torch: Operators, ends: EndsView, weight: Tensor, of_head: list[Tensor]) -> Tensor:
    """The tied weight, to whose gradient that of the head is added.

    Not in place to a view of a product: unless a cast, a sum of pieces or DeepSpeed's own linear made it.
    """
    dtypes, recipe = ends.embed.dtypes, ends.layer.recipe
    casts = dtypes.autocast and weight.dtype != dtypes.compute
    pieces = recipe.loss != "hf" or cuts_head(ends.layer)
    in_place = casts or pieces or recipe.sharding.is_zero3

    def add(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        before = of_head.pop()
        if in_place:
            torch.pay([before, gradient], [before])
        return [before if in_place else torch.like(gradient, "add", cost=(before,))]

    return record(torch, weight.alias(), [weight], [], add)


def require_gradient(out: Tensor, path: tuple[int, ...]) -> None:
    """``out.requires_grad_(True)`` in the modules ``path``: a leaf; graph and gradient keep it."""
    kept = [out.alias()]

    def keep(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        kept.append(gradient)
        return []

    out.node = Node("embed_tokens", LEAF_ORDER, keep)
    out.node.path = path


def head(torch: Operators, ends: EndsView, passed: list[Tensor]) -> Tensor:
    """The loss, from the stream after the last layer; under autocast accelerate then widens the logits.

    ``passed`` holds the stream, and is emptied.
    """
    loss, outputs = own_loss(torch, ends, passed)
    # The wrapper that widens runs autocast inside of it.
    torch.enter("forward_out")
    returned(torch, ends, outputs)
    return loss


def returned(torch: Operators, ends: EndsView, outputs: list[Tensor]) -> None:
    """What becomes of the logits; ``outputs`` holds them.  Where one process has several GPUs, they go to the
    first one.
    """
    view, stage = ends.layer, ends.model.stage
    in_turn = stage is not None and stage.in_turn
    if stage is not None and stage.in_turn and stage.rank:
        outputs.clear()
    elif view.stack.keeps_outputs and outputs:
        hold(torch, view, [_bound(torch, view, outputs) for _ in range(len(outputs))])
    elif _keeps_logits(view) or (stage is not None and not (in_turn or _is_megatron(view))):
        # Until the next forward; here until the graph goes.
        torch.outputs = [each.alias() for each in outputs]
    else:
        while outputs:
            _let_go(torch, view, outputs)


def _let_go(torch: Operators, view: LayerView, outputs: list[Tensor]) -> None:
    """The wrapper's copy of logits, and the trainer's metrics of them."""
    logits = outputs.pop()
    if widens(view):
        logits = torch.to(logits, "fp32")
    if view.stack.logit_metrics != "none":
        measured(torch, view, logits)


def hold(torch: Operators, view: LayerView, kept: list[Tensor]) -> None:
    """``kept`` by variables of the training loop: of its step alone, or until they are bound anew."""
    if view.stack.step_in_function:
        torch.outputs = kept
    else:
        torch.bound = kept


def _is_megatron(view: LayerView) -> bool:
    """Whether the head and the loss are Megatron-Core's, which return losses alone."""
    return view.stack.model_code == "megatron-core"


def widens(view: LayerView) -> bool:
    """Whether accelerate's wrapper casts what the model returns to fp32."""
    return view.dtypes.autocast and (view.stack.model_code != "own" or view.stack.widens_outputs)


def _bound(torch: Operators, view: LayerView, outputs: list[Tensor]) -> Tensor:
    """Logits as a variable of the training loop has them; backward frees what their graph has saved."""
    found = outputs.pop()
    return (torch.to(found, "fp32") if widens(view) else found).alias()


def _keeps_logits(view: LayerView) -> bool:
    """Whether the training loop refers to logits in backward, which no kernel overwrites."""
    copies = view.stack.loss_backward
    return "log_softmax" in copies and ("compute" in copies or "float" in copies)


def own_loss(torch: Operators, ends: EndsView, passed: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Last norm, head and loss, and the logits; the inner model returns before the head runs.

    ``passed`` holds the stream, and is emptied.
    """
    model, view = ends.model, ends.layer
    hidden = last_norm(torch, ends, passed)
    with torch.inside(model.head.name):
        weight = head_weight(torch, ends)
        if view.recipe.loss != "hf":
            kept = [hidden] if view.stack.keeps_hidden_states else []
            loss_of = loss_of_rows if of_rows(view.recipe, view.stack) else piecewise_loss
            return loss_of(torch, view, model.head, weight, hidden), kept
        if model.normhead:
            weight = normalised(torch, weight)
        if cuts_head(view):
            logits_of = partial(scaled_logits if view.stack.caps_pieces else _logits, torch, ends)
            passed += logits_in_pieces(torch, view, logits_of, (weight, hidden))
        else:
            passed.append(_logits(torch, ends, weight, hidden))
    if not cuts_head(view):
        passed.append(_scaled(torch, ends, passed))
    if cuts_logits(view.stack):
        return _loop_loss(torch, view, passed, upcast=model.fp32_logits)
    upcast = model.fp32_logits or _is_megatron(view)
    loss, logits = full_loss(torch, view, passed, upcast=upcast)
    return loss, [logits]


def _loop_loss(
    torch: Operators, view: LayerView, logits: list[Tensor], *, upcast: bool
) -> tuple[Tensor, list[Tensor]]:
    """The loss of a training loop, of ``logits`` that the model returned, and what becomes of these."""
    cuts = cuts_head(view)
    if not cuts:
        logits[0] = torch.to(logits[0], "fp32")
    if view.stack.keeps_outputs:
        hold(torch, view, [each.alias() for each in logits])
        torch.enter("forward_loss")
    loss = loss_of_pieces(torch, view, logits, upcast=upcast) if cuts else split_loss(torch, view, logits[0])
    return loss, logits if _keeps_logits(view) and not view.stack.keeps_outputs else []


def scaled_logits(torch: Operators, ends: EndsView, weight: Tensor, hidden: Tensor) -> Tensor:
    """The head's product, and what the model makes of it."""
    return _scaled(torch, ends, [_logits(torch, ends, weight, hidden)])


def _scaled(torch: Operators, ends: EndsView, passed: list[Tensor]) -> Tensor:
    """What the model itself makes of the head's product, which ``passed`` holds and is emptied of: scaled
    (Granite, Cohere) or capped (Gemma 2).
    """
    model, view = ends.model, ends.layer
    logits = passed.pop()
    if model.scales_logits:
        logits = torch.same(logits, "mul")
    if model.wide_logits:
        logits = torch.to(logits, "fp32")
    passed = [logits]
    del logits
    return capped(torch, passed) if model.logit_softcap and _caps_logits(view) else passed.pop()


def _caps_logits(view: LayerView) -> bool:
    return view.stack.soft_caps == "logits"


def last_norm(torch: Operators, ends: EndsView, passed: list[Tensor]) -> Tensor:
    """The last norm, and OPT's projection behind the layers; then goes what these shared."""
    model, view = ends.model, ends.layer
    hidden = passed.pop()
    if view.block.streams > 1:
        hidden = joined_streams(torch, view, model, hidden)
    for spec in model.final_norms[int(model.embedding_norm) :]:
        if spec.on == "hidden":
            hidden = norm(torch, view, spec, hidden)
    if view.block.wide_stream:
        hidden = torch.to(hidden, view.dtypes.table)
    if model.logit_softcap and not _caps_logits(view):
        hidden = capped(torch, [hidden])
    for linear_spec in model.extra_linears:
        if linear_spec.reads not in _BEFORE:
            hidden = linear(torch, view, linear_spec, hidden)
    if not _is_megatron(view):
        hidden = gathered(torch, view, hidden)
    torch.shared.clear()
    return hidden


def all_logits(torch: Operators, ends: EndsView, hidden: Tensor) -> Tensor:
    """What the head makes of ``hidden``, all at once."""
    with torch.inside(ends.model.head.name):
        passed = [_logits(torch, ends, head_weight(torch, ends), hidden)]
    return _scaled(torch, ends, passed)


def head_weight(torch: Operators, ends: EndsView) -> Tensor:
    """The head's weight; that of a tied one hands its gradient to the table."""
    spec, dtype = ends.model.head, ends.head.dtypes.table
    if ends.head.quantized(spec):
        return Tensor(None, Unit.ONE, spec.weight_count, dtype)  # packed: its product makes the parameter
    weight = torch.parameter(
        Unit.ONE, spec.weight_count, dtype, trained=ends.trains(ends.head, spec.name) and not ends.tied
    )
    if not ends.tied:
        return weight

    def hand_on(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        torch.shared[HEAD_GRADIENT] = gradient
        if gradient.storage is not None:
            torch.terms[gradient.storage.slot] = "gradients"
        return []

    weight.node = Node(spec.name, LEAF_ORDER, hand_on) if torch.grad_enabled else None
    return weight


def _logits(torch: Operators, ends: EndsView, weight: Tensor, hidden: Tensor) -> Tensor:
    """The head's product with ``hidden``, and its adapter's where it has one."""
    view, head = ends.layer, ends.model.head

    def product(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
        if view.quantized(spec):
            return base_product(torch, view, spec, x)
        if _is_megatron(view):
            return output_layer(torch, view, spec, weight, x)
        x = entering(torch, view, spec, x)
        bias, trained = None, ends.trains(ends.head, spec.name)
        if spec.bias:
            bias = torch.parameter(Unit.ONE, spec.out_features, weight.dtype, trained=trained)
        if view.narrow is not None and in_float8(view.recipe.numerics, spec):
            return product_te(torch, view, spec, x, [weight] if bias is None else [weight, bias])
        if bias is not None:
            bias = weight_copy(torch, view, bias)
        if is_head_rounded(view, spec, tied=ends.model.tied):
            return rounded_product(torch, view, spec, x, (weight, bias))
        copy = weight_copy(torch, view, weight)
        times = linear_function(torch, view)
        out = times(autocast(torch, view, x), copy, spec.out_features, bias=bias)
        del x
        if ends.model.parts == 1 or splits_tokens(view):
            return out
        return gathered_features(torch, [out], ends.model.parts)

    if view.adapted(head):
        return with_adapter(torch, view, head, hidden, product)
    return product(torch, view, head, hidden)
