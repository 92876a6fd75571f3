"""What ``--explain`` adds to the JSON form of a prediction, and the kind of model that every part of it is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from planner.domain.settled import SettledBy


class Part(BaseModel):
    """A part of a document: read from any object with these attributes, and nothing else."""

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class ExplanationPart(Part):
    """One formula of the prediction: what it counts, with which numbers, from which source."""

    topic: str
    label: str
    amount: str
    formula: str
    detail: str
    summary: str
    rule: str
    ignored: str
    source: str


class CoefficientPart(Part):
    """One coefficient: the value used, its prior with the bounds of a fit, and what settled each.

    ``settled_by`` is that of the value: ``calibration <name>`` where a fit replaced the prior, else the prior's.
    """

    name: str
    value: float
    unit: str
    prior: float
    low: float
    high: float
    settled_by: str
    source: str


class SettingPart(Part):
    """One switch or default of the stack, and what settled its value."""

    name: str
    value: str
    settled_by: SettledBy
    source: str
