"""Every optimizer that a job can name is made by its own library, and no other name becomes one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.recipes.optimizers import OPTIMIZER_FACTS, OPTIMIZERS
from planner.errors import NotModelledError
from tests.extras import import_or_skip
from tests.jobs import resolved

torch = import_or_skip("torch")
import_or_skip("bitsandbytes")
import_or_skip("transformers")


# Tools, packages, torchao and Transformers 4 have code of their own for these, which is not installed here.
NOT_MADE = (
    "unheard_of",
    "adamw_hf",
    *(name for name, facts in OPTIMIZER_FACTS.items() if facts.library in ("tool", "package", "torchao")),
)


@pytest.mark.parametrize("optimizer", sorted({*OPTIMIZERS, *NOT_MADE}))
def test_the_name_decides_what_is_made(optimizer: str) -> None:
    """The class has the name of its family;
    an unknown name is refused instead of becoming another optimizer.
    """
    from measure.recipe.optimizers import optimizer_over

    model = torch.nn.Linear(4, 4)
    recipe = resolved({"model": "qwen2.5-0.5b", "method": "full", "gpu": "h100-sxm", "seq": "64"}).recipe
    recipe = replace(recipe, optimizer=optimizer)  # type: ignore[arg-type]
    groups = [{"params": list(model.parameters())}]
    if optimizer in NOT_MADE:
        with pytest.raises(NotModelledError, match=optimizer):
            optimizer_over(model, groups, recipe)
        return
    made = type(optimizer_over(model, groups, recipe)).__name__.lower()
    family = optimizer.removeprefix("paged_").partition("_")[0]
    assert family in made
    with pytest.raises(NotModelledError, match="optimizer-in-backward"):
        optimizer_over(model, groups, replace(recipe, optimizer_in_backward=True))
