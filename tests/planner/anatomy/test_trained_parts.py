"""How much of a model runs again in backward where only some layers are trained."""

from __future__ import annotations

import pytest

from planner.anatomy.trained_parts import recomputed_share
from tests.jobs import resolved


@pytest.mark.parametrize(
    ("stack", "reentrant", "share"),
    [("hf-trainer@4", False, 0.25), ("swift@1", False, 1), ("swift@1", True, 1), ("swift@3", True, 1)],
)
def test_swift_asks_for_gradients_of_the_input_whatever_is_trained(
    stack: str, reentrant: bool, share: float
) -> None:
    """So frozen layers below the trained ones are recomputed, too, and reentrant checkpoints work:
    Transformers 4 by itself does neither.
    """
    flags = {"model": "llama-3-8b", "gpu": "a100-80-sxm", "method": "full", "train_layers": "last:8"}
    said = {"seq": "1024", "stack": stack, "gradient_checkpointing": True, "checkpoint_reentrant": reentrant}
    scenario = resolved({**flags, **said})
    assert recomputed_share(scenario.model, scenario.recipe, scenario.stack) == pytest.approx(share)
