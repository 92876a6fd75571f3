"""The entries of hosts."""

from __future__ import annotations

from planner.catalog.hosts import host_ids, load_host


def test_every_host_has_a_source() -> None:
    """Each entry loads under its own name, and the unknown host knows nothing."""
    for host_id in host_ids():
        assert load_host(host_id.upper()).id == host_id
        assert load_host(host_id).source
    unknown = load_host("unknown")
    assert (
        unknown.cores,
        unknown.memory_bytes,
        unknown.memory_bandwidth_bytes_per_s,
        unknown.pcie_generation,
    ) == (None,) * 4
