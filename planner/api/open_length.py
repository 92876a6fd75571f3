"""How long are samples?  Config files leave it to the data, or say only where longer ones are cut: with
which lengths does the job fit?
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from shlex import quote

from planner.domain.prediction import Prediction, Verdict
from planner.domain.scenario import Scenario
from planner.errors import LengthOpenError, PlannerError, UsageError
from planner.intake.given.request import Given
from planner.report.check.checked import Checked

SHORTEST_TOKENS = 128
"""The first length that is tried; each further one is twice as long."""
_SHORTEST_CUT_TOKENS = 1024
"""Where samples are only cut, some are as long as this in nearly every data set: the longest of Alpaca, whose
samples are short, has 1,304 tokens (data/published/litgpt_resource.md).
"""
_LONGEST_TOKENS = 1_048_576
"""The last one for models without a longest of their own."""


def is_only_cut(seq: Given, scenario: Scenario) -> bool:
    """Whether samples are cut at ``seq``, and nobody said how long they are."""
    batch, mean = scenario.recipe.batch, scenario.assumption("tokens_per_sample")
    unsaid = batch.lengths is None and (mean is None or mean.is_assumed)
    return seq.cuts == batch.padding and unsaid


def with_shorter(
    prediction: Prediction, ask: Callable[[int], Verdict], seq: Given, generated_tokens: int = 0
) -> Prediction:
    """``prediction`` of samples as long as ``seq``, which do not fit: uncertain where shorter ones do.

    Where nothing is generated, they are as long as some are in nearly every data set.

    ``ask``: the verdict on samples of so many tokens.  ``generated_tokens``: those of a sample that a model
    generates, as many as it wants: only the others may be fewer.
    """
    length = generated_tokens + SHORTEST_TOKENS if generated_tokens else _SHORTEST_CUT_TOKENS
    longest, verdict = 0, prediction.verdict
    while length < seq.value:
        try:
            verdict = ask(length)
            if verdict != "fits":
                break
            longest = length
        except PlannerError:
            # Images of a sample may be longer, or GPUs not divide it.
            pass
        length = 2 * length - generated_tokens
    if not longest and verdict != "uncertain":
        return prediction
    if longest:
        fitting = f"samples of up to {longest:,} tokens fit"
        above = f"those of {min(length, seq.value):,} may not"
    else:
        fitting, above = f"samples of {length:,} tokens may fit", "longer ones may not"
    text = f"{fitting}, {above}, and {seq.origin} says only where they are cut"
    return replace(
        prediction,
        verdict="uncertain",
        reason=f"{text}; with {seq.value:,} tokens: {prediction.reason}",
        fits_probability=None,
        if_shorter=fitting,
        warnings=(*prediction.warnings, f"{text}: --seq N, or --data FILE"),
    )


def answer_at_any_length(
    ask: Callable[[int], Checked], sentence: str, longest_tokens: int | None = None
) -> Checked:
    """The answer where all lengths have the same: at the longest of the model where that fits,
    at the shortest that is tried where that does not.

    ``ask``: the answer for samples of so many tokens.  ``sentence``: asks for the length.
    ``longest_tokens``: the most that the tool takes, where that is known.

    Raises:
        LengthOpenError: some lengths fit and others may not; says which.
        UsageError: no length can be used.
        NotModelledError: understood, but no formula covers it.
    """
    fitting: Checked | None = None
    refusal: UsageError | None = None
    length, most = SHORTEST_TOKENS, longest_tokens or _LONGEST_TOKENS
    while length <= most:
        try:
            checked = ask(length)
        except UsageError as error:
            # Images or completions of a sample may be longer.
            if fitting is not None:
                raise
            length, refusal = 2 * length, error
            continue
        if _verdict(checked) != "fits":
            if fitting is None and refusal is None and _verdict(checked) != "uncertain":
                return _remarked(checked, f"{length:,} tokens; longer ones need more")
            raise LengthOpenError(f"{sentence}; {_bound(fitting, length)}")
        fitting = checked
        longest = min(_longest_of(checked), most)
        if length == longest:
            return _remarked(checked, f"{length:,} tokens, the longest that the model takes")
        length = min(2 * length, longest)
    raise refusal or UsageError(sentence)


def _verdict(checked: Checked) -> str:
    return "" if checked.subject is None else checked.subject.prediction.verdict


def _longest_of(checked: Checked) -> int:
    own = None if checked.subject is None else checked.subject.scenario.model.max_position_tokens
    return min(own or _LONGEST_TOKENS, _LONGEST_TOKENS)


def _bound(fitting: Checked | None, length: int) -> str:
    if fitting is None or fitting.subject is None:
        return f"samples of {length:,} tokens may not fit"
    up_to = int(fitting.subject.scenario.recipe.batch.seq_len)
    return f"samples of up to {up_to:,} tokens fit, those of {length:,} may not"


def _remarked(checked: Checked, text: str) -> Checked:
    remark = (checked.config, f"does not say how long samples are: counted with {text}")
    seq = "" if checked.subject is None else f"--seq {int(checked.subject.scenario.recipe.batch.seq_len)}"
    details = f"plan --config {quote(checked.config)} {seq} --details, with the same flags"
    return replace(checked, remarks=(remark, *checked.remarks), details=details)
