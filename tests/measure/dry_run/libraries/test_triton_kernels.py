"""Which arguments a Triton kernel writes, read from its source."""

from __future__ import annotations

import ast
import textwrap
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.extras import needs

pytestmark = needs("torch")


def kernel_of(body: str, *names: str, **known: Any) -> Any:
    """A function of Triton; ``known``: others that it may call."""
    source = f"def kernel({', '.join(names)}):\n{textwrap.indent(body, '    ')}\n"
    return SimpleNamespace(
        parse=lambda: ast.parse(source), arg_names=list(names), fn=SimpleNamespace(__globals__=known)
    )


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("x = tl.load(a_ptr)\ntl.store(b_ptr + 1, x)", {"b_ptr"}),
        ("b_ptr += offset\nout = b_ptr\ntl.store(out, 1.0, mask=n > 0)", {"b_ptr", "offset"}),
        ("tl.atomic_add(a_ptr, 1)", {"a_ptr"}),
        ("block = tl.make_block_ptr(a_ptr)\nblock.store(b_ptr)", {"a_ptr"}),
        ("helper(a_ptr, n)", {"a_ptr", "n"}),
        ("tl.store(pointer=b_ptr, value=a_ptr)", {"b_ptr"}),
        ("at = tl.load(a_ptr + offset)\ntl.store(b_ptr + at, 1.0)", {"b_ptr"}),
        ("read(b_ptr, a_ptr)", {"a_ptr"}),
        ("read(b_ptr, to=offset)", {"offset"}),
    ],
)
def test_arguments_that_reach_a_store_are_written(body: str, written: set[str]) -> None:
    """Through assignments and into functions of the program; what is only loaded or only a value is not."""
    from measure.dry_run.libraries.triton_kernels import written_arguments

    read = kernel_of("tl.store(to, tl.load(given))", "given", "to")
    kernel = kernel_of(body, "a_ptr", "b_ptr", "offset", "n", read=read)
    assert written_arguments(kernel) == written


def test_nobody_has_to_link_the_library_of_the_driver() -> None:
    """Unsloth runs ``ldconfig`` where Triton does not find it."""
    from measure.dry_run.libraries.triton_kernels import install

    changes: dict[str, Any] = {}
    card: Any = SimpleNamespace(compute_capability=(8, 9), multiprocessors=128)
    install(SimpleNamespace(add=changes.__setitem__), None, None, card)  # type: ignore[arg-type]
    driver: Any = ModuleType("driver")
    changes["triton.backends.nvidia.driver"](driver)
    assert driver.libcuda_dirs() == []


class OnCard:
    """A tensor that says it is on a card."""

    is_cuda = True

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)


def test_autograd_still_adds_in_place_to_a_gradient_that_a_kernel_wrote() -> None:
    """Liger's loss scales its saved gradient of a tied head so; the table's is added to it."""
    import torch

    from measure.dry_run.libraries.triton_kernels import write_guess

    spoilt: list[int] = []
    native: Any = SimpleNamespace(MOST_FLOATS=0, MOST_INTEGERS=0, spoil=spoilt.append)

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any) -> Any:
            ctx.save_for_backward(torch.ones_like(x), torch.ones_like(weight))
            return x.sum()

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            of_x, of_weight = ctx.saved_tensors
            write_guess(native, OnCard(of_weight))  # type: ignore[arg-type]
            return of_x, of_weight

    weight = torch.zeros(100, 8, requires_grad=True)
    x = torch.nn.functional.embedding(torch.arange(10), weight) * 2
    Loss.apply(x, weight).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert spoilt == [weight.grad.data_ptr()]
