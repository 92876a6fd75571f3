"""``config.json`` of a Hugging Face model -> :class:`ModelSpec`.  The file is untrusted: bounded, plain JSON, not run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from planner.catalog.architectures import reader_for, supported_architectures
from planner.catalog.architectures.fields import ConfigFields
from planner.domain.model import ModelSpec
from planner.errors import InputFileError, UnknownArchitectureError
from planner.units import MIB

MAX_CONFIG_BYTES = 1 * MIB
_DTYPES: dict[str, Literal["fp32", "bf16", "fp16"]] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def model_from_config(data: Mapping[str, Any], where: str) -> ModelSpec:
    """Model described by parsed config fields; ``where`` names their place in messages.

    Raises:
        InputFileError: a field that is missing or out of range.
        UnknownArchitectureError: an architecture without formulas.
    """
    model_type = data.get("model_type")
    if not isinstance(model_type, str):
        raise InputFileError(where, "field 'model_type' is missing: this is not the config of a Transformers model")
    reader = reader_for(model_type)
    if reader is None:
        raise UnknownArchitectureError(where, model_type, supported_architectures())
    fields = ConfigFields(data, where)
    return in_checkpoint_dtype(reader(fields), data)


ConfigReader = Callable[[Mapping[str, Any], str], ModelSpec]
"""Turns the fields of a ``config.json``, and the name of their place, into a model."""


def read_config_file(path: Path, reader: ConfigReader = model_from_config) -> ModelSpec:
    """Model described by a ``config.json``, or by the ``config.json`` in a folder.

    Raises:
        InputFileError: missing, too large, not JSON, or a field out of range.
        NotModelledError: what ``reader`` cannot describe, such as an architecture without formulas.
    """
    file = path / "config.json" if path.is_dir() else path
    spec = reader(_load_json_object(file), str(file))
    return replace(spec, id=path.stem if path.is_file() else path.name, source=str(file))


def read_config_fields(file: Path) -> Mapping[str, Any]:
    """The fields of a ``config.json``.

    Raises:
        InputFileError: missing, too large, or not a JSON object.
    """
    return _load_json_object(file)


def in_checkpoint_dtype(spec: ModelSpec, data: Mapping[str, Any]) -> ModelSpec:
    """``spec`` with the dtype that the config says its checkpoint has, if it says one that is known."""
    dtype = data.get("dtype", data.get("torch_dtype"))
    return replace(spec, checkpoint_dtype=_DTYPES[dtype]) if isinstance(dtype, str) and dtype in _DTYPES else spec


def parse_config(raw: bytes, where: str) -> Mapping[str, Any]:
    """The JSON object that ``raw`` holds; ``where`` names its place in messages.

    Raises:
        InputFileError: too large, not UTF-8, not JSON, nested too deeply, or not an object.
    """
    if len(raw) > MAX_CONFIG_BYTES:
        raise InputFileError(where, f"larger than {MAX_CONFIG_BYTES // MIB} MiB, which no model config is")
    try:
        data = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise InputFileError(where, "is not UTF-8 text; give the path of a config.json") from None
    except json.JSONDecodeError as error:
        raise InputFileError(where, f"is not JSON: {error.msg}", error.lineno) from None
    except RecursionError:
        raise InputFileError(where, "is nested too deeply; no model config is") from None
    except ValueError as error:
        raise InputFileError(where, f"is not a usable config: {str(error)[:80]}") from None
    if not isinstance(data, dict):
        raise InputFileError(where, "must hold one JSON object")
    return data


def _load_json_object(file: Path) -> Mapping[str, Any]:
    try:
        if file.exists() and not file.is_file():
            raise InputFileError(file, "not a regular file; give the path of a config.json")
        with file.open("rb") as stream:
            raw = stream.read(MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputFileError(file, f"cannot be read ({reason}); give the path of a config.json") from None
    return parse_config(raw, str(file))


def _refuse_constant(name: str) -> float:
    raise ValueError(f"'{name}' is not a number")
