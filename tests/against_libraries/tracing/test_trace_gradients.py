"""What a trace calls the gradients of weights: also those that wait for another part,
and those that are added to others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from scenarios import Setup
from tiny_traces import CONFIGS, small_config, small_scenario

from measure.trace.labels import to_events
from measure.trace.traced_job import trace_records
from planner.allocator.events import AllocEvent
from planner.domain.recipes.recipe import Numerics

TABLE = 512 * 256 * 2


def _events(monkeypatch: pytest.MonkeyPatch, *, tied: bool, grad_accum: int = 1) -> list[AllocEvent]:
    monkeypatch.setitem(CONFIGS, "llama", {**CONFIGS["llama"], "tie_word_embeddings": tied})
    case = small_scenario("llama", Setup(mixed=True))
    batch = replace(case.recipe.batch, grad_accum=grad_accum)
    case = replace(case, recipe=replace(case.recipe, batch=batch))
    return to_events(trace_records(case, small_config("llama", case)))


def _tables(events: list[AllocEvent], phases: tuple[str, ...]) -> Counter[tuple[str, str]]:
    """How many tensors of the table's size head and table make in ``phases``, by operator and term."""
    here = (
        each for each in events if each.phase in phases and each.module in ("lm_head", "model.embed_tokens")
    )
    made = (each for each in here if each.action == "alloc" and each.n_bytes == TABLE)
    return Counter((each.op.split(".")[1], each.term) for each in made)


@pytest.mark.parametrize("tied", [False, True])
def test_a_gradient_of_the_head_is_a_gradient_whether_it_is_tied_or_not(
    monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    """The head's product in the loss's backward, the table's own gradient and,
    where they are one weight, their sum.
    """
    tables = _tables(_events(monkeypatch, tied=tied), ("loss", "backward"))
    wanted = {("mm", "gradients"): 1, ("embedding_dense_backward", "gradients"): 1}
    assert tables == wanted | ({("add", "gradients"): 1} if tied else {})


def test_so_are_the_parts_that_are_added_to_gradients_of_an_earlier_micro_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With accumulation the sum of the parts is not the gradient that stays, and is one all the same."""
    events = _events(monkeypatch, tied=True, grad_accum=2)
    parts = {("mm", "gradients"): 1, ("embedding_dense_backward", "gradients"): 1, ("add", "gradients"): 1}
    first, later = (_tables(events, phases) for phases in (("loss", "backward"), ("loss_2", "backward_2")))
    assert first == parts
    # Three later micro-steps: one that finds gradients, and behind the optimizer's step
    # one that finds nothing and one that finds its gradients.
    assert later == {name: 3 * count for name, count in parts.items()}


def test_a_4bit_matrix_of_an_fp32_checkpoint_is_expanded_cast_and_gone_before_the_product() -> None:
    """``dequantize_4bit(...).to(...)`` holds 4 + 2 bytes an element; when the product runs,
    only the cast is there.
    """
    numerics = Numerics("fp32", "bf16-mixed", "nf4", double_quant=True)
    case = small_scenario("llama", Setup(rank=4, numerics=numerics))
    events = to_events(trace_records(case, small_config("llama", case)))
    down = [
        each
        for each in events
        if each.phase == "backward" and each.module.endswith("layers.1.mlp.down_proj.base_layer")
    ]
    elements = 688 * 256
    sizes = [(each.action, each.n_bytes) for each in down if each.n_bytes in (elements * 4, elements * 2)]
    assert sizes[:3] == [("alloc", elements * 4), ("alloc", elements * 2), ("free", elements * 4)]
    product = next(
        index for index, each in enumerate(down) if each.op.startswith("aten.mm") and each.action == "alloc"
    )
    assert product > next(
        index for index, each in enumerate(down) if (each.action, each.n_bytes) == ("free", elements * 4)
    )
