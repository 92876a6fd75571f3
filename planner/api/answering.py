"""What was given about one job -> its answer, the same for the command line and for Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from planner.api.calibration_choice import calibration_for
from planner.domain.model import ModelSpec
from planner.domain.origin import is_tool_default
from planner.domain.prediction import Verdict
from planner.domain.uncertainty.calibration import Calibration
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import UsageError
from planner.intake.given.request import (
    TRIED,
    Given,
    ScenarioRequest,
    asked_card,
    from_flags,
    merge,
    require,
)
from planner.intake.given.request_field import PARTS
from planner.intake.resolve import resolve, with_other_errors
from planner.predicting import predict_with
from planner.report.prediction.subject import Subject

EXAMPLE = "plan --model 7b --method qlora --gpu 4090 --seq 1024"
_CALL = 'planner.estimate(model="7b", method="qlora", gpu="4090", seq=1024)'


@dataclass(frozen=True, slots=True)
class How:
    """How to answer, beside what the job is.

    ``calibration``: a name, a file, ``none``, or ``None`` for the one that fits the job.  ``force``: refused
    combinations become warnings.  ``explain``: every term carries the numbers of its formula.  ``advise``:
    look for what could be changed.  ``brief``: only for what the first answer shows.  ``timeline``: memory
    over the step is to be drawn.  ``why``: name the request that fails, where the job does not fit.
    ``in_python``: what is missing is a keyword.
    """

    calibration: str | None = None
    force: bool = False
    explain: bool = False
    advise: bool = True
    brief: bool = False
    timeline: bool = False
    why: bool = True
    in_python: bool = False


def answer_job(flags: Mapping[str, object], config: str | None = None, how: How | None = None) -> Subject:
    """Answer one job that flags and a config file describe; flags win.

    Raises:
        UsageError: something that was given cannot be used, or something without a default was not given.
        NotModelledError: understood, but no formula covers it.
    """
    request, notes = read_request(flags, config)
    how = how or How()
    example, prefix = (_CALL, "") if how.in_python else (EXAMPLE, "--")
    missing = partial(require, request, *PARTS, example=example, prefix=prefix)
    try:
        missing()
        return answer_request(request, how, notes)
    except UsageError as error:
        raise with_other_errors(error, request, missing) from None


def answer_request(
    request: ScenarioRequest, how: How, notes: Sequence[str] = (), model_spec: ModelSpec | None = None
) -> Subject:
    """Answer what was given about one job; ``notes`` are added to its warnings,
    ``model_spec`` is its model where it is at hand.

    Raises:
        UsageError: something that was given cannot be used, or something without a default was not given.
        NotModelledError: understood, but no formula covers it.
    """
    scenario = resolve(request, force=how.force, model=model_spec)
    scenario = replace(scenario, warnings=(*scenario.warnings, *notes))
    choice = calibration_for(scenario, how.calibration)
    scenario, model = choice.noted_on(scenario), choice.model
    prediction = predict_with(scenario, model, explain=how.explain, why=how.why)
    if prediction.verdict == "does_not_fit" and (seq := request.values["seq"]).cuts:
        from planner.api.open_length import is_only_cut, with_shorter

        if is_only_cut(seq, scenario):
            ask, rollout = _verdict_at(request, how, model_spec), scenario.recipe.rollout
            generated_tokens = rollout.completion_tokens if rollout else 0
            prediction = with_shorter(prediction, ask, seq, generated_tokens)
    coefficients = model.coefficients_for(scenario) if isinstance(model, Calibration) else model
    subject = Subject(scenario, prediction, explain=how.explain, coefficients=coefficients)
    if how.timeline and scenario.hardware.gpu.is_cuda:
        from planner.memory.over_time import timeline_of

        subject = replace(subject, timeline=timeline_of(scenario, coefficients, prediction.memory))
    return _advised(subject, model, brief=how.brief) if how.advise else subject


def _verdict_at(request: ScenarioRequest, how: How, model_spec: ModelSpec | None) -> Callable[[int], Verdict]:
    """The verdict on samples of so many tokens, which have smaller images where those that the tool makes at
    most are longer.
    """
    how = How(how.calibration, how.force, advise=False, why=False)

    def ask(seq_tokens: int) -> Verdict:
        shorter = merge(request, ScenarioRequest({"seq": Given(seq_tokens, TRIED)}))
        try:
            return answer_request(shorter, how, model_spec=model_spec).prediction.verdict
        except UsageError:
            size = request.values.get("image_size")
            if size is None or not is_tool_default(size.origin):
                raise
        rest = {name: given for name, given in shorter.values.items() if name != "image_size"}
        smaller = replace(shorter, values=rest)
        return answer_request(smaller, how, model_spec=model_spec).prediction.verdict

    return ask


def read_request(flags: Mapping[str, object], config: str | None) -> tuple[ScenarioRequest, tuple[str, ...]]:
    """What flags and a config file say, and what was not taken over of the file."""
    request = from_flags(flags)
    if config is None:
        return request, ()
    from planner.configs.launchers.fsdp_keys import Beside
    from planner.intake.given.config_file import overruled, read_config_file, with_flags

    gpu, gpus = asked_card(request)
    beside = Beside(stack=request.get("stack") or "", gpu=gpu, gpus=gpus)
    read = read_config_file(config, beside=beside)
    whole = with_flags(read, request)
    return whole, (*read.notes, *(f"{each.origin}: {each.text}" for each in overruled(read, whole)))


def _advised(subject: Subject, model: Coefficients | Calibration, *, brief: bool) -> Subject:
    """``subject`` with what other values of its settings would do; of the largest programs only the job
    itself is worth the wait.
    """
    from planner.searching.affordable import is_affordable, n_allocations
    from planner.searching.levers import levers
    from planner.searching.moves import CHEAP, KINDS
    from planner.searching.run_length import at_example_length
    from planner.searching.stack_needs import stack_needs
    from planner.searching.unsaid import unsaid_settings

    scenario, prediction = subject.scenario, subject.prediction
    if not is_affordable(scenario):
        n_made = n_allocations(scenario)
        warning = f"no other settings were tried: this job makes {n_made:,} allocations beside its layers"
        return replace(subject, scenario=replace(scenario, warnings=(*scenario.warnings, warning)))
    kinds = CHEAP if brief and prediction.verdict == "fits" else KINDS
    needs = stack_needs(scenario, model)
    return replace(
        subject,
        # The first answer has a line of all stacks instead of rows.
        unsaid=unsaid_settings(scenario, prediction, model, stacks=not (brief and needs)),
        levers=levers(scenario, model, kinds=kinds),
        stacks=needs,
        at_length=at_example_length(scenario, prediction, model),
    )
