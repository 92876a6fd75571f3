"""What a measured record carries beside its columns: raw readings, environment, verdict on its quality.

These are the border models of the keys ``raw``, ``environment`` and ``quality`` of a JSONL line.  The unit is
in every name; ``null`` means that the device or the system has no such figure, never zero.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from planner.domain.term import Phase


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PhaseReading(_Strict):
    """One phase over all its visits: peaks are the highest of any visit, ends those of the last one.

    ``device_used_bytes`` is the driver's figure for the whole device at the end of the phase.
    """

    phase: Phase
    visits: int = Field(ge=0)
    wall_s: float = Field(ge=0)
    allocated_end_bytes: int | None = None
    allocated_peak_bytes: int | None = None
    reserved_end_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    device_used_bytes: int | None = None
    host_rss_bytes: int | None = None


class StepReading(_Strict):
    """One optimizer step of rank 0: wall time, time between two events on the device,
    tokens without and with padding.
    """

    index: int = Field(ge=0)
    warmup: bool
    wall_s: float = Field(ge=0)
    device_s: float | None = None
    real_tokens: int = Field(ge=0)
    padded_tokens: int = Field(ge=0)


class StepSummary(_Strict):
    """Median and interquartile range of the counted steps."""

    median_s: float = Field(gt=0)
    iqr_s: float = Field(ge=0)
    n_counted: int = Field(ge=1)
    n_warmup: int = Field(ge=0)


class AllocatorCounters(_Strict):
    """What torch's allocator counted, and page-locked host memory."""

    retries: int | None = None
    out_of_memory: int | None = None
    pinned_peak_bytes: int | None = None


class RankReading(_Strict):
    """One process of the job.  ``cap`` says how its memory was limited,
    ``cpu_threads`` what torch computes with on the host.
    """

    rank: int = Field(ge=0)
    started: Literal["fork", "spawn"] | None = None
    phases: tuple[PhaseReading, ...] = ()
    counters: AllocatorCounters | None = None
    context_bytes: int | None = None
    cpu_threads: int | None = None
    cap: dict[str, JsonValue] | None = None


class HostReading(_Strict):
    """Highest host memory while the case ran, sampled from outside.

    ``machine_bytes`` is how far the machine's available memory fell, by everybody: page-locked memory counts
    here whether or not a process is charged for it.
    """

    rss_process_bytes: int | None = None
    rss_total_bytes: int | None = None
    pss_process_bytes: int | None = None
    pss_total_bytes: int | None = None
    cgroup_bytes: int | None = None
    machine_bytes: int | None = None
    n_samples: int = Field(ge=0)
    interval_s: float = Field(gt=0)


class DeviceReading(_Strict):
    """One device by the driver: in use before the case, and the highest sampled while it ran,
    everybody's and the driver's own.

    ``held_before_bytes``: what programs held before the case.  ``process_peak_bytes``: the most that its own
    processes held.  ``other_processes``: how many others the driver lists.  ``null``: the driver does not
    tell, for example in a container.
    """

    index: int = Field(ge=0)
    baseline_bytes: int = Field(ge=0)
    peak_bytes: int = Field(ge=0)
    held_before_bytes: int | None = Field(default=None, ge=0)
    process_peak_bytes: int | None = Field(default=None, ge=0)
    other_processes: int | None = Field(default=None, ge=0)
    throttle_reasons: tuple[str, ...] = ()


class RawReadings(_Strict):
    """Everything that was read, unsummarised.

    ``case_key`` names what was measured, ``environment_key`` on what.  ``said``: the flags that the user
    gave.  ``options``: how it was measured.  ``configs``: the configuration files that were generated for an
    engine, by name.
    """

    case_key: str
    environment_key: str
    started_at: str
    duration_s: float = Field(ge=0)
    how: str
    said: dict[str, JsonValue]
    options: dict[str, JsonValue]
    workload: Literal["loop", "trainer"]
    model_class: str | None = None
    engine_class: str | None = None
    params: int | None = None
    trained_params: int | None = None
    configs: dict[str, JsonValue] = Field(default_factory=dict)
    ranks: tuple[RankReading, ...] = ()
    steps: tuple[StepReading, ...] = ()
    step_summary: StepSummary | None = None
    host: HostReading
    devices: tuple[DeviceReading, ...] = ()
    error: str | None = None
    history: str | None = None
    probe_of: str | None = None


class GpuFacts(_Strict):
    """One GPU as its driver describes it; the UUID is hashed."""

    name: str
    uuid_hash: str
    memory_bytes: int
    driver: str
    cuda_driver: str


class EnvironmentFacts(_Strict):
    """What the case ran on.  Records may be merged only where these agree (``gpu_state`` is of the
    moment).
    """

    machine: str
    os: str
    python: str
    cpu: str
    cpu_cores: int | None = None
    cpu_threads: int | None = None
    host_memory_bytes: int
    container_limit_bytes: int | None = None
    gpus: tuple[GpuFacts, ...] = ()
    gpu_state: tuple[dict[str, JsonValue], ...] = ()
    torch_cuda: str | None = None
    libraries: dict[str, str] = Field(default_factory=dict)
    variables: dict[str, str] = Field(default_factory=dict)


class QualityVerdict(_Strict):
    """Whether the harness trusts its own measurement, and why not."""

    verdict: Literal["good", "doubtful"]
    reasons: tuple[str, ...] = ()


ATTACHMENT_MODELS: dict[str, type[BaseModel]] = {
    "raw": RawReadings,
    "environment": EnvironmentFacts,
    "quality": QualityVerdict,
}


def raw_of(attachments: dict[str, Any] | Any) -> RawReadings | None:
    """The readings of a record, ``None`` when it carries none."""
    raw = attachments.get("raw")
    return None if raw is None else RawReadings.model_validate(raw)
