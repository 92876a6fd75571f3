"""Whether what a record says can be: settings that ``plan`` refuses, readings that its card cannot hold."""

from __future__ import annotations

from planner.domain.run_record import RunRecord
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import ScenarioRequest, from_record
from planner.intake.resolve import resolve
from planner.intake.rules.all_rules import Case, refusals
from planner.memory.replayed_peak import predict_replayed
from planner.program.job import Job, job_of
from planner.program.ops.tensors import ELEMENT_BYTES
from planner.program.parameters import model_weights
from planner.units import MIB

# What the driver reports may exceed what CUDA shows by its own reservation, up to about 4 % of a 24 GiB card.
_DRIVER_MARGIN = 1.04
# Weights that a record's stack may hold in fewer bits than the planner thinks are no reason to doubt its
# unit.
_LEAST_SHARE_OF_WEIGHTS = 0.5
# A program may make a model's table of positions longer, and its run shows that it did.
_RUNS_ALL_THE_SAME = frozenset({"sequence-above-table"})

NOT_KEPT = "no source says how much of it the driver keeps, which a reading of the board has: memory_kind"
ABOVE_CARD = "more memory than the card has: its unit or its GPU is wrong"
BELOW_WEIGHTS = "less memory than the weights alone take: its unit or its model is wrong"


def scenario_of(record: RunRecord) -> tuple[Scenario, str]:
    """What the record ran, and why ``plan`` would refuse it; empty where it would not.

    Raises:
        UsageError: a name that no catalog knows, or a value outside its range.
        NotModelledError: the record uses something that no formula covers.
    """
    request: ScenarioRequest = from_record(record)
    scenario = resolve(request, force=True)
    found = refusals(Case(scenario, request.values))
    return scenario, "; also: ".join(
        message for rule, message in found.items() if rule not in _RUNS_ALL_THE_SAME
    )


def below_weights(record: RunRecord, scenario: Scenario) -> str:
    """What is wrong with a peak that the weights on the GPU do not fit into; empty where nothing is."""
    if record.peak_memory_mib is None or record.phase_reached == "load":
        return ""
    job = job_of(scenario, Coefficients())
    cards = scenario.hardware.world_size if record.memory_scope == "all_gpus" else 1
    peak_bytes = record.peak_memory_mib * MIB
    # Most rows hold more than the weights ever could, and need no replay to see it.
    if peak_bytes >= _LEAST_SHARE_OF_WEIGHTS * _most_weights_bytes(job) * cards:
        return ""
    terms = predict_replayed(job, minimum_too=False).terms
    weights_bytes = sum(
        float(term.n_bytes) for term in terms if term.name == "weights" and "optimizer_step" in term.phases
    )
    if peak_bytes >= _LEAST_SHARE_OF_WEIGHTS * weights_bytes * cards:
        return ""
    return (
        f"{record.peak_memory_mib:g} MiB for weights of {weights_bytes * cards / MIB:.0f} MiB: "
        f"{BELOW_WEIGHTS}"
    )


def _most_weights_bytes(job: Job) -> float:
    """Bytes of all weights where each lies whole on the GPU, packed in a byte or else in fp32."""
    models = 2 if job.recipe.has_reference_model else 1
    return models * sum(
        each.count * (1 if each.packed else ELEMENT_BYTES["fp32"]) for each in model_weights(job)
    )


def above_card(record: RunRecord, scenario: Scenario) -> str:
    """What is wrong with a peak above the card's memory; empty where nothing is."""
    hardware = scenario.hardware
    card_bytes = hardware.gpu.marketing_memory_bytes or hardware.gpu.visible_memory_bytes
    if record.peak_memory_mib is None:
        return ""
    if record.memory_kind == "board" and hardware.gpu.driver_keeps_bytes is None:
        return f"{hardware.gpu.id}: {NOT_KEPT}"
    if card_bytes is None:
        return ""
    cards = hardware.world_size if record.memory_scope == "all_gpus" else 1
    if record.peak_memory_mib * MIB <= card_bytes * cards * _DRIVER_MARGIN:
        return ""
    return (
        f"{record.peak_memory_mib:.0f} MiB on {cards} x {hardware.gpu.id} of {card_bytes / MIB:.0f} "
        f"MiB: {ABOVE_CARD}"
    )
