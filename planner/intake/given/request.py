"""What a user (or a record) says about a job, each value with where it was given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from planner.domain.recipes.recipe import Padding
from planner.domain.recipes.sharding import sharding_named
from planner.domain.run_record import RunRecord
from planner.errors import InputFileError, NotModelledError, UnknownNameError, UsageError, as_one, show
from planner.files.reading import MAX_CONFIG_BYTES, read_text
from planner.files.structured import toml_table
from planner.intake.given.fields import (
    FIELD_OF_COLUMN,
    REQUEST_FIELDS,
    missing_fields,
    missing_text,
    split_count,
)
from planner.intake.given.request_field import Part, RequestField

__all__ = [
    "MAX_CONFIG_BYTES",
    "REQUEST_FIELDS",
    "TRIED",
    "Given",
    "RequestField",
    "ScenarioRequest",
    "from_flags",
    "from_record",
    "from_toml",
    "merge",
    "require",
]

TRIED = "tried here"
"""Origin of a value that nobody gave, one of those that are possible."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody gave, in the type of its field.

    ``origin`` is ``cli``, ``file:line``, ``file:key``, ``default of <tool>`` or ``record:<id>``;
    ``note`` says how it was read.  ``cuts``: a length at which samples are cut, and shorter ones are not made
    longer where they are padded so.
    """

    value: Any
    origin: str
    note: str = ""
    cuts: Padding | None = None


@dataclass(frozen=True, slots=True)
class ScenarioRequest:
    """Everything that was given about one job; what is absent is filled in by ``resolve``.

    ``record_id`` is set when a record speaks: what it leaves open is unknown,
    so a default there is an assumption.
    """

    values: Mapping[str, Given]
    record_id: str | None = None

    def get(self, name: str) -> Any:
        """The value of one field, or ``None`` when it was not given."""
        given = self.values.get(name)
        return None if given is None else given.value

    def is_given(self, name: str) -> bool:
        """Whether anything is given about this field."""
        return self.values.get(name) is not None


def require(request: ScenarioRequest, *parts: Part, example: str = "", prefix: str = "") -> None:
    """Check that these parts of the job have all that has no default; see :func:`missing_text`.

    Raises:
        UsageError: something is not.
        NotModelledError: something is not, and a record speaks.
    """
    missing = missing_fields(request.is_given, parts)
    if missing and request.record_id is not None:
        names = ", ".join(REQUEST_FIELDS[name].column for name in missing)
        raise NotModelledError(f"record '{request.record_id}' does not say {names}")
    if missing:
        raise UsageError(missing_text(missing, example, prefix))


def from_flags(flags: Mapping[str, object]) -> ScenarioRequest:
    """Request from command-line flags.  Names may be written with ``-`` or ``_``;
    ``None`` means that a flag was not given.

    Raises:
        UnknownNameError: no such flag, or no such choice.
        UsageError: a value of the wrong type or out of range, or one flag given twice.
    """
    given = ((str(name), value, "cli") for name, value in flags.items() if value is not None)
    return ScenarioRequest(_parse_all(given, on_command_line=True))


def from_toml(path: str | Path) -> ScenarioRequest:
    """Request from a TOML file whose top-level keys are the names of the fields.

    Raises:
        InputFileError: missing, too large, not TOML, an unknown key or a value that cannot be used;
        names file and line.
    """
    file = Path(path)
    text = read_text(file)
    table = toml_table(file, text)
    if table and not any(key.replace("-", "_") in REQUEST_FIELDS for key in table):
        raise InputFileError(
            file,
            "none of its keys is one of plan's, so it is not the file of a job; plan rules lists the fields",
        )
    values: dict[str, Given] = {}
    for key, value in table.items():
        line = _line_of(key, text)
        try:
            parsed = _parse_all([(key, value, f"{file}:{line}")])
            if twice := values.keys() & parsed.keys():
                raise UsageError(f"'{twice.pop()}' is given twice, once with '-' and once with '_'")
        except UsageError as error:
            raise InputFileError(file, str(error), line) from None
        values.update(parsed)
    return ScenarioRequest(MappingProxyType(values))


def from_record(record: RunRecord) -> ScenarioRequest:
    """Request that asks for the configuration of a record.

    Raises:
        NotModelledError: the record uses something that no formula covers.
        UsageError: a value outside the range of its field.
    """
    origin = f"record:{record.id}"
    if record.gradient_checkpointing == "selective":
        raise NotModelledError(f"record '{record.id}': selective gradient checkpointing is not modelled")
    if record.optimizer is not None and record.optimizer not in REQUEST_FIELDS["optimizer"].choices:
        raise NotModelledError(f"record '{record.id}': optimizer '{show(record.optimizer)}' is not modelled")
    native = record.sharding is not None and sharding_named(record.sharding).engine == "native"
    if record.offload not in (None, "none", "activations") and native:
        raise NotModelledError(
            f"record '{record.id}': offload by a loader of the program's own, without an engine, is "
            "not modelled"
        )
    columns = {column: name for column, name in FIELD_OF_COLUMN.items() if column in RunRecord.__slots__}
    given = [(name, getattr(record, column), origin) for column, name in columns.items()]
    if record.memory_limit_mib is not None:
        given.append(("gpu_memory", f"{record.memory_limit_mib:f} MiB", origin))
    values = _parse_all((name, value, where) for name, value, where in given if value not in (None, ()))
    return ScenarioRequest(values, record_id=record.id)


def asked_card(request: ScenarioRequest) -> tuple[str, int]:
    """The card that the request names, and how many of it train in all; none where it names no card."""
    name, counted = split_count(request.get("gpu") or "")
    return name, (request.get("gpus") or counted or 1) * (request.get("nodes") or 1) if name else 0


def merge(base: ScenarioRequest, override: ScenarioRequest) -> ScenarioRequest:
    """``base`` with everything that ``override`` says put over it: a config file and the flags beside it."""
    values = dict(base.values)
    # `X:n` says the count as well, so it is also a word about `gpus`.
    card, count = split_count(base.get("gpu") or "")
    if split_count(override.get("gpu") or "")[1] is not None and "gpus" not in override.values:
        values.pop("gpus", None)
    if count is not None and "gpus" in override.values and "gpu" not in override.values:
        values["gpu"] = replace(values["gpu"], value=card)
    return ScenarioRequest(
        MappingProxyType(values | dict(override.values)), override.record_id or base.record_id
    )


def _parse_all(
    given: Iterable[tuple[str, object, str]], *, on_command_line: bool = False
) -> Mapping[str, Given]:
    """Parsed values by field name; ``given`` are names as written, values, and where."""
    values: dict[str, Given] = {}
    wrong: list[UsageError] = []
    prefix = "--" if on_command_line else ""
    for written, value, origin in given:
        name = written.replace("-", "_")
        field = REQUEST_FIELDS.get(name)
        if field is None:
            known = (other.flag if on_command_line else other.name for other in REQUEST_FIELDS.values())
            raise UnknownNameError("flag" if on_command_line else "key", prefix + show(written), known)
        if name in values:
            raise UsageError(f"'{prefix}{show(written)}' is given twice")
        try:
            values[name] = Given(field.parse(value), origin)
        except UsageError as error:
            wrong.append(error)
    if wrong:
        raise as_one(wrong)
    return MappingProxyType(values)


def _line_of(key: str, text: str) -> int:
    """Line on which a top-level key is set, 1 when it cannot be found (a dotted or escaped key)."""
    pattern = re.compile(rf"\s*(\[\[?\s*)?[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    return next((number for number, line in enumerate(text.split("\n"), 1) if pattern.match(line)), 1)
