"""Fitted coefficients: offsets from the priors, resolved to plain coefficients for one scenario; and where
the records of a personal calibration were measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256

from planner.domain.hardware import UNKNOWN_HOST
from planner.domain.recipes.fp8 import te_scaling
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack
from planner.domain.uncertainty.coefficients import PRIORS, Coefficients
from planner.domain.uncertainty.hierarchy import FREEDOM, Level, moved
from planner.domain.uncertainty.interval import Lengths, Spread, SpreadKey, SpreadOf, find_spread
from planner.domain.uncertainty.scale import Doubt

# Raised by hand when a formula changes what it means for a coefficient, or a scale what it means for an
# interval; a change of priors changes the version by itself.
_FORMULAS = 11


@dataclass(frozen=True, slots=True)
class Knob:
    """One free number of the fit: how far one coefficient lies from its prior, on all machines or on one.

    ``key`` names the machine; empty at the level ``all``.
    """

    coefficient: str
    level: Level = "all"
    key: str = ""

    @property
    def label(self) -> str:
        """``launch_s`` or ``launch_s[my-lab]``."""
        return f"{self.coefficient}[{self.key}]" if self.key else self.coefficient

    @property
    def spread(self) -> float:
        """One standard deviation of the offset before the fit; see
        :class:`planner.domain.uncertainty.hierarchy.Freedom`.
        """
        freedom = FREEDOM[self.coefficient]
        if self.level == "host":
            return freedom.machine or freedom.spread
        return freedom.spread


@dataclass(frozen=True, slots=True)
class Environment:
    """One machine as its records describe it; empty where they do not say.

    ``gpu``, ``stacks`` and ``host`` are catalog ids; ``machine`` is the hashed name that ``measure`` gives a
    machine; ``drivers`` are families of the GPU's driver: ``570`` of ``570.86.15``.
    """

    gpu: str
    stacks: tuple[str, ...]
    host: str = ""
    machine: str = ""
    drivers: tuple[str, ...] = ()

    def covers(self, scenario: Scenario) -> bool:
        """Whether the job has this GPU and one of these stacks, and this host where the job names one."""
        host = scenario.hardware.host.id
        same_host = host in (UNKNOWN_HOST, self.host)
        return scenario.hardware.gpu.id == self.gpu and scenario.stack.id in self.stacks and same_host

    @property
    def label(self) -> str:
        """The environment in words: ``rtx4090, hf-trainer@5, driver 570``."""
        parts = (
            self.gpu,
            *self.stacks,
            f"host {self.host}" if self.host else "",
            *(f"driver {each}" for each in self.drivers),
        )
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Offset:
    """A fitted knob: its offset, and one standard deviation of it after the fit,
    in the unit of the prior's spread.
    """

    knob: Knob
    offset: float
    spread: float


@dataclass(frozen=True, slots=True)
class Support:
    """What the calibrated records cover: beyond it a prediction extrapolates.

    ``vendors``: those of whose cards at least two sources tell.  What one source alone has is in no held-out
    error, so how much of their rates the libraries of another vendor reach is not known from records.
    """

    generations: tuple[str, ...]
    gpus: tuple[str, ...]
    families: tuple[str, ...]
    methods: tuple[str, ...]
    engines: tuple[str, ...]
    vendors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted coefficients with what they were fitted on and how far measurements lay from predictions on
    unseen sources.

    ``offsets``: the fitted numbers.  ``spreads``: distributions of measured over predicted.  ``coverage``:
    share of held-out readings inside their interval, by what was read.  ``machine``: host key that a personal
    calibration is for (empty: any).  ``environment``: where the records of a personal calibration were
    measured.
    """

    name: str
    date: str
    formulas: str
    offsets: tuple[Offset, ...]
    spreads: tuple[Spread, ...]
    support: Support
    coverage: tuple[tuple[SpreadOf, float], ...] = ()
    n_rows: int = 0
    groups: tuple[str, ...] = ()
    machine: str = ""
    environment: Environment | None = None
    table: dict[SpreadKey, Spread] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """``spreads`` by their keys, because every prediction looks some up."""
        object.__setattr__(self, "table", {each.key: each for each in self.spreads})

    def coefficients_for(self, scenario: Scenario) -> Coefficients:
        """Plain coefficients for one scenario: prior plus the offsets that apply,
        inside the bounds.
        """
        used = tuple(each for each in self.offsets if applies(each.knob, scenario, self.machine))
        return _summed(self.name, used)

    def extrapolates(self, scenario: Scenario) -> tuple[str, ...]:
        """In words, what of the scenario no calibrated record had; empty where all of it was seen."""
        gpu, support = scenario.hardware.gpu, self.support
        # A GPU of an unseen generation is one thing that was not seen, not two.
        by_generation = gpu.generation not in support.generations
        kind = (
            ("a GPU", "of unknown generation")
            if gpu.generation == "unknown"
            else ("GPU generation", gpu.generation)
        )
        asked = (
            (*kind, support.generations) if by_generation else ("GPU", gpu.id, support.gpus),
            ("stack", stack_family(scenario.stack), support.families),
            ("method", method_of(scenario), support.methods),
            ("engine", engine_of(scenario), support.engines),
        )
        # Records of such jobs are too few to fit anything.
        parallel = ("GPUs that share a batch",) if scenario.recipe.parallel.divides else ()
        if scenario.recipe.parallel.experts > 1:
            # Nor does any record say how evenly a router spreads tokens over GPUs.
            parallel = (*parallel, "GPUs that divide experts", "tokens that are spread over experts unevenly")
        if te_scaling(scenario.recipe.numerics.fp8):
            parallel = (*parallel, "products of Transformer Engine in 8 bits")
        return (*(f"{what} {value}" for what, value, seen in asked if value not in seen), *parallel)

    def doubt(self, scenario: Scenario) -> Doubt:
        """What widens the scenario's intervals: things that no calibrated record had,
        lengths not given, rates of no source or of a vendor that fewer than two sources tell of,
        weights that are gathered.
        """
        gpu = scenario.hardware.gpu
        unsourced = gpu.rates_are_unsourced or gpu.vendor not in self.support.vendors
        return Doubt(
            len(self.extrapolates(scenario)),
            lengths_are_unknown(scenario),
            unsourced,
            gpu.generation not in self.support.generations,
            scenario.recipe.sharding.gathers_weights,
        )

    def spread_for(self, key: SpreadKey) -> Spread | None:
        """The distribution for a number of this kind, or the nearest coarser one;
        ``None`` without any of its kind.
        """
        return find_spread(self.table, key)


def formulas_version() -> str:
    """Version of the formulas and priors that offsets refer to:
    a calibration of another version means something else.
    """
    parts = [f"{prior.name}:{prior.value!r}:{prior.low!r}:{prior.high!r}" for prior in PRIORS]
    return f"{_FORMULAS}-{sha256(';'.join(parts).encode()).hexdigest()[:12]}"


def lengths_of(scenario: Scenario) -> Lengths:
    """Whether the shapes of micro-steps change from one to the next.

    Where padding to the longest is given without the mean length, lengths are taken to vary.  Where neither
    is given, samples fill the length.
    """
    batch = scenario.recipe.batch
    if batch.padding != "longest":
        return "fixed"
    padding = scenario.assumption("padding")
    given = padding is not None and not (padding.is_assumed or padding.is_tool_default)
    return (
        "natural"
        if batch.tokens_per_sample < batch.seq_len or (given and _mean_is_assumed(scenario))
        else "fixed"
    )


def lengths_are_unknown(scenario: Scenario) -> bool:
    """Whether lengths vary and not even their mean is given."""
    return lengths_of(scenario) == "natural" and _mean_is_assumed(scenario)


def _mean_is_assumed(scenario: Scenario) -> bool:
    mean = scenario.assumption("tokens_per_sample")
    return mean is None or mean.is_assumed


def method_of(scenario: Scenario) -> str:
    """``full``, ``lora``, ``qlora`` (any 4-bit base) or ``int8``: what intervals are grouped by."""
    if scenario.recipe.method == "full":
        return "full"
    quantization = scenario.recipe.numerics.quantization
    return {"none": "lora", "int8": "int8"}.get(quantization, "qlora")


def engine_of(scenario: Scenario) -> str:
    """``none`` for one GPU, ``ddp``, ``zero1-2``, ``zero3``, ``fsdp1`` or ``fsdp2``:
    what shares no code with the others; of stage 0, which one source alone has, ``zero1-2``.
    """
    sharding = scenario.recipe.sharding
    if sharding.engine == "fsdp":
        return "fsdp2" if sharding.dtensors else "fsdp1"
    return "zero1-2" if sharding.is_zero012 else sharding.name


def stack_family(stack: Stack) -> str:
    """The name without version of the stack, or of the one that it is a variant of:
    ``torchtitan`` of ``fms-fsdp``.
    """
    return (stack.extends or stack.id).partition("@")[0]


def applies(knob: Knob, scenario: Scenario, machine: str = "") -> bool:
    """Whether the knob moves its coefficient for this scenario.

    ``machine`` names the host where a calibration or a document knows better than the scenario.
    """
    host = scenario.hardware.host.id
    return knob.level == "all" or knob.key == (machine or host) != UNKNOWN_HOST


@lru_cache(maxsize=512)
def _summed(name: str, offsets: tuple[Offset, ...]) -> Coefficients:
    totals: dict[str, float] = {}
    for each in offsets:
        totals[each.knob.coefficient] = totals.get(each.knob.coefficient, 0.0) + each.offset
    values = {coefficient: moved(coefficient, total) for coefficient, total in totals.items()}
    return replace(Coefficients(), name=name, **values)
