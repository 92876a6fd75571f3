"""What settled a value that is not derived: the words that switches and priors use for it."""

from __future__ import annotations

from typing import Literal, get_args

SettledBy = Literal["source_code", "document_text", "measured", "assumed", "table_fit"]
"""``source_code``: read in the package named.  ``document_text``: stated by a document, in words or as its
own measurement.  ``measured``: measured by us, on the machine named, or counted in traces of the real
modules, where the source says so.  ``table_fit``: chosen with published rows of ``data/published`` in sight,
so that errors on those rows are not independent of it.  ``assumed``: none of these; the source says why this
value.
"""

SETTLED_BY: tuple[SettledBy, ...] = get_args(SettledBy)
