"""``config.json`` of a Hugging Face model -> :class:`ModelSpec`.  The file is untrusted: bounded,
plain JSON, not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from planner.catalog.architectures import reader_for
from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.quantization_config import with_stored
from planner.domain.model import ModelSpec
from planner.errors import InputFileError, NotModelledError, UnknownArchitectureError, show
from planner.files.reading import decoded, read_bytes, read_text
from planner.files.structured import json_value
from planner.units import MIB

MAX_CONFIG_BYTES = 1 * MIB
_MAX_EXPERTS = 4096
"""Of one layer: twice as many as any published model has (google/switch-c-2048)."""
_DTYPES: dict[str, Literal["fp32", "bf16", "fp16"]] = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
}


def model_from_config(data: Mapping[str, Any], where: str) -> ModelSpec:
    """Model described by parsed config fields; ``where`` names their place in messages.

    Raises:
        InputFileError: a field that is missing or out of range.
        UnknownArchitectureError: an architecture without formulas.
        NotModelledError: what is no decoder, or what Transformers lacks as well.
    """
    model_type = data.get("model_type")
    if not isinstance(model_type, str):
        raise InputFileError(
            where, "field 'model_type' is missing: this is not the config of a Transformers model"
        )
    reader = reader_for(model_type)
    if reader is None:
        raise _unread(where, model_type)
    fields = ConfigFields(data, where)
    spec = _read(reader, fields)
    n_experts = max(group.block.mlp.n_experts for group in spec.groups)
    if n_experts > _MAX_EXPERTS:
        raise fields.fail(f"{n_experts} experts are above the limit of {_MAX_EXPERTS}")
    return with_stored(in_checkpoint_dtype(spec, data), data, where)


def _read(reader: Callable[[ConfigFields], ModelSpec], fields: ConfigFields) -> ModelSpec:
    """What ``reader`` reads; whatever it refuses has a way out."""
    from planner.catalog.refused_models import DRY_RUN

    try:
        return reader(fields)
    except UnknownArchitectureError:
        raise
    except NotModelledError as error:
        said = str(error)
        raise error if "measure trace" in said else NotModelledError(f"{said}; {DRY_RUN}") from None


def _unread(where: str, model_type: str) -> NotModelledError:
    """Bounds for a decoder would be about another training than that of an encoder; and of what Transformers
    does not ship no module can be counted.
    """
    from planner.catalog.refused_models import DRY_RUN, what_has

    if what := what_has(model_type):
        return NotModelledError(
            f"{where}: '{model_type}' is {what}, and decoders alone are modelled; {DRY_RUN}"
        )
    if lacks := _transformers_without(model_type):
        return NotModelledError(
            f"{where}: architecture '{show(model_type)}' is neither modelled nor in Transformers {lacks}; a "
            "program that brings its code can be run: measure trace --gpu CARD -- python train.py"
        )
    return UnknownArchitectureError(where, model_type)


def _transformers_without(model_type: str) -> str:
    """Version of the Transformers that is installed, where its list of architectures lacks this one; else
    empty.  The list is read as text: importing it takes seconds.
    """
    found = find_spec("transformers")
    if found is None or found.origin is None:
        return ""
    folder = Path(found.origin).parent / "models" / "auto"
    files = (folder / "auto_mappings.py", folder / "configuration_auto.py")
    known = "".join(read_text(file) for file in files if file.is_file())
    return version("transformers") if known and f'"{model_type}"' not in known else ""


ConfigReader = Callable[[Mapping[str, Any], str], ModelSpec]
"""Turns the fields of a ``config.json``, and the name of their place, into a model."""


def read_config_file(path: Path, reader: ConfigReader = model_from_config) -> ModelSpec:
    """Model described by a ``config.json``, or by the ``config.json`` in a folder.

    Raises:
        InputFileError: missing, too large, not JSON, or a field out of range.
        NotModelledError: what ``reader`` cannot describe, such as an architecture without formulas.
    """
    file = path / "config.json" if path.is_dir() else path
    spec = reader(config_fields(file), str(file))
    return replace(spec, id=path.stem if path.is_file() else path.name, source=str(file))


def in_checkpoint_dtype(spec: ModelSpec, data: Mapping[str, Any]) -> ModelSpec:
    """``spec`` with the dtype that the config says its checkpoint has, if it says one that is known."""
    dtype = data.get("dtype", data.get("torch_dtype"))
    return (
        replace(spec, checkpoint_dtype=_DTYPES[dtype])
        if isinstance(dtype, str) and dtype in _DTYPES
        else spec
    )


def parse_config(raw: bytes, where: str) -> Mapping[str, Any]:
    """The JSON object that ``raw`` holds; ``where`` names its place in messages.

    Raises:
        InputFileError: too large, not UTF-8, not JSON, nested too deeply, or not an object.
    """
    if len(raw) > MAX_CONFIG_BYTES:
        raise InputFileError(where, f"larger than {MAX_CONFIG_BYTES // MIB} MiB, which no model config is")
    # Transformers writes the upper end of Mamba's time_step_limit so.
    data = json_value(where, decoded(where, raw), infinity=True)
    if not isinstance(data, dict):
        raise InputFileError(where, "must hold one JSON object")
    return data


def config_fields(file: Path) -> Mapping[str, Any]:
    """The fields of a ``config.json``.

    Raises:
        InputFileError: not a regular file, unreadable, or as :func:`parse_config`; says what to give.
    """
    try:
        return parse_config(read_bytes(file, MAX_CONFIG_BYTES), str(file))
    except InputFileError as error:
        way_out = "say --model with a catalog name, a Hub id or the path of a config.json"
        raise InputFileError(error.path, f"{error.problem}; {way_out}", error.line) from None
