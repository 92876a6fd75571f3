"""The first Transformers of each architecture, beside the one that is installed."""

from __future__ import annotations

import pytest

from planner.catalog.architecture_tables import first_version, needed_version
from planner.catalog.location import data_dir
from planner.catalog.models import load_model
from planner.catalog.packages import parsed_version
from planner.files.structured import read_toml
from tests.extras import needs


@needs("transformers")
def test_what_is_listed_is_there_today_and_was_not_in_4_28() -> None:
    """Names are those of the installed Transformers; releases lie between the first and the last read."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    found = read_toml(data_dir() / "model_versions.toml")["since"]
    assert found.keys() <= set(CONFIG_MAPPING_NAMES)
    releases = {parsed_version("transformers", version) for version in found.values()}
    assert all((4, 28, 0) < each <= (5, 23, 0) for each in releases)
    assert not {"llama", "gpt2", "opt"} & found.keys()


@pytest.mark.parametrize(
    ("model", "needed"),
    [
        ("llama-2-7b", (0, 0, 0)),
        ("qwen3-0.6b", (4, 51, 0)),
        # Its decoder came after the class around it.
        ("ministral-3-3b", (5, 0, 0)),
        # The checkpoint brings its modules.
        ("internlm2-7b", (0, 0, 0)),
    ],
)
def test_a_model_needs_the_newer_of_its_classes(model: str, needed: tuple[int, int, int]) -> None:
    """That of the model and that of its decoder."""
    assert needed_version(load_model(model).spec) == needed


def test_an_architecture_that_is_not_listed_is_older_or_none() -> None:
    """Neither is a reason for a warning."""
    assert first_version("llama") == first_version("nobody") == ""
