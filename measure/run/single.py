"""One case from what was given to its record on the disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measure.run.assemble import MeasuredRecord, assemble
from measure.run.cases.builds import missing_build_tool
from measure.run.cases.case import CPU, RunCase, RunOptions, check_runnable, describe
from measure.run.cases.lengths import mean_length
from measure.run.launcher import Launcher
from measure.run.readings.machine import Machine, this_machine
from measure.run.store import Store
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.domain.recipes.recipe import DTYPE_BYTES
from planner.domain.scenario import Scenario
from planner.errors import ExitCode, PlannerError, UsageError, how_to_install
from planner.units import format_bytes

_CURES = {
    "flash_attn": "pip install flash-attn, or say --attention sdpa",
    "liger_kernel": "pip install liger-kernel, or say --loss hf",
}
_COMPILERS = "install a C++ compiler (g++) and ninja (pip install ninja), or say --offload none"
# Of one weight of a quantised model, without its scales.  2: of AQLM's published checkpoints.
_WEIGHT_BITS = {
    "nf4": 4,
    "fp4": 4,
    "gptq-int4": 4,
    "awq-int4": 4,
    "int8": 8,
    "gptq-int8": 8,
    "fp8": 8,
    "aqlm": 2,
}
Say = Callable[[str], None]
_CPU_SENTENCE = (
    "the steps run on the CPU, which says nothing about a GPU and takes minutes to hours for a step of a "
    "model with billions of weights"
)


class OtherNodeError(PlannerError):
    """This node took part in a job of several nodes, and another one writes the record;
    that is no failure if all went well.
    """

    def __init__(self, message: str, *, done: bool) -> None:
        super().__init__(message)
        self.exit_code = ExitCode.FITS if done else ExitCode.INTERNAL_ERROR


class HostMemoryShortError(PlannerError):
    """A job on the CPU whose weights alone are more than this machine holds."""

    exit_code = ExitCode.HOST_MEMORY_SHORT


@dataclass(frozen=True, slots=True)
class Finished:
    """A measured case and where its record is."""

    label: str
    measured: MeasuredRecord
    path: Path


@dataclass(frozen=True, slots=True)
class Prepared:
    """A case that this machine can run."""

    case: RunCase
    scenario: Scenario


def prepare(values: Mapping[str, Any], options: RunOptions, machine: Machine, *, force: bool) -> Prepared:
    """Place a job on this machine and check that it can run at all.

    Raises:
        PlannerError: it cannot; the message says why, and which extra has a missing library.
    """
    given = machine.place(values)
    if options.lengths and "tokens_per_sample" not in given and given.get("padding") != "packed":
        given["tokens_per_sample"] = mean_length(options.lengths)
    case = RunCase(given, options, force)
    scenario = case.scenario()
    check_runnable(case, scenario)
    _check_limit(scenario, options, machine)
    if scenario.hardware.gpu.id != CPU:
        _check_driver(machine)
    elif not force:
        _check_host(scenario, machine)
    _need_libraries(scenario)
    return Prepared(case, scenario)


def _check_host(scenario: Scenario, machine: Machine) -> None:
    """On the CPU weights are in host RAM, and the kernel kills other programs too when it is short."""
    recipe, numerics = scenario.recipe, scenario.recipe.numerics
    at_once = OPTIMIZER_FACTS[recipe.optimizer].library != "tool" and not recipe.optimizer_in_backward
    trains_all = at_once and not (recipe.adapter or recipe.train_layers or recipe.frozen)
    # Gradients have the dtype of the weights; states of the optimizer and activations come on top.
    least_bits = _WEIGHT_BITS.get(numerics.quantization, 8 * DTYPE_BYTES[numerics.load_dtype])
    on_all_nodes = scenario.model.param_count * least_bits / 8 * (2 if trains_all else 1)
    needed_bytes = on_all_nodes / scenario.hardware.nodes
    limits = (machine.environment.get(name) for name in ("host_memory_bytes", "container_limit_bytes"))
    here_bytes = min((each for each in limits if each is not None), default=needed_bytes)
    if needed_bytes > here_bytes:
        what = "weights and gradients" if trains_all else "weights"
        raise HostMemoryShortError(
            f"{what} of this job take {format_bytes(needed_bytes)} of host RAM at least, and this machine "
            f"has {format_bytes(here_bytes)}: take a smaller model, or a machine with a GPU (--force goes on "
            "anyway)"
        )


def _check_limit(scenario: Scenario, options: RunOptions, machine: Machine) -> None:
    """A limit above the card limits nothing: a shortage under it would be called one of a larger card."""
    limit_bytes = options.memory_limit_bytes
    if limit_bytes is None or scenario.hardware.gpu.id == CPU or not machine.gpus:
        return
    here_bytes = machine.gpus[0].memory_bytes
    if limit_bytes > here_bytes:
        raise UsageError(
            f"the memory limit is {format_bytes(limit_bytes)} and the card of this machine has "
            f"{format_bytes(here_bytes)}: leave --memory-limit out, or give less"
        )


def _check_driver(machine: Machine) -> None:
    """A driver runs builds for its own CUDA and older ones, and of its own major version newer ones too.

    Source: CUDA compatibility guide (minor version compatibility);
    torch would say it after each case was started.
    """
    built = machine.environment.get("torch_cuda")
    driver = machine.gpus[0].cuda_driver if machine.gpus else None
    if (
        built is not None
        and driver is not None
        and int(built.partition(".")[0]) > int(driver.partition(".")[0])
    ):
        raise UsageError(
            f"the installed torch is built for CUDA {built} and the driver {machine.gpus[0].driver} goes "
            f"up to CUDA {driver}: install a build of torch for CUDA {driver.partition('.')[0]}, or a "
            "newer driver"
        )


def measure_one(
    values: Mapping[str, Any], options: RunOptions, *, store: Store, force: bool, say: Say
) -> Finished:
    """Run one case and record it.

    Raises:
        PlannerError: it cannot be run here, or the record cannot be written.
    """
    machine = this_machine()
    prepared = prepare(values, options, machine, force=force)
    store.prepare()
    if prepared.scenario.hardware.gpu.id == CPU:
        say(f"{_CPU_SENTENCE}; --timeout ({options.timeout_s:g} s) ends it")
    say(describe(prepared.scenario, options))
    with Launcher(machine.nvml) as launcher:
        measured = run_prepared(prepared, machine, launcher)
    _check_node(measured)
    return Finished(describe(prepared.scenario, options), measured, store.add(measured))


def _check_node(measured: MeasuredRecord) -> None:
    """Of several nodes, the one with rank 0 writes the record.

    Raises:
        OtherNodeError: this is another one.
    """
    ranks = [rank["rank"] for rank in measured.attachments["raw"]["ranks"]]
    if ranks and ranks[0] > 0:
        outcome = measured.record.outcome
        here = f"ranks {ranks[0]} to {ranks[-1]}, on this node, ended as {outcome}"
        raise OtherNodeError(f"{here}; the node with rank 0 has the record", done=outcome == "ok")


def run_prepared(
    prepared: Prepared, machine: Machine, launcher: Launcher, end_s: float | None = None
) -> MeasuredRecord:
    """Run a case in a process of its own, which is killed at ``end_s`` of the monotonic clock at the latest.

    Raises:
        UsageError: the installed torch has no CUDA although there is a GPU.
    """
    hardware = prepared.scenario.hardware
    on_gpu = hardware.gpu.id != CPU
    if on_gpu and not launcher.facts["cuda_available"]:
        raise UsageError(
            "the installed torch cannot use the GPU of this machine: install a CUDA build of it, or "
            "say --gpu cpu"
        )
    devices = [gpu.index for gpu in machine.gpus[: hardware.gpus_per_node]] if on_gpu else []
    run = launcher.run(prepared.case, ranks=hardware.gpus_per_node, devices=devices, end_s=end_s)
    return assemble(prepared.case, prepared.scenario, run, machine.environment)


def _need_libraries(scenario: Scenario) -> None:
    recipe = scenario.recipe
    needed = {
        "bitsandbytes": recipe.numerics.quantization in ("nf4", "fp4", "int8")
        or OPTIMIZER_FACTS[recipe.optimizer].library == "bitsandbytes",
        "deepspeed": recipe.uses_deepspeed,
        "flash_attn": recipe.attention == "flash2",
        "liger_kernel": recipe.loss == "liger",
    }
    for name, wanted in needed.items():
        if wanted and find_spec(name) is None:
            raise UsageError(
                f"{name} is not installed and this job needs it; "
                f"{_CURES.get(name, how_to_install('measure'))}"
            )
    on_gpu = scenario.hardware.gpu.id != CPU
    if (
        on_gpu
        and recipe.uses_deepspeed
        and recipe.offloads_optimizer
        and (tool := missing_build_tool()) is not None
    ):
        raise UsageError(
            f"DeepSpeed compiles its Adam for the CPU on first use, and '{tool}' is not here: {_COMPILERS}"
        )
