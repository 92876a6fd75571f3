"""What the recorder sees of operators: storages, workspaces, gradients, and where each of them is."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("torch")

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from measure.trace.record import OUTSIDE
from measure.trace.tracer import Recorder


def sizes(recorder: Recorder) -> list[tuple[bool, int]]:
    """Allocations and frees, in order."""
    return [(each.alloc, each.block.n_bytes) for each in recorder.trace.records]


def test_a_storage_is_one_block_however_many_tensors_see_it() -> None:
    """Views are no allocations; the block is freed when the last of them goes."""
    recorder = Recorder()
    with recorder:
        whole = torch.empty(4, 4)
        view = whole.view(16)[:8]
        assert recorder.block_of(view) is recorder.block_of(whole)
        del whole
        assert sizes(recorder) == [(True, 64)]
        del view
    assert sizes(recorder) == [(True, 64), (False, 64)]


def test_what_goes_with_the_model_is_no_part_of_the_trace() -> None:
    """And what is made in host memory is none either."""
    recorder = Recorder()
    with recorder:
        with recorder.on_host():
            kept = torch.empty(100)
        whole = torch.empty(4)
    recorder.close()
    del whole, kept
    assert sizes(recorder) == [(True, 16)]


def test_workspaces_are_taken_while_a_kernel_runs_and_that_of_products_for_good() -> None:
    """Two workspaces of one kernel go in reverse order, none of no bytes is taken; cuBLAS asks once."""
    multiply = torch.ops.aten.mul.Tensor
    recorder = Recorder({multiply: lambda *_: [8, 0, 24]}, product_workspace_bytes=1000)
    one = torch.ones(2, 2)
    with recorder:
        product = one * one
        made = [one @ one, one @ one]
    assert sizes(recorder) == [
        (True, 8), (True, 24), (True, 16), (False, 24), (False, 8), (True, 1000), (True, 16), (True, 16),
    ]  # fmt: skip
    assert recorder.last_operator == "aten.mm.default"
    del product, made


class Layers(nn.Module):
    """Two decoder layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        for layer in self.layers:
            x = layer(x)
        return x


def test_blocks_know_their_layer_in_forward_and_backward() -> None:
    """In backward the layer is that of the module that made the autograd node."""
    model, recorder = Layers(), Recorder()
    with recorder.modules.watching([model], "layers"), recorder:
        recorder.enter_stage("forward", 1)
        loss = model(torch.ones(1, 2)).sum()
        recorder.enter_stage("backward", 1)
        loss.backward()
    products = [
        each.block for each in recorder.trace.records if each.alloc and each.block.op == "aten.mm.default"
    ]
    assert [(each.place.stage, each.place.micro_step, each.place.layer) for each in products] == [
        ("forward", 1, 0), ("forward", 1, 1), ("backward", 1, 1), ("backward", 1, 1), ("backward", 1, 0),
    ]  # fmt: skip
    assert products[0].module == "layers.0"


def test_what_an_optimizer_makes_is_of_the_layer_of_its_source() -> None:
    """A result of one tensor is of its layer; a list's results are each of their own."""
    model, recorder = Layers(), Recorder()
    recorder.modules.learn(model, "layers.")
    with recorder:
        tensors = []
        for name in ("", "layers.0", "layers.1"):
            with recorder.modules.at(name):
                tensors.append(torch.ones(3))
        recorder.enter_stage("optimizer_step")
        one = tensors[2] * 2
        several = torch._foreach_mul(tensors, 2)
        joined = torch.stack(tensors)
    made = [recorder.block_of(each) for each in (one, *several, joined)]
    assert [each.place.layer for each in made if each] == [1, OUTSIDE, 0, 1, OUTSIDE]
    assert made[-1] is not None
    assert made[-1].part_layers == (OUTSIDE, 0, 1)


def test_parts_of_a_sum_are_parts_of_a_gradient_if_the_sum_is_one() -> None:
    """A weight that is used twice gets a gradient of each use."""
    recorder = Recorder()
    weight = nn.Parameter(torch.ones(4, 4))
    with recorder:
        recorder.enter_stage("backward")
        loss = (weight @ torch.ones(4, 1)).sum() + (weight * 2.0).sum()
        loss.backward()
    assert weight.grad is not None
    recorder.mark(weight.grad, "gradients")
    block = recorder.block_of(weight.grad)
    assert block is not None
    assert block.role == "gradients"
    roles = [each.block.role for each in recorder.trace.records if each.alloc and each.block.n_bytes == 64]
    assert roles.count("gradient_parts") + roles.count("gradients") >= 2


def _program_with_shared_gradients() -> torch.Tensor:
    """A residual stream, and a table that is used twice: as a table and as the head."""
    table = torch.nn.Parameter(torch.ones(16, 4))
    hidden = torch.nn.functional.embedding(torch.tensor([1, 2, 3]), table)
    hidden = hidden + torch.relu(hidden * 3.0)
    hidden = hidden + torch.sigmoid(hidden * 2.0)
    return torch.nn.functional.linear(hidden, table).sum()


@pytest.mark.parametrize("fake", [True, False])
def test_gradients_are_summed_in_place_where_autograd_does_so_unwatched(fake: bool) -> None:
    """A dispatch mode makes autograd sum out of place; the recorder undoes that,
    also where the first gradient is a view.
    """
    from torch.profiler import ProfilerActivity, profile

    loss = _program_with_shared_gradients()
    with profile(activities=[ProfilerActivity.CPU]) as unwatched:
        loss.backward()
    wanted = [
        each.name.removeprefix("aten::")
        for each in unwatched.events()
        if each.name in ("aten::add", "aten::add_")
    ]
    recorder = Recorder(keep_operators=True)
    with FakeTensorMode() if fake else nullcontext():
        loss = _program_with_shared_gradients()
        with recorder:
            recorder.enter_stage("backward")
            loss.backward()
    operators = (name.partition(" ")[0].split(".")[1] for name in recorder.trace.operators)
    assert [name for name in operators if name in ("add", "add_")] == wanted == ["add_", "add_", "add"]


class _Summed(torch.autograd.Function):
    """Whose backward adds two tensors that nothing else holds."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Twice ``x``."""
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """A sum of temporaries, as BLOOM's activation has."""
        return gradient * 1.0 + gradient * 1.0


def test_a_sum_of_a_functions_own_backward_is_none_of_autograds() -> None:
    """It makes a tensor; the sum of both gradients of ``x`` behind it is in place."""
    recorder = Recorder(keep_operators=True)
    x = torch.ones(4, requires_grad=True)
    stream = x * 3.0
    loss = (_Summed.apply(stream) + torch.relu(stream)).sum()
    with recorder:
        recorder.enter_stage("backward")
        loss.backward()
    operators = [name.partition(" ")[0].split(".")[1] for name in recorder.trace.operators]
    assert sorted(name for name in operators if name in ("add", "add_")) == ["add", "add_"]
