"""``X:n`` of the GPU means the same wherever it is read; the colon of a MIG slice is part of its name."""

from pathlib import Path

import pytest

from planner.errors import UsageError
from planner.intake.given.config_file import ConfigFile, with_flags
from planner.intake.given.fields import split_count
from planner.intake.given.request import ScenarioRequest, from_flags, merge
from planner.searching.recipes.counts import counted_places
from planner.searching.recipes.space import Space
from tests.jobs import resolved

MIG = "a100-80gb:mig-3g.40gb"
JOB = {"model": "7b", "method": "lora", "seq": "512", "gpu_memory": "39GiB"}


@pytest.mark.parametrize(
    ("text", "card", "count"),
    [
        ("4090", "4090", None),
        ("4090:2", "4090", 2),
        ("a100-80gb : 8", "a100-80gb", 8),
        ("2x4090", "4090", 2),
        ("4090x2", "4090", 2),
        ("h100*8", "h100", 8),
        ("mi300x", "mi300x", None),
        ("T4 x2", "T4", 2),
        ("RTX 4090 x 4", "RTX 4090", 4),
        ("rtx2080", "rtx2080", None),
        (MIG, MIG, None),
        (MIG.upper(), MIG.upper(), None),
    ],
)
def test_a_count_is_split_from_the_card(text: str, card: str, count: int | None) -> None:
    """A card alone, with a count, and a slice."""
    assert split_count(text) == (card, count)


@pytest.mark.parametrize("text", [":2", "4090:", "4090:two", "4090:0"])
def test_a_count_that_is_none_is_refused(text: str) -> None:
    """No card before the colon, or no count from 1 on after it."""
    with pytest.raises(UsageError):
        split_count(text)


def test_a_slice_is_refused_by_its_whole_name() -> None:
    """The catalog explains MIG slices; the intake hands the name on as it is."""
    with pytest.raises(UsageError, match=f"MIG slices such as '{MIG}'"):
        resolved(JOB | {"gpu": MIG})


def test_gpus_beside_a_slice_do_not_cut_its_name() -> None:
    """A count over a counted card replaces the count; over a slice it leaves the name whole."""
    two = from_flags({"gpus": "2"})
    assert merge(from_flags({"gpu": "4090:4"}), two).get("gpu") == "4090"
    assert merge(from_flags({"gpu": MIG}), two).get("gpu") == MIG


def test_a_slice_over_a_count_keeps_the_count() -> None:
    """A counted card says how many GPUs there are, a slice does not."""
    two = from_flags({"gpus": "2"})
    assert merge(two, from_flags({"gpu": "4090:4"})).get("gpus") is None
    assert merge(two, from_flags({"gpu": MIG})).get("gpus") == 2


def test_a_total_batch_is_divided_over_the_gpus_beside_a_slice() -> None:
    """16 samples on two GPUs are 8 each; the digits of a slice are no count."""
    config = ConfigFile(
        Path(), "DeepSpeed", total_batch=(16, "ds.json:train_batch_size"), request=ScenarioRequest({})
    )
    assert with_flags(config, from_flags({"gpu": "4090:2"})).get("batch") == 8
    assert with_flags(config, from_flags({"gpu": "h100:mig-1g:10", "gpus": "2"})).get("batch") == 8


def test_a_search_for_counts_keeps_the_name_of_a_slice() -> None:
    """Counted cards say how many one node has; of a slice there are the usual eight."""
    space = Space({}, {})
    counted = list(counted_places(space, {"gpu": "4090:2"}))
    assert [place["gpus"] for place in counted[:2]] == ["1", "2"]
    assert {place["gpu"] for place in counted} == {"4090"}
    assert {place["gpu"] for place in counted_places(space, {"gpu": MIG})} == {MIG}
