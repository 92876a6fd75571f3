"""What was given on the command line, for every command that is about one job."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from measure.output import write_remark
from planner.catalog.hf_config import ConfigReader, model_from_config
from planner.domain.scenario import Scenario
from planner.errors import UsageError, how_to_install, show
from planner.intake.given.config_file import read_config_file, with_flags
from planner.intake.given.request import Given, ScenarioRequest, from_flags, merge, require
from planner.intake.resolve import resolve
from planner.units import parse_size_bytes

ASSUMED_GPU = "a100-80-sxm"
"""Whose kernels are traced where no card is given."""
# What is traced or run where the length is not given; the length of the examples.
_ASSUMED_SEQ = 1024


def scenario_of(
    given: dict[str, Any],
    *,
    config: str | None,
    force: bool,
    example: str,
    reader: ConfigReader = model_from_config,
) -> Scenario:
    """The scenario of flags and a config file; flags win.
    ``reader`` describes a model that the catalog does not have.

    Raises:
        UsageError: model or method are missing, or what was given cannot be used.
    """
    request = over_config(from_flags(given), config)
    request = with_length(request, example)
    if request.get("gpu") is None and request.get("gpu_memory") is None:
        # A trace asks no card for its size; what depends on the card is the generation of its kernels.
        request = merge(ScenarioRequest({"gpu": Given(ASSUMED_GPU, "assumed")}), request)
    return resolve(request, force=force, reader=reader)


def over_config(flags: ScenarioRequest, config: str | None) -> ScenarioRequest:
    """Flags over what a config file says; standard error names what was not taken over of it.

    Raises:
        UsageError: the file cannot be used.
        NotModelledError: it asks for something that no formula covers.
    """
    if config is None:
        return flags
    read = read_config_file(config)
    for note in read.notes:
        write_remark(note)
    return with_flags(read, flags)


def with_length(request: ScenarioRequest, example: str) -> ScenarioRequest:
    """``request`` with a length where none was given, which standard error then names.

    Raises:
        UsageError: the model or the method is missing.
    """
    with_one = merge(ScenarioRequest({"seq": Given(_ASSUMED_SEQ, "assumed")}), request)
    require(with_one, "model", "recipe", example=example, prefix="--")
    if request.is_given("seq"):
        return request
    write_remark(f"no --seq was given: {_ASSUMED_SEQ} tokens are assumed")
    return with_one


def size_bytes(flag: str, text: str) -> int:
    """Bytes of a size such as ``24GiB``.

    Raises:
        UsageError: not a size with a unit, or nothing.
    """
    try:
        size = parse_size_bytes(text)
    except ValueError:
        size = 0
    if size == 0:
        raise UsageError(
            f"{flag} must be a size with a unit and above 0, such as 24GiB or 80GB, but it is '{show(text)}'"
        )
    return size


def need(extra: str, *packages: str) -> None:
    """Check that packages are installed, without importing them.

    Raises:
        UsageError: one is missing; names the extra that has it.
    """
    for name in packages:
        if find_spec(name) is None:
            raise UsageError(f"{name} is not installed; {how_to_install(extra)}")


def quiet() -> None:
    """Libraries warn about settings that they themselves choose here;
    standard error is for what the user can act on.
    """
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
