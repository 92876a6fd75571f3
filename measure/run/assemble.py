"""One case and how it went -> one record with its raw readings, environment and quality verdict."""

from __future__ import annotations

import math
import secrets
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from measure.run.cases.case import CPU, RunCase, case_key
from measure.run.evidence import evidence_of
from measure.run.launcher import Event, RunResult
from measure.run.pace import interquartile_range
from measure.run.quality import is_censored, judge
from measure.run.readings.environment import environment_key
from planner.domain.recipes.flat_recipe import flat_recipe
from planner.domain.run_record import RunRecord
from planner.domain.scenario import Scenario
from planner.domain.term import PHASES, Phase
from planner.printing import without_passwords
from planner.units import MIB

_ID_BYTES = 3
_NODES_NOTE = "readings are those of the node with rank 0; the others are alike and are not read"
_PAGED_NOTE = "bitsandbytes has no paged states on a CPU: they are ordinary host memory here"
_HISTORY_NOTE = "host memory includes the making of the allocator's history after the warm-up"
_CPU_NOTE = "CPU run: device memory does not exist here and is not recorded; host memory holds the model"


@dataclass(frozen=True, slots=True)
class MeasuredRecord:
    """A record and what travels with it."""

    record: RunRecord
    attachments: dict[str, Any]
    history: bytes | None = None


def assemble(
    case: RunCase, scenario: Scenario, run: RunResult, environment: Mapping[str, Any]
) -> MeasuredRecord:
    """The record of one run."""
    counted = [event for event in _steps(run) if not event["warmup"]]
    evidence = evidence_of(case, run, scenario, _steps(run), environment)
    verdict, reasons = judge(evidence)
    raw = _raw(case, scenario, run, environment)
    record = RunRecord(
        **_identity(raw, environment, scenario),
        **scenario_columns(scenario),
        **_measured_columns(scenario, run, counted),
        memory_limit_mib=_limit_mib(case, scenario),
        censored=is_censored(evidence),
        notes=_notes(case, scenario),
    )
    return MeasuredRecord(
        record,
        {
            "raw": raw,
            "environment": dict(environment),
            "quality": {"verdict": verdict, "reasons": list(reasons)},
        },
        run.history,
    )


def _notes(case: RunCase, scenario: Scenario) -> str | None:
    on_cpu = scenario.hardware.gpu.id == CPU
    notes = [_CPU_NOTE] if on_cpu else []
    if case.options.history:
        notes.append(_HISTORY_NOTE)
    if on_cpu and scenario.recipe.optimizer.startswith("paged"):
        notes.append(_PAGED_NOTE)
    if scenario.hardware.nodes > 1:
        notes.append(_NODES_NOTE)
    return "; ".join(notes) or None


def scenario_columns(scenario: Scenario) -> dict[str, Any]:
    """The job in the columns of a record, nothing left to defaults."""
    recipe, hardware = scenario.recipe, scenario.hardware
    flat = flat_recipe(recipe)
    flat |= {
        name: int(flat[name])
        for name in ("micro_batch", "grad_accum", "seq_len", "lora_rank")
        if name in flat
    }
    flat |= {} if recipe.gradient_checkpointing else {"checkpoint_reentrant": None}
    flat |= {"lora_rank": None} if flat.get("oft_block_size") else {"oft_block_size": None}
    flat |= {} if recipe.checkpoint_policy != "full" else {"checkpoint_policy": None}
    flat |= {} if recipe.task != "sft" else {"task": None}
    flat |= {} if recipe.parallel.divides else {"tensor_parallel": None, "context_parallel": None}
    flat |= {} if recipe.numerics.fp8 != "none" else {"fp8": None}
    flat |= {} if recipe.rebuilds_some else {"checkpoint_every": None}
    return {
        "model": _model_name(scenario),
        "gpu": hardware.gpu.id,
        "nodes": hardware.nodes,
        "gpus_per_node": hardware.gpus_per_node,
        "link": hardware.link,
        **flat,
        "tokens_per_sample": float(recipe.batch.tokens_per_sample),
        "stack": scenario.stack.id,
    }


def _model_name(scenario: Scenario) -> str:
    """The catalog id, the Hub id, or the path of a configuration file: what ``plan`` finds the model by."""
    given = next(each for each in scenario.assumptions if each.name == "model")
    if given.note.startswith("read from "):
        return scenario.model.source
    if scenario.model.source.startswith("https://"):
        return scenario.model.hub_id or scenario.model.id
    return scenario.model.id


def _identity(raw: Mapping[str, Any], environment: Mapping[str, Any], scenario: Scenario) -> dict[str, Any]:
    machine = environment["machine"]
    return {
        "id": f"run-{raw['case_key']}-{secrets.token_hex(_ID_BYTES)}",
        "source": f"measure-{scenario.hardware.gpu.id}-{machine}",
        "source_group": f"measure-{machine}",
        "locator": raw["started_at"],
        "versions": tuple(f"{name}=={version}" for name, version in environment["libraries"].items()),
    }


def _measured_columns(scenario: Scenario, run: RunResult, counted: Sequence[Event]) -> dict[str, Any]:
    """Outcome, memory and speed; rates only of a run that was measured to its end."""
    peaks = [peak for peak in (_rank_peak(events) for events in run.events) if peak is not None]
    host = run.host.rss_process_bytes
    columns: dict[str, Any] = {
        "outcome": run.outcome,
        "phase_reached": _phase_reached(run),
        "peak_memory_mib": max(peaks) / MIB if peaks else None,
        "peak_memory_per_rank_mib": tuple(peak / MIB for peak in peaks) if len(peaks) > 1 else (),
        "memory_kind": "reserved" if peaks else None,
        "memory_scope": "per_gpu" if peaks else None,
        "host_memory_mib": host / MIB if host else None,
        "host_memory_kind": "rss_peak" if host else None,
        "host_memory_scope": "process" if host else None,
    }
    if run.outcome == "ok" and counted:
        columns |= _rates(scenario, counted)
    return columns


def _rates(scenario: Scenario, counted: Sequence[Event]) -> dict[str, float]:
    """Step time is the median; rates are totals over totals,
    because steps of different lengths count by their work.
    """
    world = scenario.hardware.world_size
    batch = scenario.recipe.batch
    total_s = sum(event["wall_s"] for event in counted)
    median_s = statistics.median(event["wall_s"] for event in counted)
    same = len({event["padded_tokens"] for event in counted}) == 1
    per_step_s = median_s if same else total_s / len(counted)
    tokens = {
        name: world * statistics.mean(event[name] for event in counted)
        for name in ("real_tokens", "padded_tokens")
    }
    return {
        "step_time_s": per_step_s,
        "samples_per_s": world * int(batch.micro_batch) * int(batch.grad_accum) / per_step_s,
        "tokens_per_s": tokens["real_tokens"] / per_step_s,
        "padded_tokens_per_s": tokens["padded_tokens"] / per_step_s,
    }


def _phase_reached(run: RunResult) -> Phase | None:
    """The phase that failed; of a run that did not fail, the last one that it went through."""
    if run.outcome != "ok":
        return next((phase for phase in PHASES if phase == run.phase), None)
    seen = {event["phase"] for event in run.events[0] if event["event"] == "phase"}
    return next((phase for phase in reversed(PHASES) if phase in seen), None)


def _rank_peak(events: Sequence[Event]) -> int | None:
    readings = [event for event in events if event["event"] == "readings"]
    values = [phase["reserved_peak_bytes"] for event in readings for phase in event["phases"]]
    return max((value for value in values if value is not None), default=None)


def _steps(run: RunResult) -> list[Event]:
    return [event for event in run.events[0] if event["event"] == "step"]


def _limit_mib(case: RunCase, scenario: Scenario) -> float | None:
    """The limit on device memory; a CPU has none, its limit on the process is in ``raw``."""
    limit_bytes = case.options.memory_limit_bytes
    return None if limit_bytes is None or scenario.hardware.gpu.id == CPU else limit_bytes / MIB


def _raw(case: RunCase, scenario: Scenario, run: RunResult, environment: Mapping[str, Any]) -> dict[str, Any]:
    model = next((event for event in run.events[0] if event["event"] == "model"), {})
    options = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(case.options).items()
    }
    return {
        "case_key": case_key(case, scenario),
        "environment_key": environment_key(environment),
        "started_at": datetime.fromtimestamp(run.started_s, UTC).isoformat(timespec="seconds"),
        "duration_s": run.duration_s,
        "how": run.how,
        "said": {
            name: list(value) if isinstance(value, tuple) else value for name, value in case.values.items()
        },
        "options": options,
        "workload": case.options.workload,
        **{name: model.get(name) for name in ("model_class", "engine_class", "params", "trained_params")},
        "configs": dict(model.get("configs", {})),
        "ranks": [_rank(number, events) for number, events in enumerate(run.events)],
        "steps": [
            _only(event, ("index", "warmup", "wall_s", "device_s", "real_tokens", "padded_tokens"))
            for event in _steps(run)
        ],
        "step_summary": _summary(_steps(run)),
        "host": asdict(run.host),
        "devices": [
            {**asdict(device), "throttle_reasons": list(device.throttle_reasons)} for device in run.devices
        ],
        "error": None if run.message is None else without_passwords(run.message),
    }


def _rank(number: int, events: Sequence[Event]) -> dict[str, Any]:
    hello: Event = next((event for event in events if event["event"] == "hello"), {})
    readings: Event = next((event for event in events if event["event"] == "readings"), {})
    return {
        "rank": hello.get("rank", number),
        "started": hello.get("started"),
        "cap": hello.get("cap"),
        "context_bytes": hello.get("context_bytes"),
        "cpu_threads": hello.get("cpu_threads"),
        "phases": list(readings.get("phases", ())),
        "counters": readings.get("counters"),
    }


def _summary(steps: Sequence[Event]) -> dict[str, Any] | None:
    counted = [event["wall_s"] for event in steps if not event["warmup"]]
    if not counted or not math.isfinite(sum(counted)):
        return None
    return {
        "median_s": statistics.median(counted),
        "iqr_s": interquartile_range(counted),
        "n_counted": len(counted),
        "n_warmup": len(steps) - len(counted),
    }


def _only(event: Event, names: Sequence[str]) -> dict[str, Any]:
    return {name: event[name] for name in names}
