"""Where a CPU trace would run another program than CUDA, CUDA's is put in its place:
each difference is one named shim.
"""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal
from unittest import mock

import torch

from measure.recipe.optimizers import MIN_PAGED_ELEMENTS
from measure.trace.cuda.autocast import cuda_autocast_lists
from measure.trace.cuda.flash import flash_attention
from measure.trace.cuda.quantized import dora_reads_stand_ins
from measure.trace.cuda.recurrent import recurrent_kernels, recurrent_mask
from measure.trace.cuda.sdpa import attention_on
from measure.trace.cuda.shapes import layer_norm_on_cuda, shapes_of_kernels
from measure.trace.cuda.softmax import softmax_on_cuda
from measure.trace.cuda.stored_fp8 import kernels_of_fp8
from measure.trace.tracer import Recorder
from planner.domain.hardware import USUAL_MULTIPROCESSORS


@dataclass(frozen=True, slots=True)
class Situation:
    """What shims need to know.

    ``padded``: whether a batch holds padding, which the program asks the mask for.  ``real_tokens``: its
    tokens without padding.  ``multiprocessors``: those of the card, by which some kernels divide their sums.
    ``has_flash``: the card runs torch's FlashAttention.  ``fp8_by``: what multiplies by matrices that are
    stored in fp8.  ``recurrent_kernels``: whether packages compute layers without attention.
    """

    padded: bool
    recorder: Recorder
    real_tokens: int = 0
    multiprocessors: int = USUAL_MULTIPROCESSORS
    has_flash: bool = True
    fp8_by: Literal["nothing", "triton", "deepgemm"] = "nothing"
    recurrent_kernels: bool = True


@dataclass(frozen=True, slots=True)
class Shim:
    """One difference: why it matters, where it is made, and how it is undone.

    ``kind`` is ``fake`` where fake tensors differ from real ones, ``cuda`` where a CPU differs from CUDA.
    """

    name: str
    kind: Literal["fake", "cuda"]
    reason: str
    place: str
    apply: Callable[[Situation], AbstractContextManager[Any]]


def _no(_tensor: object) -> bool:
    return False


def _first_step(_step: object) -> float:
    return 1.0


@contextmanager
def _not_tracing(_: Situation) -> Iterator[None]:
    # A function rather than a mock: a mock would keep the tensors that it was asked about.
    with mock.patch("transformers.utils.import_utils.is_fake_tensor", _no):
        yield


@contextmanager
def _mask_question(situation: Situation) -> Iterator[None]:
    masking = importlib.import_module("transformers.masking_utils")
    ask = masking.fast_all

    def answer(mask: torch.Tensor) -> bool:
        ask(mask)  # what the question itself allocates is recorded
        return not situation.padded

    with mock.patch.object(masking, "fast_all", answer):
        yield


@contextmanager
def _packed_question(_: Situation) -> Iterator[None]:
    masking = importlib.import_module("transformers.masking_utils")
    find = masking.find_packed_sequence_indices

    def found(position_ids: torch.Tensor) -> Any:
        with mock.patch.object(masking, "is_tracing", return_value=True):
            return find(position_ids)

    with mock.patch.object(masking, "find_packed_sequence_indices", found):
        yield


@contextmanager
def _attention_kernel(situation: Situation) -> Iterator[None]:
    attention = attention_on(has_flash=situation.has_flash)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("scaled_dot_product_attention", attention, "AutogradCPU")
        yield


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:  # the signature is torch's
    if not train or p == 0:
        return tensor
    out: torch.Tensor = torch.ops.aten.native_dropout(tensor, p, train)[0]
    return out


def _flash_attention(situation: Situation) -> AbstractContextManager[None]:
    return flash_attention(padded=situation.padded, real_tokens=situation.real_tokens)


@contextmanager
def _fused_dropout(_: Situation) -> Iterator[None]:
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("dropout", _dropout, "AutogradCPU")
        yield


@contextmanager
def _autocast_state(_: Situation) -> Iterator[None]:
    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype

    def is_enabled(_device: str = "cuda") -> bool:
        return enabled("cpu")

    def get_dtype(_device: str = "cuda") -> torch.dtype:
        return dtype("cpu")

    with (
        mock.patch.object(torch, "is_autocast_enabled", is_enabled),
        mock.patch.object(torch, "get_autocast_dtype", get_dtype),
    ):
        yield


@contextmanager
def _dora_weights(_: Situation) -> Iterator[None]:
    if find_spec("peft") is None:
        yield
        return
    with dora_reads_stand_ins():
        yield


@contextmanager
def _step_values(_: Situation) -> Iterator[None]:
    with mock.patch.object(importlib.import_module("torch.optim.adam"), "_get_value", _first_step):
        yield


@contextmanager
def _host_steps(situation: Situation) -> Iterator[None]:
    original = torch.tensor

    def tensor(*args: Any, **kwargs: Any) -> torch.Tensor:
        with situation.recorder.on_host():
            return original(*args, **kwargs)

    with mock.patch.object(torch, "tensor", tensor):
        yield


@contextmanager
def _paged_states(situation: Situation) -> Iterator[None]:
    if find_spec("bitsandbytes") is None:
        yield
        return
    base = importlib.import_module("bitsandbytes.optim.optimizer").Optimizer8bit

    def buffer(optimizer: Any, tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        managed = optimizer.is_paged and tensor.numel() >= MIN_PAGED_ELEMENTS
        if managed:
            n_bytes = tensor.numel() * dtype.itemsize
            situation.recorder.keep_on_host(n_bytes, "get_paged", tensor)
        with situation.recorder.on_host() if managed else nullcontext():
            return torch.zeros_like(tensor, dtype=dtype)

    with mock.patch.object(base, "get_state_buffer", buffer):
        yield


def _step_without_question(
    _scaler: object, optimizer: Any, _state: object, *args: Any, **options: Any
) -> Any:
    return optimizer.step(*args, **options)


@contextmanager
def _no_overflow(_: Situation) -> Iterator[None]:
    with mock.patch("torch.amp.GradScaler._maybe_opt_step", _step_without_question):
        yield


def _any_code_book(*_args: object, **_options: object) -> torch.Tensor:
    return torch.zeros(256)


@contextmanager
def _code_books(_: Situation) -> Iterator[None]:
    if find_spec("bitsandbytes") is None:
        yield
        return
    with mock.patch("bitsandbytes.functional.create_dynamic_map", _any_code_book):
        yield


SHIMS: tuple[Shim, ...] = (
    Shim(
        "not_tracing",
        "fake",
        "Transformers takes fake tensors for an export: it builds full masks, which real tensors skip",
        "transformers/utils/import_utils.py is_tracing",
        _not_tracing,
    ),
    Shim(
        "mask_question",
        "fake",
        "whether the mask can be skipped depends on its values, which fake tensors do not "
        "have: the batch knows",
        "transformers/masking_utils.py fast_all",
        _mask_question,
    ),
    Shim(
        "packed_question",
        "fake",
        "whether positions begin anew depends on their values, which fake tensors do not have: they are "
        "given where they do",
        "transformers/masking_utils.py find_packed_sequence_indices",
        _packed_question,
    ),
    Shim(
        "recurrent_mask",
        "fake",
        "whether a layer without attention masks its input depends on values, which fake tensors do not "
        "have: the batch knows",
        "transformers/masking_utils.py create_recurrent_attention_mask",
        lambda situation: recurrent_mask(padded=situation.padded),
    ),
    Shim(
        "shapes",
        "fake",
        "shape functions differ from kernels: of grouped products they take bf16 only, and the gradient of "
        "softplus they lay out as its input, not as the gradient that comes in",
        "torch/_meta_registrations.py _meta_grouped_mm_common; torch/_decomp/decompositions.py "
        "softplus_backward",
        lambda _: shapes_of_kernels(),
    ),
    Shim(
        "attention_kernel",
        "cuda",
        "the CPU has its own flash kernel; CUDA chooses by dtype, mask and head width, and expands no "
        "grouped heads",
        "ATen/native/transformers/cuda/sdp_utils.cpp",
        _attention_kernel,
    ),
    Shim(
        "flash_attention",
        "cuda",
        "the package of FlashAttention 2 needs CUDA; torch has the same kernel, and the batch knows what "
        "the mask is asked for",
        "transformers/modeling_flash_attention_utils.py _lazy_imports",
        _flash_attention,
    ),
    Shim(
        "recurrent_kernels",
        "cuda",
        "the packages of layers without attention need CUDA, and without them Transformers runs "
        "another program",
        "transformers/integrations/hub_kernels.py use_kernel_func_from_hub_with_fallback",
        lambda situation: (
            recurrent_kernels(situation.multiprocessors) if situation.recurrent_kernels else nullcontext()
        ),
    ),
    Shim(
        "fused_dropout",
        "cuda",
        "CUDA keeps a mask of one byte per element, the CPU one in the dtype of the input",
        "ATen/native/Dropout.cpp is_fused_kernel_acceptable",
        _fused_dropout,
    ),
    Shim(
        "half_softmax",
        "cuda",
        "CUDA's softmax into fp32 reads fp16 as it is and returns an fp16 gradient, where the CPU copies "
        "to fp32 first",
        "ATen/native/SoftMax.cpp softmax, log_softmax (half_to_float)",
        lambda _: softmax_on_cuda(),
    ),
    Shim(
        "norm_statistics",
        "cuda",
        "CUDA keeps mean and deviation of 16-bit rows in fp32, the CPU in the dtype of the rows",
        "ATen/native/cuda/layer_norm_kernel.cu layer_norm_cuda",
        lambda _: layer_norm_on_cuda(),
    ),
    Shim(
        "autocast_lists",
        "cuda",
        "CUDA runs norms, powers, exponentials and softmax in fp32 under autocast, the CPU only some of them",
        "ATen/autocast_mode.h AT_FORALL_*",
        lambda _: cuda_autocast_lists(),
    ),
    Shim(
        "autocast_state",
        "cuda",
        "code asks whether autocast is on for CUDA, which a CPU trace would deny",
        "torch.is_autocast_enabled, peft/tuners/lora/bnb.py",
        _autocast_state,
    ),
    Shim(
        "dora_weights",
        "cuda",
        "DoRA dequantises the matrix that it wraps by a kernel that fake tensors cannot run",
        "peft/tuners/lora/dora.py dequantize_module_weight",
        _dora_weights,
    ),
    Shim(
        "step_values",
        "fake",
        "optimizers read the value of a step count, which fake tensors do not have; no size depends on it",
        "torch/optim/adam.py _get_value",
        _step_values,
    ),
    Shim(
        "fp8_kernels",
        "cuda",
        "products with matrices that are stored in fp8 run in kernels of the Hub, which cast their input",
        "transformers/integrations/finegrained_fp8.py fp8_linear",
        lambda situation: (
            nullcontext()
            if situation.fp8_by == "nothing"
            else kernels_of_fp8(by_deepgemm=situation.fp8_by == "deepgemm")
        ),
    ),
    Shim(
        "host_steps",
        "cuda",
        "step counts that an optimizer makes without naming a device are in host memory, as is all that "
        "torch.tensor makes",
        "torch/optim/adam.py _init_group",
        _host_steps,
    ),
    Shim(
        "no_overflow",
        "fake",
        "whether a gradient overflowed in fp16 is read as a value, which fake tensors do not "
        "have: it did not",
        "torch/amp/grad_scaler.py _maybe_opt_step",
        _no_overflow,
    ),
    Shim(
        "code_books",
        "fake",
        "the 256 values of a code book are sorted, for which fake tensors have no values; no size "
        "depends on them",
        "bitsandbytes/functional.py create_dynamic_map",
        _code_books,
    ),
    Shim(
        "paged_states",
        "cuda",
        "paged optimizer states are managed memory, which torch's allocator does not know; a CPU has none "
        "and allocates them",
        "bitsandbytes/optim/optimizer.py get_state_buffer",
        _paged_states,
    ),
)


@contextmanager
def shims(situation: Situation, *, cuda: bool = True) -> Iterator[None]:
    """All shims at once; without ``cuda`` only those that make fake tensors behave as real CPU tensors do."""
    with ExitStack() as stack:
        for shim in SHIMS:
            if cuda or shim.kind == "fake":
                stack.enter_context(shim.apply(situation))
        yield
