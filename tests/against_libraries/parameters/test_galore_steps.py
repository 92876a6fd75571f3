"""GaLore's steps over real tensors on the CPU against the program: states, and what a later step needs.

On a CPU nothing is seen of what the solver takes inside: a copy of the matrix and its workspace are left out.
So are singular values, one for each row of the shorter side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from planner.domain.recipes.optimizers import Optimizer
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.program.job import Job, job_of
from planner.program.ops.tensors import Unit
from planner.program.parameters import Weight
from planner.program.update.optimizer import steps_of
from planner.program.update.states import states_of
from tests.extras import import_or_skip

torch = import_or_skip("torch")

RANK = 8
SHAPES = ((300, 120), (90, 260), (64, 4), (120, 120))
_IN_THE_SOLVER = ("columns", "gesvdj")


class Counted:
    """Bytes that are alive, and the most of them; each token counts until it goes."""

    def __init__(self) -> None:
        self.live = self.peak = 0.0

    def make(self, _unit: Unit, n_bytes: float, _name: str, op: str) -> Any:
        """A temporary; none for what is inside of the solver."""
        return None if op in _IN_THE_SOLVER else _Token(self, n_bytes)


class _Token:
    def __init__(self, counted: Counted, n_bytes: float) -> None:
        self._counted, self._n_bytes = counted, n_bytes
        counted.live += n_bytes
        counted.peak = max(counted.peak, counted.live)

    def __del__(self) -> None:
        self._counted.live -= self._n_bytes


def job(optimizer: Optimizer) -> Job:
    """A full fine-tune that projects to eight."""
    flags = {"model": "llama-2-7b", "method": "full", "gpu": "a100-80gb", "seq": 512, "optimizer_rank": RANK}
    return job_of(resolve(from_flags({**flags, "optimizer": optimizer})), Coefficients())


def predicted(optimizer: Optimizer, dtype: Any) -> tuple[float, float]:
    """Bytes of states, and the most temporaries of a later step, by the program."""
    subject, counted = job(optimizer), Counted()
    weights = [
        Weight(f"layer 0 {rows}", "matrix", ((Unit.ONE, rows), (Unit.ONE, columns)), dtype, trained=True)
        for rows, columns in SHAPES
    ]
    for step, group in steps_of(subject, weights, first=False):
        step(counted.make, lambda _: None, group)
    return sum(state.unit_bytes for each in weights for state in states_of(subject, each)), counted.peak


class Emulated:
    """The order in which GaLore's optimizers bind and drop tensors (galore-torch 1.0), written anew."""

    def __init__(self, weights: list[Any]) -> None:
        self.weights = weights
        self.kept: dict[int, Any] = {}
        self.moments: dict[int, tuple[Any, ...]] = {}

    def adamw(self) -> None:
        """Moments of products, whose quotient is multiplied back."""
        narrow = root = update = None
        for number, weight in enumerate(self.weights):
            narrow = self.projected(number, weight.grad)
            first, second = self.moments.setdefault(
                number, (torch.zeros_like(narrow), torch.zeros_like(narrow))
            )
            first.mul_(0.9).add_(narrow, alpha=0.1)
            second.mul_(0.999).addcmul_(narrow, narrow, value=0.001)
            root = second.sqrt().add_(1e-8)
            update = first / root
            update = self.widened(number, update)
            weight.add_(update, alpha=-1e-4)

    def adafactor(self) -> None:
        """The same with sums of rows and columns, all in fp32."""
        update = wide = None
        for number, weight in enumerate(self.weights):
            gradient = None
            gradient = weight.grad.float() if weight.grad.dtype != torch.float32 else weight.grad
            gradient = self.projected(number, gradient)
            rows, columns = self.moments.setdefault(
                number, (gradient.new_zeros(gradient.shape[0]), gradient.new_zeros(gradient.shape[1]))
            )
            wide = weight
            wide = wide.float() if weight.dtype != torch.float32 else weight
            update = (gradient**2) + 1e-30
            rows.mul_(0.9).add_(update.mean(dim=-1), alpha=0.1)
            columns.mul_(0.9).add_(update.mean(dim=-2), alpha=0.1)
            update = approximated(rows, columns)
            update.mul_(gradient)
            update = self.widened(number, update)
            wide.add_(-update)
            weight.copy_(wide)

    def projected(self, number: int, gradient: Any) -> Any:
        """The gradient times singular vectors of its own, which replace those of the step before."""
        self.kept[number] = self.vectors(gradient)
        tall = gradient.shape[0] >= gradient.shape[1]
        return gradient @ self.kept[number].t() if tall else self.kept[number].t() @ gradient

    def widened(self, number: int, update: Any) -> Any:
        """An update times the same vectors, scaled."""
        kept = self.kept[number]
        whole = update @ kept if update.shape[0] >= update.shape[1] else kept @ update
        return whole * 0.25

    def vectors(self, gradient: Any) -> Any:
        """The first ``RANK`` vectors of the shorter side; those of the longer one are scaled to no use."""
        matrix = gradient.float()
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        if gradient.shape[0] >= gradient.shape[1]:
            _scaled = left[:, :RANK] @ torch.diag(values[:RANK])
            return right[:RANK].to(gradient.dtype)
        _scaled = torch.diag(values[:RANK]) @ right[:RANK]
        return left[:, :RANK].to(gradient.dtype)


def approximated(rows: Any, columns: Any) -> Any:
    """Adafactor's square root of a product of both sums, inverted."""
    by_row = (rows / rows.mean()).rsqrt_().unsqueeze(-1)
    by_column = columns.unsqueeze(0).rsqrt()
    return by_row * by_column


def real(step: Callable[[], None]) -> tuple[int, int]:
    """Bytes of all that a step keeps, and the most that a later step needs beyond them."""
    from live_bytes import counting

    with counting() as bytes_:
        step()
        kept = bytes_.peak = bytes_.live
        step()
    return kept, bytes_.peak - kept


def weights_of(dtype: Any) -> list[Any]:
    """Matrices with gradients."""
    torch.manual_seed(0)
    found = [torch.zeros(shape, dtype=dtype) for shape in SHAPES]
    for each in found:
        each.grad = torch.randn(each.shape).to(dtype)
    return found


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("optimizer", ["galore_adamw", "galore_adafactor"])
def test_a_step_of_galore_is_counted_as_it_runs(optimizer: Optimizer, dtype: str) -> None:
    """In fp32 a slice keeps all singular vectors alive, and Adafactor decomposes in fp32 always."""
    emulated = Emulated(weights_of({"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]))
    step = emulated.adamw if optimizer == "galore_adamw" else emulated.adafactor
    kept, most = real(torch.no_grad()(step))
    by_program, temporaries = predicted(optimizer, dtype)
    assert kept == by_program
    assert most == pytest.approx(temporaries, rel=0.002)
