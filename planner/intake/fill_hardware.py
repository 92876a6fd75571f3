"""What was given about GPUs, nodes and host -> Hardware."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.catalog.gpus import load_gpu
from planner.catalog.hosts import load_host
from planner.domain.hardware import UNKNOWN_HOST, GpuSpec, Hardware, HostSpec, server_of
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import UnknownNameError, UsageError
from planner.intake.given.fields import split_count
from planner.intake.given.ledger import Ledger
from planner.intake.given.request import require
from planner.units import GIGA
from planner.words import words

UNLISTED_CARD = "unlisted"
_UNNAMED_NETWORK = (
    "the coefficient network_bytes_per_s_per_gpu, for servers of this card; a host entry can say the network"
)


def resolve_hardware(ledger: Ledger) -> Hardware:
    """Hardware of the job.

    Raises:
        UnknownNameError: no such GPU (and no ``gpu_memory`` to stand for it) or host.
        UsageError: two different counts of GPUs.
    """
    require(ledger.request, "hardware")
    given: str | None = ledger.request.get("gpu")
    name, counted = (None, None) if given is None else split_count(given)
    gpu = _resolve_gpu(ledger, name)
    gpus = _resolve_count(ledger, counted)
    nodes = ledger.choose("nodes", 1, "assumed")
    host = _resolve_host(ledger)
    if nodes > 1:
        _enter_network(ledger, host, gpu, gpus)
    reserved = ledger.choose("gpu_reserved", 0, "assumed")
    link: str | None = ledger.request.get("link")
    if link is not None or gpus > 1:
        _enter_link(ledger, gpu)
    link_gb_per_s: float | None = _said(ledger, "link_gb_per_s")
    return Hardware(
        gpu=gpu,
        gpus_per_node=gpus,
        nodes=nodes,
        host=host,
        gpu_reserved_bytes=reserved,
        link=link,
        network_bytes_per_s=host.network_bytes_per_s,
        link_bytes_per_s=None if link_gb_per_s is None else link_gb_per_s * GIGA,
        power_limit_w=_power_limit_w(ledger, gpu),
    )


def _said(ledger: Ledger, name: str) -> Any:
    """A value that has no default, entered only where it was given."""
    return ledger.choose(name, None, "assumed") if ledger.is_given(name) else None


def _power_limit_w(ledger: Ledger, gpu: GpuSpec) -> float | None:
    """The limit that was given; refused where nobody knows what the card draws without one."""
    limit: float | None = _said(ledger, "power_limit_w")
    if limit is not None and gpu.tdp_w is None:
        raise UsageError(f"power_limit_w: the rated power of {gpu.id} is not known; leave the limit out")
    return limit


def _enter_link(ledger: Ledger, gpu: GpuSpec) -> None:
    """How the GPUs of a node are taken to talk: over what the card comes with, which is never a bridge.

    Raises:
        UsageError: NVLink was given, and the card has none.
    """
    if gpu.interconnect == "none" and ledger.request.get("link") == "nvlink":
        raise UsageError(f"link nvlink: {gpu.id} has no NVLink; leave the link out, or say link pcie")
    if gpu.needs_bridge:
        ledger.choose("link", "pcie", "assumed", "bridges are sold apart: link nvlink says that there is one")
    else:
        ledger.choose(
            "link", "pcie" if gpu.interconnect == "none" else gpu.interconnect, "catalog", "the card's own"
        )


def _enter_network(ledger: Ledger, host: HostSpec, gpu: GpuSpec, gpus: Any) -> None:
    """What the network between nodes is taken to be: the host's own, or the coefficient."""
    known = host.network_bytes_per_s
    if known is None:
        rate = gpus * Coefficients().network_bytes_per_s_per_gpu * server_of(gpu).network
        note = _UNNAMED_NETWORK
    else:
        rate, note = known, f"all links of one node {host.id} together"
    ledger.enter("network", f"{rate / GIGA:g} GB/s per node", "assumed" if known is None else "catalog", note)


def _resolve_count(ledger: Ledger, counted: int | None) -> int:
    given: int | None = ledger.request.get("gpus")
    if counted is None:
        return ledger.choose("gpus", 1, "assumed")
    if given is not None and given != counted:
        raise UsageError(f"gpu says {counted} GPUs per node and gpus says {given}; give the count once")
    ledger.enter("gpus", counted, ledger.request.values["gpu"].origin)
    return counted


def _resolve_gpu(ledger: Ledger, name: str | None) -> GpuSpec:
    memory: int | None = ledger.request.get("gpu_memory")
    try:
        gpu = load_gpu(name) if name is not None else _unlisted(UNLISTED_CARD)
    except UnknownNameError:
        if memory is None:
            raise
        gpu = _unlisted(str(name))
    if name is not None:
        note = (
            "not in the catalog: taken as a CUDA card of unknown speed"
            if gpu.generation == "unknown"
            else gpu.name
        )
        ledger.enter("gpu", gpu.id, ledger.request.values["gpu"].origin, note)
    else:
        ledger.enter("gpu", gpu.id, "assumed", "a CUDA card of unknown speed with the memory given")
    if memory is None:
        _enter_catalog_memory(ledger, gpu)
        return gpu
    ledger.choose("gpu_memory", memory, "cli")
    kept = tuple(entry for entry in gpu.origins if entry[0] != "visible_memory_bytes")
    return replace(gpu, visible_memory_bytes=memory, origins=(*kept, ("visible_memory_bytes", "user")))


def _enter_catalog_memory(ledger: Ledger, gpu: GpuSpec) -> None:
    if gpu.visible_memory_bytes is None:
        ledger.enter("gpu_memory", "unknown", "catalog", "no memory verdict without it")
    else:
        ledger.enter(
            "gpu_memory",
            gpu.visible_memory_bytes,
            "catalog",
            f"visible to CUDA, {gpu.origin_of('visible_memory_bytes')}",
        )


def _unlisted(name: str) -> GpuSpec:
    """A CUDA card of which only the memory will be known."""
    unknown: dict[str, Any] = dict.fromkeys(
        words(
            """
            marketing_memory_bytes visible_memory_bytes memory_bandwidth_bytes_per_s bf16_flop_per_s
            fp16_flop_per_s fp32_flop_per_s int8_op_per_s interconnect_bytes_per_s pcie_generation pcie_lanes
            tdp_w
            """
        )
    )
    return GpuSpec(
        id=name,
        name=name,
        vendor="nvidia",
        generation="unknown",
        compute_capability="unknown",
        interconnect="unknown",
        origins=(),
        source="given by the user",
        **unknown,
    )


def _resolve_host(ledger: Ledger) -> HostSpec:
    host = load_host(
        ledger.choose("host", UNKNOWN_HOST, "assumed", "host RAM is judged only when its size is known")
    )
    slot = {
        name: given
        for name in ("pcie_lanes", "pcie_generation")
        if (given := _said(ledger, name)) is not None
    }
    host = replace(host, **slot)
    if host.memory_bytes is None and not ledger.is_given("host_memory"):
        ledger.enter("host_memory", "unknown", "assumed")
        return host
    return replace(host, memory_bytes=ledger.choose("host_memory", host.memory_bytes, "catalog"))
