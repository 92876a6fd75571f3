"""In which order a process runs the parts of a model, and what is left: parts of one operator each."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import Job, job_of
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.recorded_part import NO_INPUT, Gradients, Terms, run
from planner.program.request_stream import RequestStream
from planner.program.runtime import Generation, Part, Pass, Runtime
from tests.planner.intake.jobs import scenario_of

TERMS = Terms("saved_activations", "other_temporaries")
PASS = Pass("forward", "loss", "backward", is_last=True)


def job(*, binds_loss: bool = False) -> Job:
    """A job of one card; ``binds_loss``: the loop refers to the loss until the next one is there."""
    scenario = scenario_of(model="llama-3.2-1b", method="lora", gpu="a100-80-sxm", seq=512)
    stack = replace(scenario.stack, binds_loss=binds_loss)
    return job_of(replace(scenario, stack=stack), Coefficients())


def _table(torch: Operators, _: Tensor) -> Tensor:
    return torch.same(torch.parameter(Unit.TOKENS, 64, "bf16", trained=True), "embedding")


def _matrix(torch: Operators, x: Tensor) -> Tensor:
    return torch.mm(x, torch.parameter(Unit.ONE, 64 * 64, "bf16", trained=True), 64)


def _head(torch: Operators, x: Tensor) -> Tensor:
    logits = torch.same(x, "logits")
    torch.outputs.append(logits)
    return torch.mean_of_rows(logits)


def parts(gradients: Gradients = "first") -> list[Part]:
    """A table, two layers that are alike, and a head whose logits a variable of the loop refers to."""
    table = run(_table, NO_INPUT, TERMS, gradients=gradients)
    layer = run(_matrix, table.out, TERMS, gradients=gradients)
    head = run(_head, layer.out, TERMS, gradients=gradients)
    return [Part("embeddings", table, 1), Part("layer", layer, 2), Part("head", head, 1)]


def alive(stream: RequestStream) -> list[int]:
    """What is allocated at the end; nothing is freed twice."""
    left: set[int] = set()
    for event in stream.events:
        (left.add if event >= 0 else left.remove)(event if event >= 0 else ~event)
    return sorted(left)


def test_a_micro_step_goes_there_and_back_and_leaves_gradients() -> None:
    """Forward through all parts, backward through them in reverse."""
    runtime = Runtime(RequestStream(), job())
    gradients = runtime.micro_step(parts(), PASS)
    stream = runtime.stream
    assert [name for _, name in stream.phases] == ["forward", "loss", "backward"]
    order = list(dict.fromkeys(stream.place(event)[0] for event in stream.events if event >= 0))
    assert order == ["embeddings", "layer 0", "layer 1", "head"]
    begin = next(index for index, name in stream.phases if name == "backward")
    back = [stream.place(event)[0] for event in stream.events[begin:] if event >= 0]
    assert list(dict.fromkeys(back)) == ["layer 1", "layer 0", "embeddings"]
    assert sorted(gradients) == alive(stream)
    assert len(gradients) == 3


@pytest.mark.parametrize(("binds_loss", "n_logits"), [(False, 0), (True, 1)])
def test_a_loop_may_refer_to_the_loss_until_the_next_one_is_there(binds_loss: bool, n_logits: int) -> None:
    """Then the logits of one micro-step meet the next one, and never a third."""
    runtime = Runtime(RequestStream(), job(binds_loss=binds_loss))
    for _ in range(3):
        runtime.micro_step(parts(), PASS)
        ops = Counter(runtime.stream.place(slot)[2] for slot in alive(runtime.stream))
        assert ops["logits"] == n_logits


def test_an_evaluation_leaves_nothing_and_counts_its_own_batch() -> None:
    """Its sizes are of the tokens that are evaluated."""
    runtime = Runtime(RequestStream(), job())
    runtime.evaluate(parts("none"))
    stream = runtime.stream
    assert alive(stream) == []
    assert {Unit(stream.units[event]) for event in stream.events if event >= 0} == {Unit.EVAL_TOKENS}
    assert [name for _, name in stream.phases] == ["eval"]


def test_passes_without_gradients_run_before_the_forward_pass_and_go_after_the_loss() -> None:
    """Those of a reference model, of which the logits are there when the loss is."""
    runtime = Runtime(RequestStream(), job())
    runtime.before = (parts("none"),)
    gradients = runtime.micro_step(parts(), PASS)
    stream = runtime.stream
    places = [stream.place(event)[::2] for event in stream.events if event >= 0]
    assert places.count(("head", "logits")) == 3, "of either pass forward, and the gradient"
    assert places.index(("head", "logits")) < len(places) // 2
    assert alive(stream) == sorted(gradients)


def test_what_is_generated_leaves_nothing() -> None:
    """The pass over the prompts, two of one more token, and one over whole sequences."""
    runtime = Runtime(RequestStream(), job())
    *body, head = parts("none")
    alone = run(
        lambda torch, x: torch.mean_of_rows(torch.same(x, "logits")),
        body[-1].template.out,
        TERMS,
        gradients="none",
    )
    none = [*body, replace(head, template=alone)]
    runtime.generate(Generation(none, none, (none,)), "generation")
    made = Counter(Unit(runtime.stream.units[event]) for event in runtime.stream.events if event >= 0)
    # Four tensors in each pass: of the table, two layers and the head.
    assert made == {Unit.PROMPT_TOKENS: 4, Unit.GENERATED_ROWS: 8, Unit.TOKENS: 4}
    assert alive(runtime.stream) == []
    runtime.generate(None, "generation")
    assert [name for _, name in runtime.stream.phases] == ["generation"]
