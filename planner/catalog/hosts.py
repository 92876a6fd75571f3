"""Host entries of ``data/hosts``: the machine around the GPUs, one small file each."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.catalog.index import fold_name
from planner.catalog.location import data_dir
from planner.domain.hardware import HostSpec
from planner.errors import InputFileError, UnknownNameError
from planner.files.checking import validate
from planner.files.structured import read_toml
from planner.units import GIB, GIGA

_BITS_PER_BYTE = 8
Positive = Annotated[float, Field(gt=0, le=1_000_000_000, allow_inf_nan=False)]


class HostEntry(BaseModel):
    """One file of ``data/hosts`` as it stands.  A key that is absent is unknown."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    schema_version: Literal[1] = Field(alias="schema")
    id: str = Field(min_length=1)
    title: str = Field(min_length=1)
    aliases: list[str] = []
    cores: Annotated[int, Field(ge=1, le=100_000)] | None = None
    memory_gib: Positive | None = None
    memory_bandwidth_gb_per_s: Positive | None = None
    pcie_generation: Annotated[int, Field(ge=1, le=9)] | None = None
    network_gbit_per_s: Positive | None = None
    source: str = Field(min_length=1)


def host_ids() -> tuple[str, ...]:
    """Ids of all hosts in the catalog, sorted."""
    return tuple(sorted(path.stem for path in (data_dir() / "hosts").glob("*.toml")))


@lru_cache(maxsize=64)
def load_host(name: str) -> HostSpec:
    """The host with this id or alias, in base units; ``unknown`` is a host about which nothing is known.

    Raises:
        UnknownNameError: no such host; says the nearest.
        InputFileError: the file is malformed.
    """
    folded = fold_name(name)
    for host_id in sorted(host_ids(), key=lambda known: fold_name(known) != folded):
        path = data_dir() / "hosts" / f"{host_id}.toml"
        entry = validate(HostEntry, read_toml(path), path)
        if entry.id != host_id:
            raise InputFileError(path, f"key 'id' is '{entry.id}' and must be the file name, '{host_id}'")
        if folded in map(fold_name, (entry.id, *entry.aliases)):
            return _spec_of(entry)
    described = (
        f"described are {', '.join(host_ids())}; where yours is none of them leave --host out and say "
        "--host-memory"
    )
    raise UnknownNameError("host", name, host_ids(), described)


def _spec_of(entry: HostEntry) -> HostSpec:
    bandwidth, network = entry.memory_bandwidth_gb_per_s, entry.network_gbit_per_s
    return HostSpec(
        id=entry.id,
        cores=entry.cores,
        memory_bytes=None if entry.memory_gib is None else round(entry.memory_gib * GIB),
        memory_bandwidth_bytes_per_s=None if bandwidth is None else bandwidth * GIGA,
        pcie_generation=entry.pcie_generation,
        source=entry.source,
        network_bytes_per_s=None if network is None else network * GIGA / _BITS_PER_BYTE,
    )
