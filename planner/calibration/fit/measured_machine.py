"""Which machine records were measured on: where they are of several, that of most of them,
the others left out by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from planner.calibration.fit.screen import LeftOut, Screened
from planner.domain.run_record import RunRecord
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.calibration import Environment
from planner.errors import UsageError
from planner.records.measured import EnvironmentFacts

Attachments = Mapping[str, Mapping[str, Any]]
_RULE = "other_machine"


@dataclass(frozen=True, slots=True)
class MachineKey:
    """What tells machines apart; empty where a record does not say.  ``driver``: its family,
    ``570`` of ``570.86.15``.
    """

    gpu: str
    host: str = ""
    machine: str = ""
    driver: str = ""

    def agrees_with(self, other: MachineKey) -> bool:
        """Whether nothing that both say differs."""
        pairs = [(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)]
        return all(not mine or not theirs or mine == theirs for mine, theirs in pairs)

    def adds_to(self, other: MachineKey) -> bool:
        """Whether it agrees with ``other`` and says more."""
        known = [sum(bool(getattr(key, each.name)) for each in fields(key)) for key in (self, other)]
        return known[0] > known[1] and self.agrees_with(other)

    @property
    def label(self) -> str:
        """The machine in words."""
        named = (("host", self.host), ("machine", self.machine), ("driver", self.driver))
        return ", ".join((self.gpu, *(f"{name} {value}" for name, value in named if value)))


def one_machine(screened: Screened, attachments: Attachments) -> tuple[Environment | None, Screened]:
    """The environment of most records, and the screening with the records of other machines left out, too.

    ``None`` where no record is usable.

    Raises:
        UsageError: two machines have equally many records, so nobody can say which is meant.
    """
    keys = {
        record.id: machine_key(record, scenario, attachments.get(record.id, {}))
        for record, scenario in screened.used
    }
    if not keys:
        return None, screened
    chosen = _most(keys.values())
    kept = tuple(pair for pair in screened.used if keys[pair[0].id].agrees_with(chosen))
    others = tuple(
        LeftOut(
            record.id, _RULE, f"measured on {keys[record.id].label}, the calibration is of {chosen.label}"
        )
        for record, _ in screened.used
        if not keys[record.id].agrees_with(chosen)
    )
    mine = [keys[record.id] for record, _ in kept]
    environment = Environment(
        gpu=chosen.gpu,
        stacks=tuple(dict.fromkeys(scenario.stack.id for _, scenario in kept)),
        host=next((key.host for key in mine if key.host), ""),
        machine=next((key.machine for key in mine if key.machine), ""),
        drivers=tuple(dict.fromkeys(key.driver for key in mine if key.driver)),
    )
    return environment, Screened(kept, (*screened.left_out, *others))


def machine_key(record: RunRecord, scenario: Scenario, attached: Mapping[str, Any]) -> MachineKey:
    """What a record says of its machine: its columns, and the environment that ``measure`` attached."""
    gpu, host = scenario.hardware.gpu.id, record.host or ""
    if (environment := attached.get("environment")) is None:
        return MachineKey(gpu, host)
    facts = EnvironmentFacts.model_validate(environment)
    driver = facts.gpus[0].driver.partition(".")[0] if facts.gpus else ""
    return MachineKey(gpu, host, facts.machine, driver)


def _most(keys: Iterable[MachineKey]) -> MachineKey:
    """The machine that most records agree with;
    a key to which another one adds something stands for no machine of its own.
    """
    counts = Counter(keys)
    whole = [key for key in counts if not any(other.adds_to(key) for other in counts)]
    agreeing = {key: sum(count for other, count in counts.items() if key.agrees_with(other)) for key in whole}
    leading = sorted(whole, key=lambda key: -agreeing[key])
    rivals = [key for key in leading[1:] if agreeing[key] == agreeing[leading[0]]]
    if rivals:
        raise UsageError(
            f"the records are of several machines, as many of {leading[0].label} as of {rivals[0].label}; "
            "calibrate each under a name of its own, from its own files"
        )
    return leading[0]
