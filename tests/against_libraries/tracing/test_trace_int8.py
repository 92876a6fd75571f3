"""The stand-in for int8 layers against bitsandbytes' own CUDA path,
whose Python part runs here with its C library replaced.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.extras import import_or_skip

import_or_skip("bitsandbytes")
import_or_skip("peft")

import bitsandbytes
import torch
from bitsandbytes.autograd._functions import MatMul8bitLt, MatmulLtState
from scenarios import Setup
from tiny_traces import small_config, small_scenario
from torch import nn

from measure.trace.cuda.quantized import MatMul8bit, int8_stand_in
from measure.trace.traced_job import trace_records
from measure.trace.tracer import Recorder
from planner.domain.recipes.recipe import Numerics

ROWS, INPUTS, OUTPUTS = 64, 512, 768
INT8 = Numerics("bf16", "bf16-mixed", "int8")


# Functions rather than mocks: a mock would keep the tensors that it was called with.
def _default_stream(_device: object) -> int:
    return 0


def _any_device(_tensor: torch.Tensor) -> nullcontext[None]:
    return nullcontext()


@contextmanager
def cuda_kernels() -> Iterator[dict[str, Callable[..., Any]]]:
    """The functions that bitsandbytes registers for CUDA, by operator,
    with calls into its C library that do nothing.
    """
    found: dict[str, Callable[..., Any]] = {}

    def register(name: str, device: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def keep(function: Callable[..., Any]) -> Callable[..., Any]:
            assert device == "cuda"
            return found.setdefault(name, function)

        return keep

    library = mock.MagicMock()
    library.cigemmlt_32.return_value = 0
    module_name = "bitsandbytes.backends.cuda.ops"
    known = sys.modules.pop(module_name, None)
    with (
        mock.patch("bitsandbytes._ops.register_kernel", register),
        mock.patch("bitsandbytes.cextension.lib", library),
        mock.patch("torch._C._cuda_getCurrentRawStream", _default_stream, create=True),
    ):
        module = importlib.import_module(module_name)
        with (
            mock.patch.object(module, "_cuda_device_of", _any_device),
            mock.patch.object(module, "CUBLAS_Context", mock.MagicMock()),
        ):
            yield found
    del sys.modules[module_name]
    if known is not None:
        sys.modules[module_name] = known


class CudaRecorder(Recorder):
    """Runs bitsandbytes' operators by the functions it registers for CUDA, and records what these allocate.

    Autocast is on inside of them when it is on outside; a dispatch mode has to say so,
    because it runs below autocast.
    """

    def __init__(self, kernels: dict[str, Callable[..., Any]], *, autocast: bool) -> None:
        super().__init__()
        self.kernels, self.autocast = kernels, autocast

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        if not name.startswith("bitsandbytes::"):
            return super().__torch_dispatch__(func, types, args, kwargs)
        kernel = self.kernels.get(name) or _defaults()[name]
        with self, torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutocastCPU, not self.autocast):
            return kernel(*args, **(kwargs or {}))


def _defaults() -> dict[str, Callable[..., Any]]:
    """What bitsandbytes runs on every device where it has no kernel of its own:
    read from its file in the same way.
    """
    found: dict[str, Callable[..., Any]] = {}

    def register(name: str, _device: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return lambda function: found.setdefault(name, function)

    for name in ("bitsandbytes.backends.default.ops", "bitsandbytes._ops"):
        source = importlib.import_module(name)
        text = Path(str(source.__file__)).read_text(encoding="utf-8")
        if name.endswith("_ops"):
            start = text.index('@register_kernel("bitsandbytes::int8_vectorwise_dequant"')
            text = text[start : text.index("torch.library.define", start)]
        scope = {**vars(source), "register_kernel": register}
        if name.endswith("default.ops"):
            text = text.replace("from ..._ops import register_kernel", "").replace(
                "from ..utils", "from bitsandbytes.backends.utils"
            )
        exec(compile(text, str(source.__file__), "exec"), scope)
    return found


def _inputs(dtype: torch.dtype) -> torch.Tensor:
    """An input in which one column holds an outlier, as the stand-in assumes."""
    values = torch.full((2, ROWS // 2, INPUTS), 0.5, dtype=dtype)
    values[0, 0, 7] = 9.0
    return values.requires_grad_()


def _large(recorder: Recorder) -> list[tuple[bool, int]]:
    """Allocations and frees of tensors that have a row per token or per output,
    and more than one number in it.

    Frees that follow each other are sorted: in which order a function drops its variables is of no effect.
    """
    events = [
        (each.alloc, each.block.n_bytes)
        for each in recorder.trace.records
        if each.block.n_bytes > 8 * OUTPUTS
    ]
    ordered: list[tuple[bool, int]] = []
    for alloc, group in groupby(events, key=lambda each: each[0]):
        run = list(group)
        ordered += run if alloc else sorted(run)
    return ordered


def _run(
    recorder: Recorder, multiply: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, autocast: bool
) -> torch.dtype:
    inputs = _inputs(dtype)
    with recorder:
        recorder.enter_stage("forward")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = multiply(inputs)
        recorder.enter_stage("backward")
        gradient = torch.ones_like(out)
        out.backward(gradient)
        result = out.dtype
        del out, gradient
        recorder.close()
    return result


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_product_allocates_what_the_cuda_path_allocates(
    dtype: torch.dtype, autocast: bool, with_bias: bool
) -> None:
    """Forward and backward of one matrix: the same blocks, in the same order, freed at the same moments."""
    weight = torch.ones(OUTPUTS, INPUTS, dtype=torch.int8)
    scales = torch.ones(OUTPUTS)
    bias = torch.zeros(OUTPUTS, dtype=dtype) if with_bias else None
    state = MatmulLtState(CB=weight, SCB=scales)
    state.threshold, state.has_fp16_weights = 6.0, False
    with cuda_kernels() as kernels:
        theirs = CudaRecorder(kernels, autocast=autocast)
        wanted = _run(
            theirs, lambda each: MatMul8bitLt.apply(each, weight, None, bias, state), dtype, autocast
        )
    layer: Any = nn.Module()
    layer.weight, layer.SCB, layer.out_features = weight, scales, OUTPUTS
    ours = Recorder()
    assert _run(ours, lambda each: MatMul8bit.apply(each, bias, layer), dtype, autocast) == wanted
    assert len(_large(theirs)) > 10
    assert _large(ours) == _large(theirs)


@pytest.mark.parametrize("shape", [(11, 320), (688, 256)])
def test_stored_bytes_are_those_of_the_real_layer(shape: tuple[int, int]) -> None:
    """One byte per element and one fp32 scale per row."""
    rows, columns = shape
    real = bitsandbytes.nn.Int8Params(
        torch.randn(rows, columns), requires_grad=False, has_fp16_weights=False
    ).to("cpu")
    with torch.device("meta"):
        ours: nn.Module = bitsandbytes.nn.Linear8bitLt(
            columns, rows, bias=False, has_fp16_weights=False, threshold=6.0
        )
    int8_stand_in(ours, torch.bfloat16)
    assert [each.nbytes for each in (*ours.parameters(), *ours.buffers())] == [
        real.CB.nbytes,
        real.SCB.nbytes,
    ]
    assert isinstance(ours, bitsandbytes.nn.Linear8bitLt), "PEFT would not take it for an int8 layer"


@pytest.mark.parametrize(("reentrant", "kept"), [(True, False), (False, True)])
def test_inputs_stay_in_spite_of_non_reentrant_checkpointing(reentrant: bool, kept: bool) -> None:
    """The context holds the input of each matrix,
    which only the reentrant form frees with the first forward's graph.
    """
    case = small_scenario("llama", Setup(rank=4, numerics=INT8, checkpointing=True, reentrant=reentrant))
    records = trace_records(case, small_config("llama", case))
    end = max(
        i for i, each in enumerate(records) if each.place.stage == "forward" and each.place.micro_step == 0
    )
    alive = {each.block.id: each.block for each in records[:end] if each.alloc}
    for each in records[:end]:
        if not each.alloc:
            alive.pop(each.block.id, None)
    # The down projections' inputs, 688 wide, of 64 tokens: products in bf16,
    # as the sum with the outliers' part is.
    inputs = [block for block in alive.values() if block.n_bytes == 64 * 688 * 2]
    assert bool(inputs) is kept
