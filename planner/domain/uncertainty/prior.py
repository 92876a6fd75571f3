"""What settled a value that is not derived, in the words of switches and priors; and how a coefficient is
declared: its value before any fit, bounds, unit, what settled it and the source.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SettledBy = Literal["source_code", "document_text", "measured", "assumed", "table_fit"]
"""``source_code``: read in the package named.  ``document_text``: stated by a document, in words or as its
own measurement.  ``measured``: measured by us, on the machine named, or counted in traces of the real
modules, where the source says so.  ``table_fit``: chosen with published rows of ``data/published`` in sight,
so that errors on those rows are not independent of it.  ``assumed``: none of these; the source says why this
value.
"""


def prior(within: tuple[float, float, float], unit: str, settled_by: SettledBy, source: str) -> Any:
    """A dataclass field that carries its bounds and unit, and what settled it with the source,
    as metadata.  ``within``: the value, the least and the most that a fit may make of it.
    """
    value, low, high = within
    return field(
        default=value,
        metadata={"low": low, "high": high, "unit": unit, "settled_by": settled_by, "source": source},
    )


@dataclass(frozen=True, slots=True)
class Prior:
    """One coefficient as the literature has it.
    ``settled_by`` says how far it is independent of the published rows.
    """

    name: str
    value: float
    low: float
    high: float
    unit: str
    settled_by: SettledBy
    source: str
