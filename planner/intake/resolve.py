"""Request -> Scenario: names looked up, gaps filled from the stack, combinations checked,
every value with its origin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from planner.catalog.hf_config import ConfigReader, model_from_config
from planner.catalog.left_whole import with_tower_whole
from planner.catalog.models import load_model
from planner.catalog.quantization_config import OF_THE_LAYERS
from planner.catalog.stacks import load_stack, with_switches
from planner.domain.hardware import Hardware
from planner.domain.model import ModelSpec
from planner.domain.recipes.parallel import Parallel
from planner.domain.recipes.recipe import LANGUAGE_TASKS, Batch
from planner.domain.recipes.sample_lengths import SampleLengths
from planner.domain.scenario import EVAL_BATCH, Assumption, RunPlan, Scenario
from planner.domain.stack import Stack
from planner.errors import NotModelledError, UsageError, as_one, show
from planner.intake.expert_parallel import MIXTURES
from planner.intake.fill_hardware import resolve_hardware
from planner.intake.fill_recipe import resolve_recipe
from planner.intake.fill_rollout import with_reward, with_teacher
from planner.intake.given.data_file import read_data
from planner.intake.given.ledger import Ledger
from planner.intake.given.request import ScenarioRequest, require
from planner.intake.images import loaded_part, without_adapters
from planner.intake.linears import (
    with_experts_apart,
    with_experts_on_host,
    with_linearized_experts,
    with_parameters,
    with_separate_experts,
)
from planner.intake.model_parallel import check_parallel, degrees
from planner.intake.rules.all_rules import Case, check
from planner.intake.supported import is_layer_of_another, takes_liger
from planner.intake.tasks import labels_of, stack_for, trained_model, with_own_loss, with_trained_head
from planner.intake.versions import enter_own_versions, resolve_versions

_OF_FILES = ("model", "data", "reward_model", "teacher_model")
"""Fields that are looked up in files or on the Hub."""
DEFAULT_STACK = "hf-trainer@5"
PREFERENCE_STACK = "trl"
"""Where nothing is given: the Trainer of Transformers has no loss of preferences."""
PARALLEL_STACK = "torchtitan"
"""Where nothing is given: the Trainer of Transformers cannot divide matrices beside batches or sequences,
nor sequences without ZeRO.
"""
EXPERT_STACK = "torchtitan@2025"
"""Where no stack is given beside experts that GPUs divide, if it has the model; else Transformers divides."""


def resolve(
    request: ScenarioRequest,
    *,
    force: bool = False,
    reader: ConfigReader = model_from_config,
    model: ModelSpec | None = None,
) -> Scenario:
    """The scenario that ``request`` asks for.

    Args:
        request: what was given.
        force: turn refused combinations into warnings.
        reader: describes a model that the catalog does not have.
        model: the model that the request names, where it is at hand: then no catalog is asked for it.

    Raises:
        UnknownNameError: a model, GPU, host or stack that no catalog knows.
        UsageError: something without a default was not given.
        RefusedCombinationError: settings that exclude each other (unless ``force``).
        NotModelledError: understood, but no formula covers it.
    """
    return complete(request, look_up(request, reader, model=model), force=force)


def with_other_errors(error: UsageError, request: ScenarioRequest, check: Callable[[], None]) -> UsageError:
    """``error`` and whatever else is wrong: names that no catalog knows, and what ``check`` finds missing."""
    ledger = Ledger(request)
    steps = {
        "model": lambda: load_model(request.get("model"), model_from_config),
        "gpu": lambda: resolve_hardware(ledger),
        "stack": lambda: load_stack(request.get("stack")),
    }
    found: list[UsageError] = []
    for step in (*(step for name, step in steps.items() if request.is_given(name)), check):
        try:
            step()
        except UsageError as each:
            found.append(each)
        except NotModelledError:
            continue
    return as_one(found) if str(error) in map(str, found) else error


@dataclass(frozen=True, slots=True)
class LookedUp:
    """What a job names outside its recipe, looked up once: many recipes can be completed over it.

    ``entries``: the values that were settled on the way, with their origins.  ``doubts``: warnings about what
    was looked up.  ``lengths``: those of the samples, where a data set is named.  ``second``: the
    model that scores completions or teaches, where one is named.
    """

    model: ModelSpec
    hardware: Hardware
    stack: Stack
    run: RunPlan
    entries: tuple[Assumption, ...]
    doubts: tuple[str, ...] = ()
    lengths: SampleLengths | None = None
    second: ModelSpec | None = None


def look_up(
    request: ScenarioRequest,
    reader: ConfigReader = model_from_config,
    *,
    like: LookedUp | None = None,
    model: ModelSpec | None = None,
) -> LookedUp:
    """Model, hardware, stack and length of the run; no file is read and nobody is asked after this.

    ``like``: what was looked up for the same model before, which is then not read again.  ``model``:
    the model itself.

    Raises:
        UnknownNameError: a model, GPU, host or stack that no catalog knows.
        UsageError: the model or the GPU was not given.
        NotModelledError: understood, but no formula covers it.
    """
    degree = request.get("pipeline_parallel") or 1
    if degree > 1 and request.record_id is not None:
        raise NotModelledError(
            f"pipeline parallel of {degree} is not modelled in a record, which has no schedule"
        )
    ledger = Ledger(request)
    doubts: tuple[str, ...] = ()
    if like is not None:
        ledger = Ledger(request, [entry for entry in like.entries if entry.name in _OF_FILES])
        model, doubts = like.model, like.doubts
    elif model is None:
        model, doubts = _resolve_model(ledger, reader)
    else:
        ledger.choose("model", model.id, "given", model.source)
    hardware = resolve_hardware(ledger)
    stack = _resolve_stack(ledger, hardware, model)
    lengths = like.lengths if like is not None else _resolve_data(ledger)
    second = like.second if like is not None else _resolve_second(ledger, reader)
    run = _resolve_run(ledger)
    return LookedUp(model, hardware, stack, run, ledger.assumptions, doubts, lengths, second)


def complete(request: ScenarioRequest, found: LookedUp, *, force: bool = False) -> Scenario:
    """The scenario of a recipe over what was looked up for the same model, hardware, stack and run.

    Raises:
        UsageError: something without a default was not given.
        RefusedCombinationError: settings that exclude each other (unless ``force``).
    """
    scenario = assembled(request, found)
    warnings = check(Case(scenario, request.values), force=force)
    return replace(scenario, warnings=(*found.doubts, *warnings))


def assembled(request: ScenarioRequest, found: LookedUp) -> Scenario:
    """:func:`complete`, with no word about combinations that the rules refuse or warn about.

    Raises:
        UsageError: something without a default was not given.
    """
    ledger = Ledger(request, found.entries)
    loaded = loaded_part(ledger, found.model, found.stack)
    if found.stack.host_experts != "none":
        loaded = with_experts_on_host(loaded)
    recipe = resolve_recipe(ledger, loaded, found.hardware, found.stack, found.lengths)
    recipe = with_reward(ledger, recipe, found.second, found.stack)
    recipe = with_teacher(ledger, recipe, found.second, found.stack)
    if recipe.uses_deepspeed and not ledger.is_given("versions"):
        enter_own_versions(ledger, found.stack)
    model = trained_model(loaded, recipe.task, found.stack, labels_of(ledger, recipe.task))
    recipe = with_trained_head(recipe, model)
    if recipe.numerics.quantization in OF_THE_LAYERS:
        model = with_tower_whole(model)
    if not found.stack.fused_experts:
        model = with_separate_experts(model)
    elif found.stack.expert_targets == "named":
        model = with_experts_apart(model)
    if found.stack.linearized_experts:
        model = with_linearized_experts(model)
    if recipe.adapter is not None:
        model = with_parameters(model, recipe.adapter.targets, found.stack.expert_targets)
    model = without_adapters(model, recipe.frozen)
    stack = with_own_loss(stack_for(found.stack, recipe, model), model)
    run = _run_over(found, recipe.batch)
    scenario = Scenario(
        model,
        found.hardware,
        recipe,
        stack,
        run,
        ledger.assumptions,
        whole_model=found.model,
        whole_second=found.second,
    )
    check_parallel(scenario)
    return scenario


def _resolve_model(ledger: Ledger, reader: ConfigReader) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model, and what every answer notes about how it was found."""
    require(ledger.request, "model")
    given = ledger.request.values["model"]
    resolved = load_model(given.value, reader)
    ledger.enter("model", resolved.spec.id, given.origin, resolved.note)
    return resolved.spec, (resolved.doubt,) if resolved.doubt else ()


def _resolve_second(ledger: Ledger, reader: ConfigReader) -> ModelSpec | None:
    name = "teacher_model" if ledger.is_given("teacher_model") else "reward_model"
    given = ledger.request.values.get(name)
    if given is None:
        return None
    resolved = load_model(given.value, reader)
    ledger.enter(name, resolved.spec.id, given.origin, resolved.note)
    return resolved.spec


def _resolve_stack(ledger: Ledger, hardware: Hardware, model: ModelSpec) -> Stack:
    trains_tokens = (ledger.request.get("task") or "sft") in LANGUAGE_TASKS
    parallel = degrees(ledger.request)
    default = DEFAULT_STACK if trains_tokens else PREFERENCE_STACK
    if trains_tokens and _needs_parallel_stack(ledger.request, parallel, hardware):
        default = PARALLEL_STACK
    if (ledger.request.get("expert_parallel") or 1) > 1:
        default = EXPERT_STACK if model.architecture in MIXTURES else DEFAULT_STACK
    stack = resolve_versions(ledger, load_stack(ledger.choose("stack", default, "assumed")))
    if ledger.is_given("stack"):
        ledger.enter("stack", stack.id, ledger.request.values["stack"].origin, stack.title)
    else:
        ledger.enter("stack", stack.id, "assumed", stack.title)
    return _switched(ledger, stack, model)


def _needs_parallel_stack(request: ScenarioRequest, parallel: Parallel, hardware: Hardware) -> bool:
    """Whether the Trainer's way was not read: of sequences and matrices it was beside ZeRO, of matrices over
    all GPUs, too.
    """
    if not parallel.divides or hardware.world_size <= parallel.tensor:
        return False
    has_zero = str(request.get("sharding")).startswith("zero")
    if parallel.gpus == parallel.tensor:
        return not has_zero
    return not (parallel.gpus == parallel.context and (has_zero or request.get("method") != "full"))


def _switched(ledger: Ledger, stack: Stack, model: ModelSpec) -> Stack:
    """``stack`` with the switches that the job gives otherwise; a tower's only where the model has one,
    and Liger's only where it has functions for the model.
    """
    given = ledger.request.values.get("switches")
    if given is None:
        return stack
    pairs: dict[str, str] = {}
    for text in given.value:
        name, separator, value = text.partition("=")
        if not (separator and name.strip() and value.strip()):
            raise UsageError(
                "switches must be written name=value, such as zero12_overlap=false, but one is "
                f"'{show(text)}'"
            )
        if name.strip() in pairs:
            raise UsageError(f"switch '{show(name)}' is given twice")
        pairs[name.strip()] = value.strip()
    if model.vision is None:
        pairs.pop("tower_units", None)
    _settle_liger(pairs, model, stack)
    classes = pairs.pop("fsdp_layer_class", "").split("+")
    if other := next((name for name in classes if is_layer_of_another(name, model)), ""):
        pairs["fsdp_layer_class"] = other
    if not pairs:
        return stack
    ledger.enter("switches", given.value, given.origin, given.note)
    return with_switches(stack, pairs, given.origin)


def _settle_liger(pairs: dict[str, str], model: ModelSpec, stack: Stack) -> None:
    """Liger's kernels where it has functions for the model, with its experts where it replaces these."""
    experts = stack.fused_experts and model.architecture in stack.liger_experts
    if experts and pairs.get("fused_mlp") == "liger":
        pairs.setdefault("mixture_code", "liger")
    for name in [name for name in pairs if pairs[name] == "liger" and name != "mixture_code"]:
        pairs[name] = "true"
        if not takes_liger(model, stack):
            del pairs[name]


def _resolve_data(ledger: Ledger) -> SampleLengths | None:
    """The lengths of the data set that is named."""
    path, tokenizer = ledger.request.get("data"), ledger.request.get("tokenizer")
    if path is None:
        if tokenizer is not None:
            raise UsageError("--tokenizer counts the tokens of --data, which is not given")
        return None
    if ledger.is_given("tokens_per_sample"):
        raise UsageError("--data says how long samples are, so --tokens-per-sample cannot be given beside it")
    read = read_data(Path(path), None if tokenizer is None else Path(tokenizer))
    ledger.enter("data", path, ledger.request.values["data"].origin, read.remark)
    return read.lengths


def _run_over(found: LookedUp, batch: Batch) -> RunPlan:
    """The run, over all samples of the data set where it is not given how many there are."""
    if found.lengths is None or batch.lengths is None or found.run.n_samples is not None:
        return found.run
    n_sequences = int(batch.lengths.kept(batch.seq_len))
    if batch.padding == "packed":
        n_sequences = math.ceil(
            n_sequences * float(batch.lengths.mean_tokens(batch.seq_len)) / float(batch.seq_len)
        )
    return replace(found.run, n_samples=max(n_sequences // (2 if batch.is_paired else 1), 1))


def _resolve_run(ledger: Ledger) -> RunPlan:
    samples: int | None = ledger.request.get("samples")
    price: float | None = ledger.request.get("price")
    epochs: float = ledger.request.get("epochs") or 1.0
    eval_samples: int | None = ledger.request.get("eval_samples")
    eval_batch: int | None = ledger.request.get("eval_batch")
    for name, default in (
        ("samples", samples),
        ("epochs", epochs),
        ("price", price),
        ("eval_samples", eval_samples),
    ):
        if ledger.is_given(name) or (name == "epochs" and samples is not None):
            ledger.choose(name, default, "assumed")
    if ledger.is_given("eval_batch") or eval_samples is not None:
        eval_batch = ledger.choose("eval_batch", EVAL_BATCH, "assumed")
    return RunPlan(samples, epochs, price, eval_samples, eval_batch)
