"""A case: one job to measure, and how to measure it.  Plain data; what a case means is decided here,
without torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, get_args

from planner.domain.recipes.job_line import recomputation_words, short_job_line
from planner.domain.recipes.recipe import LABEL_TASKS
from planner.domain.recipes.sharding import DDP, FSDP1, HSDP1
from planner.domain.scenario import Scenario
from planner.errors import NotModelledError, UsageError
from planner.intake.given.request import Given, ScenarioRequest
from planner.intake.resolve import resolve
from planner.units import format_bytes

Workload = Literal["loop", "trainer"]
WORKLOADS: tuple[Workload, ...] = get_args(Workload)
CPU = "cpu"
# Options that change how long we wait, not what is measured:
# two cases that differ in them alone are the same case.
_NOT_IN_KEY = frozenset({"timeout_s", "budget_s", "trust_remote_code", "nvme_path", "rendezvous"})
_KEY_DIGITS = 12
_RUNNABLE_STACK = "hf-trainer@5"
_HSDP = (
    "sharding hsdp divides within a node and copies across them: say --nodes 2 or more and --workload "
    "loop, or --sharding fsdp"
)
_FSDP1 = (
    "sharding fsdp1 runs in the Trainer on GPUs only, which still wraps that way: say --workload "
    "trainer, or --sharding fsdp"
)
_INT8 = (
    "an int8 base cannot be divided over GPUs, because its scales do not follow its weights: say "
    "--sharding zero2 or ddp"
)
_FOUR_BIT = (
    "a 4-bit base under ZeRO-3 needs its bytes in a float dtype, because only floats are divided: say "
    "--quant-storage bf16"
)
_FP16 = (
    "fp16 under FSDP cannot be run: torch's GradScaler does not know divided gradients; say "
    "--precision bf16-mixed"
)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a case is measured.

    ``warmup`` steps do not count, at least ``steps`` do.  Then come more, up to ``max_steps``.  They end when
    the interquartile range is at most ``settle`` of the median, or after ``budget_s`` seconds of stepping.
    ``lengths`` are evenly spaced quantiles of the samples' real tokens, from the minimum to the maximum;
    empty: all are as long as the scenario says.  ``memory_limit_bytes`` is what the case may use of device
    memory; on a CPU, of the private memory of the process.  ``nvme_path`` is the folder to which an engine
    offloads, ``rendezvous`` the ``host:port`` where several nodes meet.
    """

    workload: Workload = "trainer"
    steps: int = 5
    warmup: int = 3
    max_steps: int = 30
    settle: float = 0.03
    budget_s: float = 60.0
    timeout_s: float = 900.0
    lengths: tuple[int, ...] = ()
    seed: int = 0
    memory_limit_bytes: int | None = None
    checkpoint: str | None = None
    trust_remote_code: bool = False
    history: bool = False
    save: bool = False
    nvme_path: str | None = None
    rendezvous: str | None = None


@dataclass(frozen=True, slots=True)
class RunCase:
    """A job and how it is measured.

    ``values``: what was given of the job, by the names of ``REQUEST_FIELDS``.
    """

    values: Mapping[str, Any]
    options: RunOptions = field(default_factory=RunOptions)
    force: bool = False

    def scenario(self) -> Scenario:
        """The resolved job.

        Raises:
            PlannerError: what ``planner.intake`` refuses.
        """
        given = {name: Given(value, "cli") for name, value in self.values.items()}
        return resolve(ScenarioRequest(MappingProxyType(given)), force=self.force)

    def to_json(self) -> dict[str, Any]:
        """As JSON values, for the file that a worker reads."""
        return {"values": dict(self.values), "options": asdict(self.options), "force": self.force}


def case_from_json(data: Mapping[str, Any]) -> RunCase:
    """The case that :meth:`Case.to_json` wrote."""
    options = dict(data["options"])
    options["lengths"] = tuple(options["lengths"])
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data["values"].items()
    }
    return RunCase(values, RunOptions(**options), bool(data["force"]))


def case_key(case: RunCase, scenario: Scenario) -> str:
    """Twelve hex digits that name what is measured:
    the same for a value that was given and one that was filled in.
    """
    recipe, hardware = scenario.recipe, scenario.hardware
    options = {key: value for key, value in asdict(case.options).items() if key not in _NOT_IN_KEY}
    identity = {
        "model": scenario.model.id,
        "gpu": hardware.gpu.id,
        "gpus": hardware.gpus_per_node,
        "nodes": hardware.nodes,
        "stack": scenario.stack.id,
        "recipe": asdict(recipe) | {"sharding": recipe.sharding.name},
        "options": options,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]


def describe(scenario: Scenario, options: RunOptions) -> str:
    """The case in a line, for progress and tables: the job, and what differs from most,
    so that no two cases read alike.
    """
    recipe = scenario.recipe
    unusual = {
        recipe.attention: recipe.attention != "sdpa",
        f"{recipe.loss} loss": recipe.loss != "hf",
        f"lengths {recipe.batch.padding}": bool(options.lengths),
        options.workload: options.workload != RunOptions().workload,
    }
    also = [
        recipe.optimizer,
        *recomputation_words(recipe),
        *(text for text, applies in unusual.items() if applies),
    ]
    also += (
        [f"within {format_bytes(options.memory_limit_bytes)}"]
        if options.memory_limit_bytes is not None
        else []
    )
    return short_job_line(scenario, with_gpus=False, also=also)


def _check_software(case: RunCase, scenario: Scenario) -> None:
    """The task, the stack and the kind of weights.

    Raises:
        NotModelledError: none of this package's workloads runs them.
    """
    recipe, task = scenario.recipe, scenario.recipe.task
    if recipe.has_own_loss or task in LABEL_TASKS:
        raise NotModelledError(
            f"task '{task}' cannot be run yet; ask for a dry run: measure trace --task {task} ..."
        )
    if scenario.stack.id != _RUNNABLE_STACK:
        raise NotModelledError(
            f"stack '{scenario.stack.id}' cannot be run: only {_RUNNABLE_STACK} can; leave --stack out"
        )
    if recipe.numerics.fp8 != "none":
        raise NotModelledError("products in fp8 cannot be run: leave --fp8 out")
    if recipe.parallel.hpz > 1:
        raise NotModelledError("a second copy of weights cannot be run: leave --hpz out")
    if recipe.parallel.replicas:
        raise NotModelledError("copies of one node each can be run, and no others: leave --replicas out")
    if recipe.parallel.divides:
        raise NotModelledError(
            "GPUs that share a batch cannot be run: leave --tensor-parallel and --context-parallel out"
        )
    if "switches" in case.values:
        raise NotModelledError(
            "switches describe other software than the one that runs here; leave --switches out"
        )
    if recipe.numerics.arrives_packed:
        raise NotModelledError(
            "a packed base cannot be run: it needs a quantised checkpoint and its own library"
        )


def check_runnable(case: RunCase, scenario: Scenario) -> None:
    """Refuse what no workload runs, before anything is started.

    Raises:
        NotModelledError: understood, but no workload of this package runs it.
        UsageError: options that exclude each other.
    """
    recipe = scenario.recipe
    _check_software(case, scenario)
    if recipe.loss == "liger" and scenario.hardware.gpu.id == CPU:
        raise NotModelledError("Liger's kernels run on a GPU only: say --loss hf")
    if recipe.loss == "chunked" and case.options.workload != "loop":
        raise NotModelledError("the Trainer has no chunked loss of its own: say --workload loop")
    if case.options.history and scenario.hardware.gpu.id == CPU:
        raise UsageError("there is no allocator history on a CPU: leave --history out")
    _check_sharding(case, scenario)
    if scenario.hardware.nodes > 1 and case.options.rendezvous is None:
        raise UsageError(
            "several nodes need a place to meet: give the same command on each node with --rendezvous "
            "HOST:PORT of one of them"
        )
    if case.options.lengths and max(case.options.lengths) > recipe.batch.seq_len:
        raise UsageError(
            f"--lengths goes up to {max(case.options.lengths)} tokens, but --seq is {recipe.batch.seq_len}"
        )
    if scenario.model.remote_code and not case.options.trust_remote_code:
        raise UsageError(
            f"the code of model '{scenario.model.id}' comes with its checkpoint and runs only with "
            "--trust-remote-code"
        )


def _check_sharding(case: RunCase, scenario: Scenario) -> None:
    recipe = scenario.recipe
    if not recipe.sharding.communicates:
        if scenario.hardware.world_size > 1:
            raise UsageError(
                "several GPUs with sharding none are not one job: say --sharding ddp, zero1 to zero3 or fsdp"
            )
        return
    for reason, applies in _sharding_refusals(case, scenario):
        if applies:
            raise NotModelledError(reason)


def _sharding_refusals(case: RunCase, scenario: Scenario) -> tuple[tuple[str, bool], ...]:
    """Why a sharded job cannot be run, each with whether that is so."""
    recipe, options = scenario.recipe, case.options
    on_cpu, in_trainer = scenario.hardware.gpu.id == CPU, options.workload == "trainer"
    quantization = recipe.numerics.quantization
    divides_weights = recipe.sharding.gathers_weights
    four_bit = quantization in ("nf4", "fp4")
    trainer_on_cpu = (
        f"on a CPU the Trainer runs plain DDP where {recipe.sharding} is asked for: say --workload loop"
    )
    return (
        (trainer_on_cpu, on_cpu and in_trainer and recipe.sharding != DDP),
        (_HSDP, recipe.sharding.scope == "node" and (in_trainer or scenario.hardware.nodes == 1)),
        ("sharding hsdp1 cannot be run: say --sharding hsdp", recipe.sharding == HSDP1),
        (_FSDP1, recipe.sharding == FSDP1 and (on_cpu or not in_trainer)),
        ("sharded jobs run with the full loss only: say --loss hf", recipe.loss != "hf"),
        (_INT8, quantization == "int8" and divides_weights),
        (_FOUR_BIT, four_bit and recipe.sharding.is_zero3 and recipe.numerics.quant_storage is None),
        (_FP16, recipe.numerics.precision == "fp16-mixed" and recipe.uses_fsdp),
        (
            "offload of activations cannot be run: no engine of this package moves them",
            recipe.offloads_activations,
        ),
        (
            "offload to NVMe needs a folder on such a disk: say --nvme-path",
            recipe.offloads_to_nvme and options.nvme_path is None,
        ),
        ("offload to NVMe needs a GPU: a CPU run keeps all in host RAM", recipe.offloads_to_nvme and on_cpu),
    )


def option_names() -> tuple[str, ...]:
    """Names of the options of a run, as a campaign file may set them."""
    return tuple(each.name for each in fields(RunOptions))
