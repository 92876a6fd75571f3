"""What an answer rests on: settings that nobody gave,
and how far memory and time move where they are otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from planner.catalog.stacks import load_stack, other_versions, turning_versions
from planner.domain.prediction import Prediction, Verdict
from planner.domain.scenario import EVAL_BATCH, Scenario
from planner.domain.uncertainty.calibration import Calibration
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError, UsageError
from planner.predicting import PRIORS, predict_with
from planner.searching.affordable import is_affordable_beside, n_affordable
from planner.searching.variants import Flags, flags_text, refusals, warnings_about, with_flags

MAX_ROWS = 6
# What moves the need or the speed by less is no reason why an estimate was wrong.
_WORTH_SHARE = 0.05
# What else people commonly run, by setting and by the value that was assumed.
_OTHERWISE: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "attention": {"sdpa": ("eager",), "eager": ("sdpa",), "flash2": ("eager",), "flex": ("sdpa",)},
        "load_dtype": {"bf16": ("fp32",), "fp16": ("fp32",), "fp32": ("bf16",)},
        "precision": {"bf16-mixed": ("bf16",), "fp16-mixed": ("fp32",), "bf16": ("bf16-mixed",)},
        "optimizer": {
            "adamw_torch_fused": ("adamw_torch", "adamw_8bit"),
            "adamw_torch": ("adamw_torch_fused", "adamw_8bit"),
        },
        "lora_targets": {"all-linear": ("attention",), "attention": ("all-linear",)},
        "lora_rank": {"8": ("64",), "16": ("64",), "64": ("8",)},
        "gradient_checkpointing": {"true": ("false",), "false": ("true",)},
        "batch": {"1": ("4",)},
        "grad_accum": {"1": ("8",)},
        # A Trainer evaluates 8 samples at once, however few it trains on (transformers 5.23.0
        # training_args.py per_device_eval_batch_size), and whole logits of them may be the peak.
        "evaluation": {"none": (str(EVAL_BATCH),)},
    }
)
_FLAG = {"evaluation": "eval-batch"}


@dataclass(frozen=True, slots=True)
class Unsaid:
    """One setting that nobody gave, and the answer where it is otherwise.

    ``setting`` is what was taken, ``flags`` ask for the other value.  ``moves_bytes``: what one GPU needs at
    least, after less before; ``speed_ratio``: real tokens per second, after over before (``None``: unknown);
    ``verdict``: after.
    """

    setting: str
    flags: str
    moves_bytes: int
    speed_ratio: float | None
    verdict: Verdict


def unsaid_settings(
    scenario: Scenario,
    prediction: Prediction,
    model: Coefficients | Calibration = PRIORS,
    *,
    stacks: bool = True,
) -> tuple[Unsaid, ...]:
    """At most ``MAX_ROWS`` settings that nobody gave and that move the need or the speed by 5 % or more,
    the largest first.

    ``prediction`` is that of the scenario under ``model``.  ``stacks``: other files of the stack, too.  Of
    versions that the name of the stack stands for, only the one that moves most.
    A value that a rule refuses or warns about is not tried, and one that is not modelled is left out.  Of
    large programs the first settings alone are tried, and what makes a program large is not.
    """
    need_bytes = float(prediction.memory.must_have_bytes)
    before = frozenset(refusals(scenario)) | warnings_about(scenario)
    tried = (
        (f"{name}={value}", flags, after)
        for name, value in _assumed(scenario)
        if stacks or name != "stack"
        for flags in _flags_otherwise(name, value)
        if (after := _variant(scenario, flags)) is not None
        and not (refusals(after).keys() | warnings_about(after)) - before
        and is_affordable_beside(scenario, after)
    )
    found = [
        _unsaid(setting, flags, prediction, answer)
        for setting, flags, after in islice(tried, n_affordable(scenario))
        if (answer := _answer(after, model)) is not None
    ]

    def weight(each: Unsaid) -> float:
        speed = 0.0 if each.speed_ratio is None else abs(each.speed_ratio - 1)
        return max(abs(each.moves_bytes) / need_bytes, speed)

    moving = sorted((each for each in found if weight(each) >= _WORTH_SHARE), key=lambda each: -weight(each))
    # Of several versions, the one that moves the answer most.
    less = [each for each in moving if each.flags.startswith("--versions ")][1:]
    return tuple(each for each in moving if each not in less)[:MAX_ROWS]


def _assumed(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Settings that the answer rests on and nobody gave, with the value that was taken."""
    unsaid = {each.name: each.value for each in scenario.assumptions if each.is_assumed}
    # Versions and switches that were given are those of this stack:
    # beside them no other version of it is what was meant.
    says_version = any(
        each.name in ("versions", "switches") and each.name not in unsaid for each in scenario.assumptions
    )
    if says_version:
        unsaid.pop("stack", None)
    yield from ((name, value) for name, value in unsaid.items() if name in (*_OTHERWISE, "stack"))
    # A tool's own file says whether it evaluates.
    from_file = any(each.is_tool_default for each in scenario.assumptions)
    if scenario.stack.runs_trainer and not scenario.run.evaluates and not from_file:
        yield "evaluation", "none"
    # "trl" alone is the newest of its first number, whatever it was for whoever asks.
    if not says_version and (newest := dict(scenario.stack.versions).get(scenario.stack.id)):
        yield "versions", f"{scenario.stack.id}=={newest}"


def _flags_otherwise(name: str, value: str) -> Iterator[dict[str, str | bool]]:
    if name == "versions":
        stack = value.partition("==")[0]
        for version in turning_versions(stack):
            yield {name: f"{stack}=={version}"}
        return
    for other in other_versions(value) if name == "stack" else _OTHERWISE[name].get(value, ()):
        flag = _FLAG.get(name, name.replace("_", "-"))
        yield {flag: {"true": True, "false": False}.get(other, other)}


def _variant(scenario: Scenario, flags: Flags) -> Scenario | None:
    """The job with other flags, or ``None`` where they exclude each other."""
    try:
        if "stack" in flags:
            return with_flags(scenario, {}, stack=load_stack(str(flags["stack"])))
        if "versions" in flags:
            package, _, version = str(flags["versions"]).partition("==")
            return with_flags(scenario, {}, stack=load_stack(package, ((package, version),)))
        return with_flags(scenario, flags)
    except UsageError:
        return None


def _answer(scenario: Scenario, model: Coefficients | Calibration) -> Prediction | None:
    """The prediction, or ``None`` of what fails or is not modelled: the job itself has its answer."""
    try:
        return predict_with(scenario, model)
    except NotModelledError:
        return None


def _unsaid(setting: str, flags: Flags, before: Prediction, after: Prediction) -> Unsaid:
    ratio = (
        float(after.time.tokens_per_s) / float(before.time.tokens_per_s)
        if before.time and after.time
        else None
    )
    moved = float(after.memory.must_have_bytes) - float(before.memory.must_have_bytes)
    return Unsaid(setting, flags_text(flags), round(moved), ratio, after.verdict)
