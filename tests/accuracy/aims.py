"""What is aimed at on the published rows: ``aims.toml`` beside this file,
which has the unit and the meaning of each figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.files.structured import read_toml

_PATH = Path(__file__).with_name("aims.toml")
Share = Annotated[float, Field(ge=0, le=1)]
Fit = Literal["in-sample", "held out"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Errors(_Table):
    """Mean absolute errors under one way of fitting;
    the keys of ``*_of`` are names of :attr:`Aims.sources`.
    """

    memory: Share
    others_memory: Share
    memory_of: Mapping[str, Share]
    host_memory_of: Mapping[str, Share]


class HeldOut(Errors):
    """The same of sources that no fit saw, and of times."""

    memory_90th_percentile: Share
    others_throughput: Share
    throughput_of: Mapping[str, Share]

    def others(self, quantity: str) -> float:
        """The aim for sources without one of their own."""
        return {"memory": self.others_memory, "throughput": self.others_throughput}[quantity]

    def of_source(self, quantity: str, name: str | None) -> float:
        """The aim for one source by its name; that of the others where it has none of its own."""
        own = {"memory": self.memory_of, "throughput": self.throughput_of}[quantity]
        return own.get(name or "", self.others(quantity))


class Verdicts(_Table):
    """Shares of wrong verdicts, and how near to the limit a wrong one has to lie."""

    said_to_fit: Share
    said_not_to_fit: Share
    from_limit: Share


class HostBound(_Table):
    """Shares of predictions above the installed host RAM."""

    above_installed_of: Mapping[str, Share]


class Predictive(_Table):
    """What intervals, orders and anchors have to reach, held out."""

    pairs_in_order: Share
    throughput_with_one_row: Share
    inside_interval: tuple[Share, Share]
    inside_each_kind: Share
    half_width: Mapping[Literal["memory", "time"], Share]
    uncertain: Share


class MissLimits(_Table):
    """From which error on a row is in the list of misses."""

    listed_above: Share
    times_the_aim: float
    stale_share: Share


class Aims(_Table):
    """Everything that is aimed at."""

    sources: Mapping[str, str]
    in_sample: Errors
    held_out: HeldOut
    verdicts: Verdicts
    host_bound: HostBound
    predictive: Predictive
    misses: MissLimits

    def errors(self, fit: Fit) -> Errors:
        """Those of one way of fitting."""
        return self.in_sample if fit == "in-sample" else self.held_out

    def name_of(self, source: str) -> str | None:
        """The name that figures give a source; ``None`` for one without aims of its own."""
        return next((name for name, each in self.sources.items() if each == source), None)


@cache
def stored_aims() -> Aims:
    """The aims of the file.

    Raises:
        InputFileError: missing or not TOML.
    """
    return Aims.model_validate(read_toml(_PATH))
