"""Training from preferences as the trainers of TRL and LLaMA-Factory run it: several passes,
and losses over log-probabilities.

Where a trainer picks completion tokens by a mask of values, all tokens are taken for completion tokens: fake
tensors have no values, and that is the most.
Source: trl 0.15.2, 0.24.0 and 1.9.0 trainer/dpo_trainer.py concatenated_forward, _compute_loss and
trainer/utils.py selective_log_softmax, entropy_from_logits.  trl 0.15.2 trainer/kto_trainer.py forward,
trainer/orpo_trainer.py and cpo_trainer.py concatenated_forward, which are those of 1.16.0 trl/experimental.
trl 1.16.0 trainer/dpo_trainer.py, kto_trainer.py and reward_trainer.py.  hiyouga/LLaMA-Factory (commit
ff6d4d12) train/dpo/trainer.py, train/kto/trainer.py and train/trainer_utils.py get_batch_logps.
At b0d996666~1 their sft_loss, with get_batch_logps of trl 0.8.6.  Of
allenai/open-instruct b08997673 and e6c3044aa open_instruct/dpo_utils.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from measure.recipe.fused_head import fused_log_softmax
from measure.recipe.joined_pairs import joined_loss
from planner.domain.recipes.recipe import Recipe
from planner.domain.stack_values import PairLogps
from planner.errors import NotModelledError

_ENTROPY_ROWS = 128
_WHOLE = ("whole", "whole_twice", "whole_with_loss")
_LET_GO = ("whole_let_go", "unshifted")

Inputs = dict[str, torch.Tensor]
Stage = Literal["forward", "divergence", "reference", "reference_2", "metrics"]


@dataclass(frozen=True, slots=True)
class Passes:
    """The models of a job and how it takes log-probabilities.

    ``reference``: a second model; without one the adapters are switched off.
    ``likelihood``: ORPO and SimPO add the cross-entropy of the chosen sequences.
    ``enter`` is told when passes begin.
    """

    model: Any
    reference: Any
    recipe: Recipe
    kernel: PairLogps
    likelihood: bool
    enter: Callable[[Stage], None]

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A pass of the policy before the one that is trained, without gradients."""
        self.enter("divergence")
        with torch.no_grad():
            yield
        self.enter("forward")

    @contextmanager
    def as_before(self) -> Iterator[Any]:
        """The model as it was before training, without gradients."""
        self.enter("reference")
        with torch.no_grad():
            if self.reference is not None:
                yield self.reference
            else:
                with self.model.disable_adapter():
                    yield self.model
        self.enter("metrics")


def disable_dropout(model: nn.Module) -> None:
    """Every dropout is set to zero, as ``disable_dropout_in_model`` of TRL does, which is on by default."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


class _ValueHead(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dropout, self.summary = nn.Dropout(0.1), nn.Linear(width, 1)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.dropout(hidden_states)
        output = output.to(self.summary.weight.dtype)
        value: torch.Tensor = self.summary(output)
        return value


class WithValueHead(nn.Module):
    """A model inside of one that gives a number for each token beside the logits of words.

    It is a module of its own, into which an engine hooks.  What it does not have is that of the model inside.
    Source: trl 0.24.0 models/modeling_value_head.py AutoModelForCausalLMWithValueHead.forward.
    """

    def __init__(self, model: Any, width: int) -> None:
        super().__init__()
        self.pretrained_model, self.v_head = model, _ValueHead(width)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("pretrained_model"), name)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Logits of words in fp32, their loss, and the values."""
        outputs = self.pretrained_model(*args, **kwargs)
        value = self.v_head(outputs.hidden_states[-1]).squeeze(-1)
        logits = outputs.logits
        return logits.float() if logits.dtype != torch.float32 else logits, outputs.loss, value


Loss = Callable[[Passes, Inputs], torch.Tensor]


def preference_loss(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """The loss of one micro-batch: its rows are the chosen sequences, then the rejected ones.

    Raises:
        NotModelledError: software whose way to log-probabilities is not here.
    """
    task, in_tiles = passes.recipe.task, passes.recipe.loss == "chunked"
    if task == "reward" and hasattr(passes.model, "v_head"):
        # The last underscore is a variable: it refers to the loss of words until this function returns.
        _, _, values = passes.model(**inputs, output_hidden_states=True, use_cache=False)
        scores = values.gather(-1, inputs["attention_mask"].sum(-1, keepdim=True) - 1).squeeze(-1)
        return -nn.functional.logsigmoid(torch.sub(*scores.float().chunk(2))).mean()
    if task == "reward":
        rewards = passes.model(**_without_labels(inputs), use_cache=False).logits.squeeze(-1)
        return -nn.functional.logsigmoid(torch.sub(*rewards.chunk(2))).mean()
    if task == "kto":
        return (_kto_tiles if in_tiles else _known_loss(_KTO_LOSSES, passes))(passes, inputs)
    if passes.kernel == "joined":
        return joined_loss(passes.model, inputs, passes.as_before if passes.recipe.has_reference else None)
    if passes.kernel in _LET_GO:
        return _let_go(passes, inputs)
    if task in ("orpo", "simpo"):
        return _odds(passes, inputs)
    return _known_loss(_LOSSES, passes)(passes, inputs)


def _known_loss(losses: dict[str, Loss], passes: Passes) -> Loss:
    if passes.kernel not in losses:
        raise NotModelledError(
            f"task '{passes.recipe.task}' of this software cannot be traced: its way to log-probabilities is "
            "not here; run its program: measure trace --gpu CARD -- COMMAND"
        )
    return losses[passes.kernel]


def _odds(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """ORPO and SimPO of TRL: a cross-entropy of the chosen sequences first, unless SimPO gives it no weight.
    Versions whose other trainers work in tiles have a kernel here.
    LLaMA-Factory takes their likelihood from the same log-probabilities.
    """
    logits = passes.model(**_given(passes, inputs), use_cache=False).logits
    if passes.kernel in _WHOLE:
        logits = logits.to(torch.float32)
    likelihood = _chosen_likelihood(logits, inputs) if passes.likelihood else torch.zeros(())
    if passes.kernel in _WHOLE:
        logps = _logps_of_all(logits, inputs["input_ids"])
    else:
        logps = _of_tokens(passes, logits[:, :-1, :], inputs["input_ids"][:, 1:]).sum(-1)
    loss = likelihood - nn.functional.logsigmoid(torch.sub(*logps.float().chunk(2))).mean()
    for half in logits.detach().chunk(2, dim=0):
        half.mean()
    return loss


def _chosen_likelihood(logits: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """The cross-entropy of the chosen sequences."""
    n_chosen = logits.shape[0] // 2
    chosen = logits[:n_chosen][..., :-1, :].contiguous()
    targets = inputs["input_ids"][:n_chosen, 1:].contiguous()
    return nn.functional.cross_entropy(chosen.view(-1, chosen.shape[-1]), targets.view(-1))


def _kto_tiles(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """A pass for the divergence comes first, of the policy and of the model as it was."""
    with passes.aside():
        divergence = passes.model(**inputs).log_probs.sum(-1)
    logps = passes.model(**inputs).log_probs.sum(-1)
    with passes.as_before() as reference:
        ref_divergence = reference(**inputs).log_probs.sum(-1)
        passes.enter("reference_2")
        ref_logps = reference(**inputs).log_probs.sum(-1)
    return _kto(logps - ref_logps, divergence - ref_divergence)


def _kto_rows(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """TRL 0.15 to 0.28: one function for each model,
    which holds the logits of its first pass during the second.
    """
    divergence, logps, *_held = _kto_of_rows(passes, passes.model, inputs)
    with passes.as_before() as reference:
        ref_divergence, ref_logps, *_ = _kto_of_rows(passes, reference, inputs, second=True)
    return _kto(logps - ref_logps, divergence - ref_divergence)


def _kto_of_rows(
    passes: Passes, model: Any, inputs: Inputs, *, second: bool = False
) -> tuple[torch.Tensor, ...]:
    targets = inputs["input_ids"][:, 1:]
    with torch.no_grad() if second else passes.aside():
        aside = model(**_without_labels(inputs)).logits
    divergence = selective_log_softmax(aside[:, :-1, :], targets).sum(-1)
    if second:
        passes.enter("reference_2")
    logits = model(**_without_labels(inputs)).logits
    logps = selective_log_softmax(logits[:, :-1, :], targets).sum(-1)
    return divergence, logps, _samples(logits)


def _kto_shifted_rows(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """TRL 0.29 to 1.14: the logits of both models are held until the metrics are there;
    all samples count as good ones.
    """
    targets = inputs["input_ids"][:, 1:]

    def divergence_of(model: Any) -> torch.Tensor:
        return _of_tokens(passes, model(**_without_labels(inputs)).logits[:, :-1, :], targets).sum(-1)

    with passes.aside():
        divergence = divergence_of(passes.model)
    outputs = passes.model(**_without_labels(inputs))
    logits = outputs.logits[:, :-1, :]
    logps = _of_tokens(passes, logits, targets).sum(-1)
    with passes.as_before() as reference:
        ref_divergence = divergence_of(reference)
        passes.enter("reference_2")
        ref_outputs = reference(**_without_labels(inputs))
    ref_logps = _of_tokens(passes, ref_outputs.logits[:, :-1, :], targets).sum(-1)
    loss = _kto(logps - ref_logps, divergence - ref_divergence)
    _entropy(passes, logits.detach())
    samples = logits.detach().index_select(0, torch.zeros(len(logits), dtype=torch.int64))
    _completions(samples).mean(-1).sum()
    return loss


def _kto_whole(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """LLaMA-Factory: the pass for the divergence comes second,
    and the good and bad samples' logits are copied.
    """
    divergence, logps, _held = _kto_of_all(passes.model, inputs, lambda: passes.enter("divergence"))
    with passes.as_before() as reference:
        ref_divergence, ref_logps, _ = _kto_of_all(reference, inputs, lambda: passes.enter("reference_2"))
    return _kto(logps - ref_logps, divergence - ref_divergence)


def _kto_of_all(model: Any, inputs: Inputs, between: Callable[[], None]) -> tuple[torch.Tensor, ...]:
    given = _without_labels(inputs)
    logits, logps = _pass_of_all(model, given)
    between()
    with torch.no_grad():
        _, divergence = _pass_of_all(model, given)
        del _
    return divergence, logps, _samples(logits)


def _kto_twice(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """LLaMA-Factory before 0.8: one function for each model, whose passes come before its log-softmaxes;
    then once more that of the good samples, as which all count.
    """
    divergence, logps, good = _kto_of_both(passes, passes.model, inputs, passes.aside())
    with passes.as_before() as reference:
        ref_divergence, ref_logps, _ = _kto_of_both(passes, reference, inputs)
        del _
    loss = _kto(logps - ref_logps, divergence - ref_divergence)
    return loss - _logps_of_all(good, inputs["input_ids"]).mean()


def _kto_of_both(
    passes: Passes, model: Any, inputs: Inputs, aside: AbstractContextManager[None] | None = None
) -> tuple[torch.Tensor, ...]:
    with aside or torch.no_grad():
        others = model(**_without_labels(inputs), use_cache=False).logits.to(torch.float32)
    if aside is None:
        passes.enter("reference_2")
    logits, logps = _pass_of_all(model, _without_labels(inputs))
    return _logps_of_all(others, inputs["input_ids"]), logps, _samples(logits)


def _samples(logits: torch.Tensor) -> torch.Tensor:
    """``logits[chosen]`` and ``logits[rejected]``: both copies together hold all samples."""
    return logits[torch.zeros(logits.shape[0], dtype=torch.int64)]


def _kto(ratios: torch.Tensor, divergences: torch.Tensor) -> torch.Tensor:
    """The loss of KTO, whose tensors have one number for each sample."""
    return (1 - torch.sigmoid(0.1 * (ratios - divergences.mean().detach()))).mean()


def _tiles(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """TRL from 1.15 on: no logits at all."""
    per_token = passes.model(**inputs).log_probs
    chosen, rejected = per_token.sum(dim=1).chunk(2, dim=0)
    if passes.recipe.caches_reference:
        return _sigmoid(chosen, rejected, *_known(inputs))
    with passes.as_before() as reference:
        before = reference(**inputs).log_probs
    return _sigmoid(chosen, rejected, *before.sum(dim=1).chunk(2, dim=0))


def _shifted_rows(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """TRL 0.29 to 1.14: one function holds the logits of both passes,
    and reads those of the policy for its metrics.
    """
    outputs = passes.model(**_without_labels(inputs), use_cache=False)
    targets = inputs["input_ids"][..., 1:]
    logits = outputs.logits[..., :-1, :]
    chosen, rejected = _of_tokens(passes, logits, targets).sum(dim=1).chunk(2, dim=0)
    before: tuple[Any, ...] = _known(inputs)
    if passes.recipe.has_reference:
        with passes.as_before() as reference:
            ref_outputs = reference(**_without_labels(inputs), use_cache=False)
        ref_logits = ref_outputs.logits[..., :-1, :]
        before = _of_tokens(passes, ref_logits, targets).sum(dim=1).chunk(2, dim=0)
    loss = _sigmoid(chosen, rejected, *before)
    _entropy(passes, logits.detach())
    for half in logits.detach().chunk(2, dim=0):
        _completions(half).mean(-1).sum()
    return loss


def _rows(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """TRL 0.15 to 0.28: a function for each pass, which lets its logits go."""
    hidden = passes.kernel == "rows_and_hidden"
    policy = _pass_by_rows(passes.model, inputs, hidden=hidden)
    if passes.recipe.caches_reference:
        return _sigmoid(policy[0], policy[1], *_known(inputs))
    with passes.as_before() as reference:
        before = _pass_by_rows(reference, inputs, hidden=hidden)
    return _sigmoid(policy[0], policy[1], before[0], before[1])


def _pass_by_rows(model: Any, inputs: Inputs, *, hidden: bool) -> tuple[torch.Tensor, ...]:
    more = {"output_hidden_states": True} if hidden else {}
    outputs = model(**_without_labels(inputs), use_cache=False, **more)
    logits = outputs.logits
    per_token = selective_log_softmax(logits, torch.roll(inputs["input_ids"], shifts=-1, dims=1))
    chosen, rejected = torch.roll(per_token, shifts=1, dims=1).sum(-1).chunk(2, dim=0)
    means = [_completions(half).mean() for half in logits.chunk(2, dim=0)]
    return chosen, rejected, *means


def _whole(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """LLaMA-Factory, and TRL up to 0.14: the logits of the policy are held until the loss is there;
    ``whole_twice`` takes the likelihood of the chosen ones from them anew.
    """
    given = _given(passes, inputs)
    logits, policy = _pass_of_all(passes.model, given)
    before: tuple[Any, ...] = _known(inputs)
    if passes.recipe.has_reference:
        with passes.as_before() as reference:
            before = _reference_of_all(reference, given)
    loss = _sigmoid(*policy.chunk(2, dim=0), *before)
    if passes.kernel == "whole_twice":
        loss -= _logps_of_all(logits.chunk(2, dim=0)[0], inputs["input_ids"].chunk(2, dim=0)[0]).mean()
    for half in logits.detach().chunk(2, dim=0):
        half.mean()
    return loss


def _given(passes: Passes, inputs: Inputs) -> Inputs:
    """What the model of pairs gets: labels, too, where it takes a loss of its own."""
    return inputs if passes.kernel == "whole_with_loss" else _without_labels(inputs)


def _pass_of_all(model: Any, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    logits = model(**inputs, use_cache=False).logits.to(torch.float32)
    return logits, _logps_of_all(logits, inputs["input_ids"])


def _logps_of_all(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    targets = ids[:, 1:].clone()
    per_token = torch.gather(logits[:, :-1, :].log_softmax(-1), dim=2, index=targets.unsqueeze(2)).squeeze(2)
    return per_token.sum(-1)


def _reference_of_all(model: Any, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    _, logps = _pass_of_all(model, inputs)
    return logps.chunk(2, dim=0)


def _let_go(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """open-instruct: one function, which lets the logits go; a reference is asked in the step,
    or was before training.
    """
    chosen, rejected = _logps_let_go(passes, passes.model, inputs).chunk(2, dim=0)
    before: tuple[Any, ...] = _known(inputs)
    if passes.recipe.has_reference:
        with passes.as_before() as reference:
            before = _logps_let_go(passes, reference, inputs).chunk(2, dim=0)
    return _sigmoid(chosen, rejected, *before)


def _known(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the reference that were computed before training: a number for each sequence."""
    before = torch.zeros(len(inputs["input_ids"]) // 2)
    return before, before


def _logps_let_go(passes: Passes, model: Any, inputs: Inputs) -> torch.Tensor:
    logits = model(**_without_labels(inputs), use_cache=False).logits.to(torch.float32)
    ids = inputs["input_ids"]
    if passes.kernel == "unshifted":
        return torch.gather(logits.log_softmax(-1), 2, ids.unsqueeze(2)).squeeze(2)[:, :-1].sum(-1)
    targets = ids[:, 1:].clone()
    logits = logits[:, :-1, :]
    return torch.gather(logits.log_softmax(-1), dim=2, index=targets.unsqueeze(2)).squeeze(2).sum(-1)


def _sigmoid(
    chosen: torch.Tensor, rejected: torch.Tensor, ref_chosen: torch.Tensor, ref_rejected: torch.Tensor
) -> torch.Tensor:
    """The loss of DPO, whose tensors have one number for each pair."""
    margins = (chosen - rejected) - (ref_chosen - ref_rejected)
    return -nn.functional.logsigmoid(0.1 * margins).mean()


def selective_log_softmax(logits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of ``index`` [rows, tokens] under ``logits`` [rows, tokens, words], row by row.

    Source: trl 0.15.2 and 1.9.0 trainer/utils.py.
    """
    if logits.dtype == torch.float32:
        selected = torch.gather(logits, dim=-1, index=index.unsqueeze(-1)).squeeze(-1)
        sums = torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
        return selected - sums
    per_token = []
    for row, targets in zip(logits, index, strict=True):
        logps = nn.functional.log_softmax(row, dim=-1)
        per_token.append(logps.gather(dim=-1, index=targets.unsqueeze(-1)).squeeze(-1))
    return torch.stack(per_token)


def _of_tokens(passes: Passes, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of ``targets`` [rows, tokens] as this software takes them of cut logits.

    Source: axolotl 0.19.0 monkeypatch/trainer/utils.py selective_log_softmax, whose reshape copies what has
    gaps between rows.
    """
    if passes.kernel == "fused_rows":
        return fused_log_softmax(logits.contiguous(), targets)
    return (fused_log_softmax if passes.kernel == "tiles" else selective_log_softmax)(logits, targets)


def _entropy(passes: Passes, logits: torch.Tensor) -> None:
    """``entropy_from_logits``, whose reshape copies logits that were cut by one position.

    Axolotl's kernel reads them where they lie.
    """
    if passes.kernel == "fused_rows":
        return
    for piece in torch.split(logits.reshape(-1, logits.shape[-1]), _ENTROPY_ROWS):
        logps = nn.functional.log_softmax(piece, dim=-1)
        -(torch.exp(logps) * logps).sum(-1)


def _completions(logits: torch.Tensor) -> torch.Tensor:
    """``logits[mask]``: a copy of the rows of completion tokens."""
    n_rows, n_tokens = logits.shape[:2]
    picked = torch.zeros(n_rows * n_tokens, dtype=torch.int64)
    return logits[picked, picked]


def _without_labels(inputs: Inputs) -> Inputs:
    return {name: each for name, each in inputs.items() if name != "labels"}


_KTO_LOSSES: dict[str, Loss] = {
    "shifted_rows": _kto_shifted_rows,
    "fused_rows": _kto_shifted_rows,
    "rows": _kto_rows,
    "rows_and_hidden": _kto_rows,
    "whole": _kto_whole,
    "whole_twice": _kto_twice,
    "whole_with_loss": _kto_whole,
}
_LOSSES: dict[str, Loss] = {
    "tiles": _tiles,
    "shifted_rows": _shifted_rows,
    "fused_rows": _shifted_rows,
    "rows": _rows,
    "rows_and_hidden": _rows,
    "whole": _whole,
    "whole_twice": _whole,
    "whole_with_loss": _whole,
}
