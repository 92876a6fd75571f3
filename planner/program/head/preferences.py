"""The head of a training from preferences: log-probabilities of the tokens,
and what its trainer does with the logits.

Passes of the policy come with gradients, those of the model as it was before without.  All tokens are taken
for tokens of completions, which is the most; a prompt's are left out by masks.
Source: trl 0.15.2, 0.24.0 and 1.9.0 trainer/dpo_trainer.py concatenated_forward, _compute_loss and
trainer/utils.py selective_log_softmax, entropy_from_logits.  trl 0.15.2 trainer/kto_trainer.py forward,
trainer/orpo_trainer.py and cpo_trainer.py concatenated_forward.  trl 1.16.0 trainer/kto_trainer.py
and reward_trainer.py.
hiyouga/LLaMA-Factory (commit ff6d4d12) train/dpo/trainer.py, train/kto/trainer.py and train/trainer_utils.py
get_batch_logps.  At b0d996666~1 their sft_loss, with get_batch_logps of trl 0.8.6.
ms-swift 4.6.0 rlhf_trainers/dpo_trainer.py, kto_trainer.py and rlhf_mixin.py get_per_token_logps.
Of allenai/open-instruct b08997673 open_instruct/dpo_utils.py
concatenated_forward, _get_batch_logps; at e6c3044aa padding_free_collator.py calculate_per_token_logps.
torchtune 0.6.1 recipes/lora_dpo_single_device.py concatenated_forward, train; rlhf/sequence_processing.py.
Ignored: that copies of cut logits for metrics are one position shorter; that open-instruct compiled the
log-softmax in 2025, which moves no peak by 0.1 % and a step of an 8B by 0.6 %.
"""

from __future__ import annotations

from planner.domain.recipes.recipe import PAIR_TASKS
from planner.program.head.ends import EndsView, all_logits, last_norm, own_loss
from planner.program.head.joined_pairs import joined_pairs
from planner.program.head.losses import cross_entropy, full_loss
from planner.program.head.metrics import entropy
from planner.program.head.roles import Role
from planner.program.head.rows import gathered, selective_log_softmax, sum_of
from planner.program.head.tiles import tiles
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.matrices import autocast, dropout

_WHOLE = ("whole", "whole_twice", "whole_with_loss")
_LET_GO = ("whole_let_go", "unshifted", "tempered")
_SHIFTED = ("shifted_rows", "fused_rows")


def preference_head(torch: Operators, ends: EndsView, passed: list[Tensor], role: Role) -> Tensor:
    """The log-probabilities of one pass, from the stream after the last layer.

    ``passed`` holds the stream, and is emptied.
    """
    recipe, kernel = ends.layer.recipe, ends.layer.stack.pair_logps
    if recipe.loss == "chunked" or recipe.rollout is not None:
        return (
            tiles(torch, ends, passed)
            if recipe.loss == "chunked"
            else _completion_rows(torch, ends, passed, role)
        )
    own, logits = (
        own_loss(torch, ends, passed)
        if kernel == "whole_with_loss" and recipe.task in PAIR_TASKS
        else (None, [_logits(torch, ends, passed)])
    )
    torch.enter("forward_out")
    if kernel == "joined":
        return joined_pairs(torch, ends.layer, logits, role)
    # Accelerate's wrapper returns fp32 under FSDP, too.
    widens = ends.layer.dtypes.autocast or (recipe.uses_fsdp and recipe.numerics.mixed)
    if widens or kernel in (*_WHOLE, *_LET_GO):
        logits.append(torch.to(logits.pop(), "fp32"))
    del own
    if kernel in _LET_GO:
        return _tempered(torch, logits, role) if kernel == "tempered" else _let_go(torch, ends, logits)
    if recipe.task == "kto" and kernel not in (*_SHIFTED, "rows_let_go"):
        of_whole = _kto_twice if kernel == "whole_twice" else _kto_whole
        return (of_whole if kernel in _WHOLE else _kto_rows)(torch, ends, logits, role)
    if recipe.task in ("orpo", "simpo"):
        return _odds(torch, ends, logits)
    if kernel in _WHOLE:
        return _whole(torch, ends, logits, role)
    if kernel in _SHIFTED:
        return _shifted_rows(torch, ends, logits, role)
    return _plain_rows(torch, ends, logits, copies=kernel != "rows_let_go")


def scores(torch: Operators, ends: EndsView, passed: list[Tensor]) -> Tensor:
    """Scores or labels of all tokens, of which the loss reads those of the last token of each sample.

    Source: transformers 5.23 modeling_layers.py GenericForSequenceClassification.forward.
    Ignored: what is picked of them and its loss, a number for each label of a sample.
    """
    logits = _logits(torch, ends, passed)
    torch.enter("forward_out")
    unit, count, dtype = logits.unit, logits.count, logits.dtype
    out = torch.new(Unit.TOKENS, 1, dtype, "index")
    return record(torch, out, [logits], [], lambda *_: [torch.new(unit, count, dtype, "index_put")])


def values(torch: Operators, ends: EndsView, passed: list[Tensor], role: Role) -> Tensor:
    """A number for each token, from a head in fp32 that an engine may turn to 16 bits.

    All logits are made, too, and let go, with a loss of words, which labels ask for; or (PPO) their
    log-probabilities are taken.

    Source: trl 0.9.6 and 0.24.0 models/modeling_value_head.py ValueHead.forward,
    AutoModelForCausalLMWithValueHead.forward; llamafactory 0.7.1, 0.8.3 and 0.9.5 train/rm/trainer.py
    compute_loss, data/collator.py PairwiseDataCollatorWithPadding.
    Ignored: the value head's own weight and its states, one number for each feature.
    """
    model, view = ends.model, ends.layer
    hidden = last_norm(torch, ends, passed)
    logits = [all_logits(torch, ends, hidden)]
    # A variable of the trainer, until its loss is there.
    _own = None
    if view.recipe.task == "reward":
        _own, given = full_loss(torch, view, logits, upcast=model.fp32_logits)
        logits.append(given)
        del given
    elif ends.widens_logits:
        logits.append(torch.to(logits.pop(), "fp32"))
    returned = [hidden.alias()]
    hidden = dropout(torch, hidden)
    if not (view.recipe.uses_deepspeed or view.recipe.uses_fsdp):
        hidden = torch.to(hidden, "fp32")
    hidden = autocast(torch, view, hidden)
    weight = torch.parameter(Unit.ONE, model.hidden_size, hidden.dtype, trained=True)
    value = torch.mm(hidden, weight, 1)
    del hidden
    logits.append(torch.to(logits.pop(), "fp32"))
    torch.enter("forward_out")
    returned.clear()
    return _policy(torch, view, logits, value, role) if view.recipe.task == "ppo" else value


def _policy(torch: Operators, view: LayerView, logits: list[Tensor], value: Tensor, role: Role) -> Tensor:
    """Log-probabilities of all tokens; where these are trained, the logits are joined into a copy, of which
    the entropy is taken; the loop refers to it until it has the next one.

    Source: llamafactory 0.9.2 train/ppo/trainer.py batched_forward_pass; trl 0.9.6 trainer/ppo_trainer.py
    step, loss, core.py logprobs_from_logits, entropy_from_logits.
    """
    out = sum_of(torch, [_log_softmax(torch, logits[0], single=view.single), value])
    if role != "policy":
        return out
    joined = torch.like(logits[0], "cat")
    logits.clear()
    torch.bound = [joined.alias()]
    torch.enter("forward_loss")
    _probabilities = torch.like(joined, "softmax")
    for op in ("logsumexp", "mul"):
        _temporary = torch.like(joined, op)
        del _temporary
    return out


def _logits(torch: Operators, ends: EndsView, passed: list[Tensor], unit: Unit = Unit.TOKENS) -> Tensor:
    """All logits, as the model returns them, or those of other positions."""
    hidden = last_norm(torch, ends, passed)
    if unit is not Unit.TOKENS:
        hidden = _last_positions(torch, hidden, unit)
    logits = [all_logits(torch, ends, hidden)]
    return torch.to(logits.pop(), "fp32") if ends.widens_logits else logits.pop()


def _completion_rows(torch: Operators, ends: EndsView, passed: list[Tensor], role: Role) -> Tensor:
    """Logits of completions alone, divided by the temperature; then their entropy, where they are trained on.

    Source: trl 0.16.1, 0.19.1, 0.24.0 and 1.9.0 trainer/grpo_trainer.py _get_per_token_logps(_and_entropies)
    and trainer/utils.py entropy_from_logits; ms-swift 4.6.0 rlhf_trainers/grpo_trainer.py
    _get_logps_via_local_forward.
    """
    view = ends.layer
    logits = [_logits(torch, ends, passed, Unit.COMPLETION_TOKENS)]
    torch.enter("forward_out")
    if view.dtypes.autocast:
        logits.append(torch.to(logits.pop(), "fp32"))
    fused = view.stack.completion_logps == "fused_rows"
    in_place = fused or view.stack.completion_logps in ("in_place", "in_place_alone")
    logits.append((_divided_in_place if in_place else _divided)(torch, logits[0]))
    del logits[0]
    if fused:
        return _fused_rows(torch, view, logits[-1])
    out = selective_log_softmax(torch, logits[-1], ends.n_rows)
    if role == "policy" and view.stack.completion_logps != "in_place_alone":
        entropy(torch, logits[-1], copies=in_place and not view.single)
    return out


def _divided(torch: Operators, logits: Tensor) -> Tensor:
    return torch.same(torch.part(logits, logits.count), "div")


def _divided_in_place(torch: Operators, logits: Tensor) -> Tensor:
    """``logits[:, -n:].div_(...)``: going back, the gradient is copied into zeros of all, these into another
    tensor, and of what was changed a copy is divided.

    Source: torch 2.13 torch/csrc/autograd/functions/tensor.cpp CopySlices::apply_impl.
    """

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        out = torch.like(gradient, "new_empty_strided")
        _copy = torch.like(gradient, "clone")
        _divided = torch.like(gradient, "div")
        return [out]

    torch.pay([logits], [logits])
    changed = record(torch, logits.alias(), [logits], [], backward)
    return torch.part(changed, logits.count)


def _last_positions(torch: Operators, hidden: Tensor, unit: Unit) -> Tensor:
    """``hidden[:, -n:]``, counted in tokens of completions: a view,
    whose gradient is written into zeros of all tokens.
    """
    count, whole = hidden.count, hidden.unit
    out = hidden.alias()
    out.unit, out.is_view = unit, True
    return record(
        torch,
        out,
        [hidden],
        [],
        lambda _, gradient: [
            torch.new(whole, count, gradient.dtype, "slice_backward", cost=[gradient, gradient])
        ],
    )


def _plain_rows(torch: Operators, ends: EndsView, logits: list[Tensor], *, copies: bool) -> Tensor:
    """Each pass lets its logits go when it returns; ``copies``: of their halves, for metrics."""
    out = selective_log_softmax(torch, logits[0], ends.n_rows)
    for _ in range(2 if copies else 0):
        _completions(torch, logits[0], 2)
    return out


def _odds(torch: Operators, ends: EndsView, logits: list[Tensor]) -> Tensor:
    """The cross-entropy of the chosen half where the trainer adds it, then log-probabilities of all;
    the logits are held until the loss is there.  TRL's kernel belongs to its versions whose other trainers
    work in tiles.

    Source: trl 0.9.6, 0.12.2 and 0.14.0 trainer/orpo_trainer.py, cpo_trainer.py concatenated_forward,
    get_batch_logps; 1.15.0 and 1.16.0 experimental/orpo and cpo, trainer/utils.py selective_log_softmax.
    """
    view = ends.layer
    parts = [_chosen_likelihood(torch, view, logits[0])] if view.stack.chosen_likelihood else []
    if view.stack.pair_logps in _WHOLE:
        parts.append(_log_softmax(torch, logits[0], single=view.single))
    else:
        part = torch.shifted_rows(logits[0])
        fused = view.stack.pair_logps in ("fused_rows", "tiles")
        parts.append(
            _fused_rows(torch, view, part) if fused else selective_log_softmax(torch, part, ends.n_rows)
        )
        del part
    out = sum_of(torch, parts) if len(parts) > 1 else parts.pop()
    torch.enter("forward_loss")
    logits.clear()
    return out


def _chosen_likelihood(torch: Operators, view: LayerView, logits: Tensor) -> Tensor:
    """The cross-entropy of a copy of the chosen half, cut by one position; a single row needs no copy."""
    chosen = torch.part(logits, logits.count / 2)
    part = torch.shifted_rows(chosen)
    del chosen
    return cross_entropy(torch, view, part if view.single_chosen else torch.contiguous(part))


def _kto_rows(torch: Operators, ends: EndsView, logits: list[Tensor], role: Role) -> Tensor:
    """The logits of the pass for the divergence are held until the other one ends;
    those of samples are copied after it.
    """
    out = selective_log_softmax(torch, torch.shifted_rows(logits[0]), ends.n_rows)
    if role == "divergence":
        torch.outputs = [logits.pop().alias()]
        return out
    copies = [torch.like(logits[0], "index")]
    logits.clear()
    if role == "policy":
        torch.enter("forward_loss")
    copies.clear()
    return out


def _kto_whole(torch: Operators, ends: EndsView, logits: list[Tensor], role: Role) -> Tensor:
    """As :func:`_whole`; after the pass for the divergence those of samples are copied,
    and the copies held in their place.
    """
    out = _log_softmax(torch, logits[0], single=ends.layer.single)
    if role == "divergence":
        unit, count, dtype = logits[0].unit, logits[0].count, logits[0].dtype
        logits.clear()
        torch.outputs = [torch.new(unit, count, dtype, "index", cost=[Tensor(None, unit, count, dtype)])]
        return out
    torch.outputs = [logits.pop().alias()] if role == "reference" else []
    torch.enter("forward_itself")
    logits.clear()
    return out


def _kto_twice(torch: Operators, ends: EndsView, logits: list[Tensor], role: Role) -> Tensor:
    """The pass for the divergence comes first, and its logits are there until the others are copied;
    all samples count as good ones, whose log-softmax the loss takes anew of the copies.
    """
    if role == "divergence":
        torch.outputs = [logits.pop().alias()]
        return torch.new(Unit.TOKENS, 1, "fp32", "gather")
    single = ends.layer.single
    out = _log_softmax(torch, logits[0], single=single)
    _of_divergence = _scores(torch, logits[0].alias(), single=single)
    del _of_divergence
    unit, count, dtype = logits[0].unit, logits[0].count, logits[0].dtype
    copies = record(
        torch,
        torch.like(logits[0], "index"),
        logits,
        [],
        lambda _, each: [torch.new(unit, count, dtype, "index_put", cost=[each, each])],
    )
    logits.clear()
    if role == "reference":
        return out
    torch.enter("forward_loss")
    return sum_of(torch, [out, _log_softmax(torch, copies, single=single)])


def _log_softmax(torch: Operators, logits: Tensor, *, single: bool) -> Tensor:
    """``logits[:, :-1].log_softmax(-1)`` of all rows at once, and what is picked of it."""
    return gathered(torch, _scores(torch, torch.shifted_rows(logits), single=single))


def _scores(torch: Operators, part: Tensor, *, single: bool) -> Tensor:
    """``log_softmax``, whose kernel reads a copy where the cut leaves gaps between rows; a ``single`` one
    has none.

    Source: torch 2.11 and 2.13 aten/src/ATen/native/cuda/SoftMax.cu host_softmax (``input_.contiguous()``).
    """
    scores = torch.kernel(part, "log_softmax", saves="output")
    if not single:
        _copy = torch.like(part, "contiguous")
    return scores


def _completions(torch: Operators, logits: Tensor, share: int) -> None:
    """``logits[mask]`` of one of ``share`` parts: a copy of the rows of completion tokens."""
    part = Tensor(None, logits.unit, logits.count / share, logits.dtype)
    _copy = torch.like(part, "index")


def _shifted_rows(torch: Operators, ends: EndsView, logits: list[Tensor], role: Role) -> Tensor:
    """Both passes hold their logits until the metrics are there, for which those of the policy are copied:
    halves of chosen and of rejected sequences; or (KTO) good and bad samples, whose copies together hold all.

    Kernels of Axolotl (``fused_rows``) and the entropy read a copy where the cut leaves gaps between rows.
    """
    view, fused = ends.layer, ends.layer.stack.pair_logps == "fused_rows"
    part = torch.shifted_rows(logits[0])
    out = _fused_rows(torch, view, part) if fused else selective_log_softmax(torch, part, ends.n_rows)
    torch.outputs = [logits[0].alias()] if role == "reference" else []
    held = [part.alias()] if role != "divergence" else []
    del part
    logits.clear()
    torch.enter("forward_loss")
    if role == "policy":
        if not fused:
            entropy(torch, held[0], copies=not view.single)
        _means(torch, held[0], 1 if view.recipe.task == "kto" else 2)
    held.clear()
    return out


def _fused_rows(torch: Operators, view: LayerView, logits: Tensor) -> Tensor:
    """A kernel over the cut logits, which it saves; its backward writes a gradient as large.

    Source: axolotl 0.19.0 monkeypatch/trainer/utils.py selective_log_softmax (``reshape`` copies what has
    gaps between samples), whose ``entropy_from_logits`` copies nothing; trl 1.16.0
    kernels/logprob_entropy.py, which reads over the gaps.
    """
    copies = view.stack.pair_logps == "fused_rows" and not view.single
    flat = torch.contiguous(logits) if copies else logits
    out = torch.new(Unit.TOKENS, 1, "fp32", "selective_log_softmax", cost=[flat])
    sums = torch.new(Unit.TOKENS, 1, "fp32", "logsumexp", cost=None)
    return record(torch, out, [flat], [flat, sums], lambda kept, _: [torch.like(kept[0], "empty_like")])


def _means(torch: Operators, logits: Tensor, parts: int) -> None:
    """The mean of the completions' logits."""
    _samples = torch.like(logits, "index_select") if parts == 1 else None
    for _ in range(parts):
        _completions(torch, logits, parts)


def _whole(torch: Operators, ends: EndsView, logits: list[Tensor], role: Role) -> Tensor:
    """The log-softmax of all logits at once; those of the policy are held until the loss is there, which may
    take that of the chosen half anew.
    """
    view = ends.layer
    again = view.stack.pair_logps == "whole_twice" and view.recipe.task == "dpo"
    out = _log_softmax(torch, logits[0], single=view.single)
    if role != "policy":
        logits.clear()
    torch.enter("forward_loss")
    if again and logits:
        chosen = torch.part(logits[0], logits[0].count / 2)
        out = sum_of(torch, [out, _log_softmax(torch, chosen, single=view.single_chosen)])
    logits.clear()
    return out


def _let_go(torch: Operators, ends: EndsView, logits: list[Tensor]) -> Tensor:
    """The log-softmax of all logits at once, in a function that lets the logits go when it returns."""
    part, cut = logits.pop(), ends.layer.stack.pair_logps != "unshifted"
    if cut:
        part = torch.shifted_rows(part)
    scores = _scores(torch, part, single=ends.layer.single or not cut)
    del part
    return gathered(torch, scores)


def _tempered(torch: Operators, logits: list[Tensor], role: Role) -> Tensor:
    """The log-softmax of all logits over a temperature.  Those of the policy go before the reference runs,
    whose own a variable holds until it has run again.
    """
    scaled = torch.same(torch.shifted_rows(logits[0]), "div")
    scores = torch.kernel(scaled, "log_softmax", saves="output")
    del scaled
    if role == "reference":
        torch.bound = [logits[0].alias()]
    logits.clear()
    return gathered(torch, scores)
