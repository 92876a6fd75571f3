"""The gradient of softplus on fake tensors, laid out as kernels lay it out."""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch._decomp import meta_table
from torch._subclasses.fake_tensor import FakeTensorMode

_OPERATOR = torch.ops.aten.softplus_backward.default


def softplus_gradient(gradient: torch.Tensor, given: torch.Tensor, *_: float) -> torch.Tensor:
    """Shape and layout of ``aten::softplus_backward``: what an elementwise kernel makes of both inputs.

    torch 2.13 _decomp/decompositions.py softplus_backward ends in ``where``, whose condition is laid out as
    ``given``; the kernel (ATen/native/cuda/ActivationSoftplusKernel.cu) looks at ``gradient`` first.
    """
    return torch.mul(gradient, given)


@contextmanager
def softplus_laid_out() -> Iterator[None]:
    """Inside, fake tensors have the gradient's layout, so that a view of it is a view.

    Fake tensors prefer a decomposition to a shape function that is not in torch's table, and remember what
    either said (torch 2.13 _subclasses/fake_tensor.py FakeTensorMode._dispatch_impl).
    """
    FakeTensorMode.cache_clear()
    with (
        torch.library._scoped_library("aten", "IMPL") as library,
        mock.patch.dict(meta_table, {_OPERATOR: softplus_gradient}),
    ):
        library.impl("softplus_backward", softplus_gradient, "Meta", allow_override=True)
        yield
    FakeTensorMode.cache_clear()
