"""Every entry of ``data/encoders.toml`` beside the module that Transformers makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.encoders import Encoder, encoders
from tests.extras import needs

pytestmark = needs("transformers")


@pytest.mark.parametrize("entry", encoders(), ids=lambda entry: entry.names[0])
def test_an_encoder_is_the_module_that_was_published(entry: Encoder) -> None:
    """Its class takes all fields; where a count was published, sizes that were wrong would make another."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(**entry.config)
    with torch.device("meta"):
        make: Any = transformers.AutoModel.from_config
        model = make(config)
    n_params = sum(each.numel() for each in model.parameters())
    assert n_params == (entry.params or n_params)
    # One that the class does not know is kept beside its own, and would change nothing.
    assert [name for name in entry.config if not hasattr(config, name)] == []
