"""What a job says beside its fields."""

from __future__ import annotations

import pytest

from tests.jobs import resolved


@pytest.mark.parametrize(
    ("switches", "says"),
    [
        ("", ""),
        ("expandable_segments=on", "expandable_segments:True"),
        ("roundup_divisions=16", "roundup_power2_divisions:16"),
        ("max_split_mib=64", "max_split_size_mb:64"),
        (
            "expandable_segments=on;roundup_divisions=16",
            "expandable_segments:True,roundup_power2_divisions:16",
        ),
    ],
)
def test_what_a_stack_sets_of_the_allocator(switches: str, says: str) -> None:
    """As the variable has it."""
    job = {"model": "qwen2.5-0.5b", "method": "full", "seq": 64, "gpu": "4090"}
    assert resolved({**job, **({"switches": switches} if switches else {})}).allocator_settings == says


@pytest.mark.parametrize(("switches", "asks"), [("", True), ("sdpa_kernel=efficient", False)])
def test_a_program_that_leaves_one_kernel_does_not_ask_cudnn(switches: str, asks: bool) -> None:
    """Its own is none of those that ``sdpa_kernel`` names."""
    job = {"model": "qwen2.5-0.5b", "method": "full", "seq": 64, "gpu": "h100-sxm", "attention": "sdpa"}
    assert resolved({**job, "switches": f"cudnn_attention=true;{switches}".strip(";")}).runs_cudnn == asks
