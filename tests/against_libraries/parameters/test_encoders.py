"""Every entry of ``data/encoders.toml`` beside the module that Transformers makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.encoders import encoder_config, encoders
from tests.extras import needs

pytestmark = needs("transformers")


@pytest.mark.parametrize("entry", encoders(), ids=lambda entry: entry["names"][0])
def test_an_encoder_has_the_published_number_of_parameters(entry: dict[str, Any]) -> None:
    """Sizes that were wrong would make another number."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(**entry["config"])
    with torch.device("meta"):
        make: Any = transformers.AutoModel.from_config
        model = make(config)
    assert sum(each.numel() for each in model.parameters()) == entry["params"]


def test_names_are_said_once() -> None:
    """A name leads to one entry; an unknown one to none."""
    names = [name for entry in encoders() for name in entry["names"]]
    assert len(set(names)) == len(names)
    assert encoder_config("nobody/nothing") is None
