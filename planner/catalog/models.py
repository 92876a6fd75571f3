"""Model entries of ``data/models`` and the four ways to name a model: file, catalog name, size, Hub id."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.catalog.hf_config import (
    ConfigReader,
    config_fields,
    in_checkpoint_dtype,
    model_from_config,
    read_config_file,
)
from planner.catalog.index import CatalogIndex, read_index
from planner.catalog.location import data_dir
from planner.catalog.quantization_config import stored_said, with_stored
from planner.catalog.stored_checkpoints import STORED_FILE, StoredEntry, assumed_entry, stored_entry
from planner.domain.model import ModelSpec
from planner.domain.stored import StoredWeights
from planner.errors import InputFileError, NotModelledError, UnknownNameError, UsageError, show
from planner.files.checking import validate
from planner.files.structured import read_toml

NonEmpty = Annotated[str, Field(min_length=1)]
CatalogOrigin = Literal["published-exact", "published-bytes", "meta-device", "published-rounded"]
_SIZES_FILE = "models/sizes.toml"
_CHECKPOINT = re.compile(r"/checkpoint-\d+$")
_IN_CACHE = re.compile(r"(?:^|/)models--([^/]+)/snapshots/[^/]+/?$")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model, how its name was understood, and what the user should know about that (may be empty)."""

    spec: ModelSpec
    how: Literal["catalog", "size", "file", "hub", "name"]
    note: str

    @property
    def doubt(self) -> str:
        """What every answer must note: that only the model's name was read,
        or what is assumed of its weights.
        """
        if self.how == "name":
            return self.note
        return self.spec.stored.assumed if self.spec.stored is not None else ""


class ModelEntry(BaseModel):
    """One file of ``data/models`` as it stands.

    ``hub_id`` is empty for a model that is not on the Hub.  ``config`` holds fields of the published
    ``config.json``.  ``null_fields`` are those it sets to null, in a section as
    ``text_config.sliding_window``.  TOML has no null, and a null differs from an absent field wherever the
    configuration class has a default.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    schema_version: Literal[1] = Field(alias="schema")
    id: NonEmpty
    name: NonEmpty
    hub_id: str = ""
    aliases: list[NonEmpty]
    published_params: Annotated[int, Field(gt=0)]
    params_origin: CatalogOrigin
    params_source: NonEmpty
    config_source: NonEmpty
    null_fields: list[NonEmpty] = []
    config: dict[str, Any]

    def config_fields(self) -> dict[str, Any]:
        """The fields as a ``config.json`` would hold them."""
        data = {name: dict(each) if isinstance(each, dict) else each for name, each in self.config.items()}
        for name in self.null_fields:
            section, _, field = name.rpartition(".")
            (data[section] if section else data)[field] = None
        return data


class SizeEntry(BaseModel):
    """Which model a bare size stands for, and why."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: NonEmpty
    reason: NonEmpty


class SizeTable(BaseModel):
    """``data/models/sizes.toml``."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    schema_version: Literal[1] = Field(alias="schema")
    sizes: dict[str, SizeEntry]


def model_ids() -> tuple[str, ...]:
    """Ids of all catalog entries, sorted."""
    return _index().ids


def model_sizes() -> Mapping[str, SizeEntry]:
    """What ``7b`` and the like stand for."""
    path = data_dir() / _SIZES_FILE
    return validate(SizeTable, read_toml(path), path).sizes


def model_entry(name: str) -> ModelEntry:
    """The catalog entry that ``name`` (id, alias or Hub id, any spelling) stands for,
    as it stands in its file.

    Raises:
        UnknownNameError: no such entry; says the nearest.
        InputFileError: the file is missing, malformed or breaks the schema.
    """
    index = _index()
    entry_id = index.find(name)
    if entry_id is None:
        raise _unknown(name, index)
    return _read_entry(entry_id)


_WAYS = "by a catalog name, a Hub id or the path of a config.json"
# The address of a page, whose end is a Hub id.
_HUB_ADDRESS = re.compile(r"^https?://(www\.)?(huggingface\.co|hf\.co)/")


def load_model(name: str, reader: ConfigReader = model_from_config) -> ResolvedModel:
    """The model that ``name`` stands for; ``reader`` describes one that the catalog does not have.

    Tried in this order:

    - the path of a ``config.json`` or of a folder with one
    - a Hub id of a checkpoint whose packed matrices the catalog knows
    - a catalog id, alias or Hub id in any spelling
    - a size such as ``7b``
    - the name of such a checkpoint without its owner
    - a Hub id that the catalog does not have,
      whose ``config.json`` is in the Hugging Face cache or is fetched
    - where it cannot be read, a Hub id that names a known model of which it is a copy or a fine-tune

    Raises:
        UnknownNameError: nothing of these; says the nearest.
        UsageError: the Hub cannot be asked, or the name stands for several entries.
        InputFileError: a file that cannot be used.
        NotModelledError: an architecture without formulas.
    """
    if not name.strip():
        raise UsageError(
            "the model has no name: give a catalog name, a size such as 7b, a Hub id or the path of "
            "a config.json"
        )
    name = _HUB_ADDRESS.sub("", name)
    path = _as_path(name)
    _refuse_no_model(name)
    if path is not None:
        return _from_file(path, reader)
    index = _index()
    # Makers give the name of the model to a checkpoint that they stored in fp8.
    if "/" in name and (stored := _from_stored(name)) is not None:
        return stored
    if entry_id := index.find(name):
        spec = spec_of(_read_entry(entry_id))
        return ResolvedModel(spec, "catalog", _omission(spec))
    if variants := index.variants_of(name):
        raise UsageError(f"model '{name}' stands for several entries; choose one of: {', '.join(variants)}")
    sizes = model_sizes()
    if size := sizes.get(name.strip().lower()):
        return _from_size(name, size)
    # Names of the catalog need no network, and the modules for it are slow to import.
    from planner.catalog.hub import is_hub_id
    from planner.catalog.nearest import refusal_of

    if (stored := _from_stored(name)) is not None:
        return stored
    if is_hub_id(name):
        return _from_hub(name, reader)
    if sentence := refusal_of(name, index):
        raise NotModelledError(sentence)
    raise _unknown(name, index, sizes)


def _refuse_no_model(name: str) -> None:
    """Files that people have instead of a model's own."""
    if name.lower().endswith(".gguf"):
        raise UsageError(f"'{show(name)}': GGUF is not read: give the model that it was made of, {_WAYS}")
    try:
        adapters = Path(name, "adapter_config.json").is_file() and not Path(name, "config.json").exists()
    except (OSError, ValueError):
        return
    if adapters:
        raise InputFileError(name, f"a folder of adapters: give their base model, {_WAYS}")


def entry_named_in(hub_id: str) -> ModelEntry | None:
    """The entry of the known model that ``hub_id`` names as its base, with the dtype that the id says.

    ``None`` where it names none, or two of other shapes, where its weights are packed,
    and for what is no Hub id.

    Raises:
        InputFileError: a file of the catalog cannot be read.
    """
    from planner.catalog.hub import is_hub_id
    from planner.catalog.same_shape import kin_of

    if not is_hub_id(hub_id):
        return None
    kin = kin_of(hub_id, _index())
    entries = [_read_entry(model_id) for model_id in kin.model_ids]
    if len({_shape(spec_of(entry)) for entry in entries}) != 1:
        return None
    names = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
    given = {} if kin.stored is None else {"torch_dtype": names[kin.stored]}
    return entries[0].model_copy(update={"config": {**entries[0].config, **given}})


def spec_of(entry: ModelEntry) -> ModelSpec:
    """``entry`` as the calculations use it."""
    where = str(data_dir() / "models" / f"{entry.id}.toml")
    return replace(
        model_from_config(entry.config_fields(), where),
        id=entry.id,
        hub_id=entry.hub_id,
        published_params=entry.published_params,
        params_origin=entry.params_origin,
        source=entry.config_source,
    )


def _unknown(name: str, index: CatalogIndex, sizes: Iterable[str] = ()) -> UnknownNameError:
    from planner.catalog.nearest import unknown_model

    return unknown_model(name, index, sizes)


def _index() -> CatalogIndex:
    return read_index(data_dir() / "models")


def _read_entry(entry_id: str) -> ModelEntry:
    path = data_dir() / "models" / f"{entry_id}.toml"
    entry = validate(ModelEntry, read_toml(path), path)
    if entry.id != entry_id:
        raise InputFileError(path, f"key 'id' is '{entry.id}' and must be the file name, '{entry_id}'")
    return entry


def _as_path(name: str) -> Path | None:
    """``name`` as a path if it is one: it exists,
    or is written like one so that nothing else can be meant.
    """
    try:
        path = Path(name).expanduser()
        if (path / "config.json").is_file() or (path.is_file() and path.suffix == ".json"):
            return path
    except (OSError, ValueError, RuntimeError):
        return None
    written_like_a_path = (
        name.startswith((".", "~", os.sep))
        or name.endswith((".json", "/"))
        or "\\" in name
        or name.count("/") > 1
    )
    return path if written_like_a_path else None


def known_by_folder(path: str) -> str | None:
    """Id of the model whose name, or by the rule for Hub ids whose shape, a folder has that is not here;
    ``None`` where it has none, where it is here, and for what is not written like a path.

    The Hugging Face cache keeps owner and name in the path (huggingface_hub 2.4.0 file_download.py
    repo_folder_name); ModelScope writes three underscores for a point (modelscope_hub 0.5.1 _download.py).
    A checkpoint of the Trainer lies in the folder of its run (transformers 5.23.0 trainer_utils.py
    PREFIX_CHECKPOINT_DIR).
    """
    folder = _as_path(path)
    if folder is None or os.path.lexists(folder):
        return None
    cached = _IN_CACHE.search(path)
    run = _CHECKPOINT.sub("", path.rstrip("/"))
    name = cached[1].replace("--", "/") if cached else run.rpartition("/")[2]
    name = name.replace("___", ".")
    if (exact := _index().find(name)) is not None:
        return exact
    entry = entry_named_in(name if "/" in name else f"folder/{name}")
    # A dtype in the name is the folder's own, and an id would lose it.
    return None if entry is None or entry.config != _read_entry(entry.id).config else entry.id


def _from_file(path: Path, reader: ConfigReader) -> ResolvedModel:
    spec = read_config_file(path, reader)
    folder = path if path.is_dir() else path.parent
    # "config" says nothing; the folder is what people name after the model.
    model_id = folder.resolve().name if path.is_dir() or path.name == "config.json" else path.stem
    return ResolvedModel(
        replace(spec, id=model_id or "config"), "file", _joined(f"read from {path}", _omission(spec))
    )


def _from_size(name: str, size: SizeEntry) -> ResolvedModel:
    entry = model_entry(size.model)
    spec = spec_of(entry)
    return ResolvedModel(
        spec, "size", _joined(f"{name.strip()} means {entry.name} (data/{_SIZES_FILE})", _omission(spec))
    )


def _from_stored(hub_id: str) -> ResolvedModel | None:
    """A checkpoint of ``data/models/stored.toml``, by its id in any case, or by its name alone where one
    owner has such a one; ``None`` of others.
    """
    entry = stored_entry(hub_id)
    return None if entry is None else _packed(hub_id, entry)


def _packed(hub_id: str, entry: StoredEntry) -> ResolvedModel:
    base, given = model_entry(entry.model), entry.fields()
    was = spec_of(base.model_copy(update={"config": {**base.config, **entry.config}}))
    if entry.config:
        was = replace(was, published_params=None, params_origin="config-only")
    spec = with_stored(in_checkpoint_dtype(was, given), given, f"data/{STORED_FILE}: {hub_id}")
    spec = replace(spec, stored=_storage(hub_id, entry))
    return ResolvedModel(
        spec, "catalog", _joined(f"{hub_id} is {base.name}, packed (data/{STORED_FILE})", _omission(spec))
    )


def _storage(hub_id: str, entry: StoredEntry) -> StoredWeights | None:
    given = stored_said(entry.fields(), f"data/{STORED_FILE}: {hub_id}")
    return None if given is None else replace(given.stored, source=entry.source, assumed=entry.assumed)


def _n_layers(model_id: str) -> int:
    return sum(group.count for group in spec_of(model_entry(model_id)).groups)


def storage_of(hub_id: str) -> StoredWeights | None:
    """How the checkpoint ``hub_id`` is stored, as the catalog or else its ``config.json`` says;
    ``None`` where neither does, or that file cannot be read.

    Raises:
        InputFileError: a field of that file is missing or out of range.
        NotModelledError: it says a kind that is not modelled.
    """
    from planner.catalog.hub import NotOnHubError, UnreadConfigError, is_hub_id

    if (entry := stored_entry(hub_id)) is not None:
        return _storage(hub_id, entry)
    if not is_hub_id(hub_id):
        return None
    try:
        fields, source, _ = _published_config(hub_id)
    except (UnreadConfigError, NotOnHubError):
        entry = assumed_entry(hub_id, _n_layers)
        return None if entry is None else _storage(hub_id, entry)
    given = stored_said(fields, source)
    return None if given is None else given.stored


def _from_hub(hub_id: str, reader: ConfigReader) -> ResolvedModel:
    from planner.catalog.hub import NotOnHubError, UnreadConfigError
    from planner.catalog.nearest import refusal_of

    try:
        fields, source, origin = _published_config(hub_id)
    except UnreadConfigError as error:
        if (entry := assumed_entry(hub_id, _n_layers)) is not None:
            return _packed(hub_id, entry)
        if (resolved := _from_name(hub_id)) is not None:
            return resolved
        if sentence := refusal_of(hub_id, _index()):
            raise NotModelledError(sentence) from None
        raise UnreadConfigError(f"{error}{_way_out_of(hub_id)}") from None
    except NotOnHubError as error:
        raise NotOnHubError(f"{error}{_way_out_of(hub_id)}") from None
    spec = replace(reader(fields, source), id=hub_id.split("/")[1].lower(), hub_id=hub_id, source=source)
    return ResolvedModel(spec, "hub", _joined(f"config.json of {hub_id} {origin}", _omission(spec)))


def _published_config(hub_id: str) -> tuple[Mapping[str, Any], str, str]:
    """The ``config.json`` of ``hub_id``, its place, and how it came: from the Hugging Face cache, else from
    the Hub.
    """
    from planner.catalog.hub import config_url, fetch_config
    from planner.catalog.hub_settings import cached_config, endpoint

    if (file := cached_config(hub_id)) is not None:
        return config_fields(file), str(file), "read from the Hugging Face cache"
    return fetch_config(hub_id), config_url(hub_id), f"fetched from {endpoint().host}"


def _way_out_of(hub_id: str) -> str:
    """What else could be given than a Hub id that could not be read."""
    from planner.catalog.nearest import way_out_of

    return way_out_of(hub_id, _index())


def _from_name(hub_id: str) -> ResolvedModel | None:
    """The known model that ``hub_id`` names as its base; ``None`` where it names none, or two that differ,
    or says that its weights are packed: how, no name says in full.
    """
    from planner.catalog.same_shape import kin_of

    kin = kin_of(hub_id, _index())
    entries = [_read_entry(model_id) for model_id in kin.model_ids]
    specs = [spec_of(entry) for entry in entries]
    if len({_shape(spec) for spec in specs}) != 1:
        return None
    spec = replace(specs[0], checkpoint_dtype=kin.stored or specs[0].checkpoint_dtype)
    note = (
        f"taken to have the shape of {entries[0].name} by its name: {hub_id}, whose config.json was not read"
    )
    return ResolvedModel(spec, "name", _joined(note, _omission(spec)))


def _shape(spec: ModelSpec) -> ModelSpec:
    """``spec`` without what differs between entries of one shape."""
    return replace(
        spec,
        id="",
        hub_id="",
        max_position_tokens=None,
        published_params=None,
        params_origin="config-only",
        source="",
    )


def _omission(spec: ModelSpec) -> str:
    return f"without {spec.omits}" if spec.omits else ""


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
