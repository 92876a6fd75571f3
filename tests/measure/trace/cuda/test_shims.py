"""Each place where a CPU trace would run another program than CUDA,
with and without the shim that mends it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn import functional

from measure.trace.cuda.autocast import FP32_OPS, FP32_RESULT_OPS, LOW_PRECISION_OPS, WIDEST_OPS
from measure.trace.cuda.sdpa import KERNEL_WORKSPACES
from measure.trace.cuda.shapes import shapes_of_kernels
from measure.trace.cuda.shims import SHIMS, Situation
from measure.trace.tracer import Recorder
from planner.words import words

BY_NAME = {shim.name: shim for shim in SHIMS}
TESTED = set(
    words(
        """
    not_tracing mask_question packed_question attention_kernel fused_dropout half_softmax autocast_lists
    autocast_state dora_weights step_values fp8_kernels host_steps code_books paged_states no_overflow
    flash_attention shapes norm_statistics recurrent_mask recurrent_kernels
    """
    )
)


@contextmanager
def shimmed(name: str, *, padded: bool = False, recorder: Recorder | None = None) -> Iterator[None]:
    """One shim, on fake tensors."""
    with FakeTensorMode(), BY_NAME[name].apply(Situation(padded, recorder or Recorder())):
        yield


def test_every_shim_has_a_test_a_reason_and_a_place() -> None:
    """A shim that is added needs a test here, and says why it exists and where the difference is made."""
    assert set(BY_NAME) == TESTED
    assert all(len(shim.reason) > 20 and len(shim.place) > 10 for shim in SHIMS)


def test_transformers_does_not_take_the_run_for_an_export() -> None:
    """Transformers' ``is_tracing`` is true of a fake tensor without the shim, false with it."""
    from transformers.utils import import_utils

    with FakeTensorMode():
        assert import_utils.is_tracing(torch.ones(1))
    with shimmed("not_tracing"):
        assert not import_utils.is_tracing(torch.ones(1))


def test_layers_without_attention_run_the_kernels_of_a_gpu_installation() -> None:
    """Modelling code of Qwen3.5 calls the stand-in of flash-linear-attention inside,
    and its own loop outside.
    """
    from transformers.models.qwen3_5 import modeling_qwen3_5

    from measure.trace.cuda.recurrent import delta_rule

    own = modeling_qwen3_5.torch_chunk_gated_delta_rule
    with shimmed("recurrent_kernels"):
        assert modeling_qwen3_5.torch_chunk_gated_delta_rule is delta_rule
    assert modeling_qwen3_5.torch_chunk_gated_delta_rule is own is not delta_rule


def test_layers_of_mamba_run_the_kernels_of_mamba_ssm() -> None:
    """One call for convolution, scan, norm and output projection; outside,
    Transformers has no such function without a GPU.
    """
    from transformers.models.bamba import modeling_bamba
    from transformers.models.jamba import modeling_jamba

    from measure.trace.cuda.selective_scan import selective_scan

    own = modeling_bamba.mamba2_split_conv1d_scan_combined
    with shimmed("recurrent_kernels"):
        assert modeling_bamba.mamba2_split_conv1d_scan_combined is not own
        assert modeling_jamba.mamba_selective_scan is selective_scan
    assert modeling_bamba.mamba2_split_conv1d_scan_combined is own


@pytest.mark.parametrize("padded", [False, True])
def test_a_layer_without_attention_masks_padded_batches_alone(padded: bool) -> None:
    """The question is not asked of values, which fake tensors do not have."""
    from transformers.models.qwen3_5 import modeling_qwen3_5

    with shimmed("recurrent_mask", padded=padded):
        inputs, mask = torch.ones(2, 3, 8), torch.ones(2, 3, dtype=torch.int64)
        found = modeling_qwen3_5.create_recurrent_attention_mask(inputs_embeds=inputs, attention_mask=mask)
    assert (found is not None) is padded


@pytest.mark.parametrize("padded", [False, True])
def test_whether_a_mask_is_needed_is_known_from_the_batch(padded: bool) -> None:
    """Without the shim the question cannot be answered on fake tensors; with it,
    only a padded batch needs a mask.
    """
    from transformers import masking_utils

    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        bool(masking_utils.fast_all(torch.ones(2, 3, dtype=torch.bool)))
    with shimmed("mask_question", padded=padded):
        assert masking_utils.fast_all(torch.ones(2, 3, dtype=torch.bool)) is not padded


def test_positions_that_begin_anew_are_taken_to_do_so() -> None:
    """Without the shim Transformers asks for values; with it each token has the number of its sample."""
    from transformers import masking_utils

    def numbers() -> Tensor | None:
        found: Tensor | None = masking_utils.find_packed_sequence_indices(torch.arange(6)[None] % 3)
        return found

    with shimmed("not_tracing"), pytest.raises(DataDependentOutputException):
        numbers()
    with shimmed("packed_question"):
        found = numbers()
    assert found is not None
    assert found.shape == (1, 6)


def _saved_by(make: object, *inputs: Tensor) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    """Dtype and shape of what autograd keeps for backward."""
    kept: list[tuple[torch.dtype, tuple[int, ...]]] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append((tensor.dtype, tuple(tensor.shape)))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        make(*inputs)  # type: ignore[operator]
    return kept


def test_flash_attention_keeps_five_tensors_and_no_expanded_heads() -> None:
    """CUDA's flash kernel keeps query, key, value, output and one fp32 number per row;
    grouped heads stay grouped.
    """
    query_shape, key_shape = (2, 8, 128, 64), (2, 2, 128, 64)
    with shimmed("attention_kernel"):
        query = torch.empty(query_shape, dtype=torch.bfloat16, requires_grad=True)
        key, value = (torch.empty(key_shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
        attend = functional.scaled_dot_product_attention
        kept = _saved_by(lambda q, k, v: attend(q, k, v, is_causal=True, enable_gqa=True), query, key, value)
    large = [each for each in kept if len(each[1]) > 1]
    half = torch.bfloat16
    assert sorted(large, key=str) == sorted(
        [
            (half, query_shape),
            (half, key_shape),
            (half, key_shape),
            (half, query_shape),
            (torch.float32, query_shape[:3]),
        ],
        key=str,
    )


def test_a_mask_takes_the_memory_efficient_kernel() -> None:
    """Flash takes no mask: with one, CUDA runs the memory-efficient kernel."""
    with shimmed("attention_kernel"):
        query = torch.empty((1, 4, 32, 64), dtype=torch.bfloat16, requires_grad=True)
        mask = torch.ones((1, 1, 32, 32), dtype=torch.bool)
        out = functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    assert type(out.grad_fn).__name__ == "ScaledDotProductEfficientAttentionBackward0"


def test_one_key_head_for_all_takes_the_unfused_form() -> None:
    """A single key head that SDPA has to broadcast suits no fused kernel: products and an fp32 softmax,
    as on every device.
    """
    with shimmed("attention_kernel"):
        query = torch.empty((1, 4, 32, 64), dtype=torch.bfloat16, requires_grad=True)
        key = torch.empty((1, 1, 32, 64), dtype=torch.bfloat16, requires_grad=True)
        kept = _saved_by(
            lambda q, k: functional.scaled_dot_product_attention(q, k, k, is_causal=True), query, key
        )
    assert sum(dtype == torch.float32 and math.prod(shape) == 4 * 32 * 32 for dtype, shape in kept) >= 1


@pytest.mark.parametrize("masked", [False, True])
def test_the_unfused_form_adds_its_mask_in_place_and_marks_scores(*, masked: bool) -> None:
    """Scores, their softmax, and marks of a byte: torch adds to a copy where tensors are fake."""
    recorder = Recorder(KERNEL_WORKSPACES)
    with shimmed("attention_kernel"), recorder:
        query = torch.empty((2, 4, 48, 64), requires_grad=True)
        key = torch.empty((2, 2, 48, 64), requires_grad=True)
        mask = torch.ones((1, 1, 48, 48), dtype=torch.bool) if masked else None
        recorder.enter_stage("forward")
        functional.scaled_dot_product_attention(
            query, key, key, attn_mask=mask, is_causal=not masked, enable_gqa=True
        )
    scores = 2 * 4 * 48 * 48
    taken = [each.block.n_bytes for each in recorder.trace.records if each.alloc]
    assert [size for size in taken if size in (scores, 4 * scores)] == [4 * scores, 4 * scores, scores]


@pytest.mark.parametrize(("width", "tile"), [(64, (64, 64)), (128, (128, 128)), (80, (128, 96))])
def test_memory_efficient_backward_accumulates_in_fp32(width: int, tile: tuple[int, int]) -> None:
    """Delta, and whole tiles of the query gradient in fp32 with a lock each."""
    recorder = Recorder(KERNEL_WORKSPACES)
    batch, heads, tokens = 2, 4, 100
    with shimmed("attention_kernel"), recorder:
        query = torch.empty((batch, heads, tokens, width), dtype=torch.bfloat16, requires_grad=True)
        mask = torch.ones((1, 1, tokens, tokens), dtype=torch.bool)
        recorder.enter_stage("backward")
        functional.scaled_dot_product_attention(query, query, query, attn_mask=mask).sum().backward()
    taken = [
        each.block.n_bytes for each in recorder.trace.records if each.alloc and "workspace" in each.block.op
    ]
    rows, columns = tile
    tiles = math.ceil(tokens / rows) * math.ceil(width / columns)
    assert taken == [batch * heads * tokens * 4, batch * heads * tiles * (rows * columns * 4 + 16)]


def test_flash_backward_takes_workspace_while_it_runs() -> None:
    """An fp32 accumulator of the query gradient and one number per row, given back when the kernel ends."""
    recorder = Recorder(KERNEL_WORKSPACES)
    with shimmed("attention_kernel"):
        query = torch.empty((2, 4, 128, 64), dtype=torch.bfloat16, requires_grad=True)
        with recorder:
            recorder.enter_stage("backward")
            functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
    taken = [record for record in recorder.trace.records if "workspace" in record.block.op]
    rows = 2 * 4 * 128
    assert [record.block.n_bytes for record in taken if record.alloc] == [rows * 4, rows * 64 * 4]
    assert [record.block.n_bytes for record in taken if not record.alloc] == [rows * 64 * 4, rows * 4]


@pytest.mark.parametrize(("dim", "n_largest"), [(0, 64), (-1, 2)])
def test_logsumexp_takes_the_largest_and_the_differences(dim: int, n_largest: int) -> None:
    """Before its output; of two tensors that are stacked, as of TRL's GKD, the largest are as many as it."""
    recorder = Recorder(KERNEL_WORKSPACES)
    with recorder:
        recorder.enter_stage("forward")
        torch.logsumexp(torch.empty(2, 64), dim)
    taken = [each.block.n_bytes for each in recorder.trace.records if each.alloc]
    assert taken == [2 * 64 * 4, n_largest * 4, 2 * 64 * 4, n_largest * 4]


def test_dropout_keeps_one_byte_per_element() -> None:
    """CUDA keeps a boolean mask; the CPU keeps one in the dtype of the input."""

    def drop(tensor: Tensor) -> Tensor:
        return functional.dropout(tensor, 0.1)

    with FakeTensorMode():
        plain = _saved_by(drop, torch.empty(64, 64, dtype=torch.bfloat16, requires_grad=True))
    with shimmed("fused_dropout"):
        fused = _saved_by(drop, torch.empty(64, 64, dtype=torch.bfloat16, requires_grad=True))
    assert [dtype for dtype, _ in plain] == [torch.bfloat16]
    assert [dtype for dtype, _ in fused] == [torch.bool]


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_softmax_into_fp32_copies_bf16_but_not_fp16(name: str, half: torch.dtype) -> None:
    """CUDA's kernel reads fp16 scores and returns their gradient in fp16; the CPU, and CUDA of bf16,
    go through fp32 copies.
    """
    copied: dict[bool, list[int]] = {}
    for shim in (False, True):
        recorder = Recorder()
        with shimmed("half_softmax") if shim else FakeTensorMode():
            scores = torch.empty(4, 64, dtype=half, requires_grad=True)
            with recorder:
                out = getattr(functional, name)(scores, dim=-1, dtype=torch.float32)
                recorder.enter_stage("backward")
                out.backward(torch.ones_like(out))
        assert (out.dtype, scores.grad.dtype) == (torch.float32, half)  # type: ignore[union-attr]
        copied[shim] = [
            each.block.n_bytes
            for each in recorder.trace.records
            if each.alloc and "_to_copy" in each.block.op
        ]
    assert copied[False] == [4 * 64 * 4, 4 * 64 * 2]
    assert copied[True] == ([] if half == torch.float16 else copied[False])


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_reads_a_copy_of_what_has_gaps(name: str) -> None:
    """A copy behind the output, given back before the next operator; none of one row, which has no gaps."""
    recorder = Recorder()
    with FakeTensorMode(), recorder:
        for rows in (2, 1):
            getattr(torch.empty(rows, 8, 64)[:, :-1], name)(-1)
    taken = [
        (each.alloc, each.block.n_bytes, "workspace" in each.block.op) for each in recorder.trace.records
    ]
    cut = 2 * 7 * 64 * 4
    at = taken.index((True, cut, True))
    assert taken[at - 1 : at + 2] == [(True, cut, False), (True, cut, True), (False, cut, True)]
    assert sum(is_workspace for _, _, is_workspace in taken) == 2


def test_autocast_casts_what_cuda_casts() -> None:
    """Powers, exponentials, norms and softmax run in fp32, products in 16-bit;
    afterwards the CPU's own lists are back.
    """

    def dtypes() -> list[torch.dtype]:
        half = torch.ones(4, 8, dtype=torch.bfloat16)
        weight = torch.ones(8, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results = (
                half.pow(2),
                torch.rsqrt(half),
                half.softmax(-1),
                half.sum(),
                functional.layer_norm(half, (8,)),
            )
            return [
                each.dtype
                for each in (*results, functional.linear(half, weight), half @ weight, half.mean(-1))
            ]

    before = dtypes()
    with shimmed("autocast_lists"):
        inside = dtypes()
    assert inside == [torch.float32] * 5 + [torch.bfloat16] * 3
    assert before == dtypes() == [torch.bfloat16] * 8


def test_the_lists_are_those_of_the_header() -> None:
    """Every operator that the installed torch lists for CUDA is covered,
    or is one that no model here calls.
    """
    import re

    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    text = header.read_text(encoding="utf-8").replace("\\\n", " ")
    listed: set[str] = set()
    for name in ("LOWER_PRECISION_FP", "FP32", "FP32_SET_OPT_DTYPE", "PROMOTE"):
        body = re.search(rf"#define AT_FORALL_{name}\(_\)(.*)", text)
        assert body is not None, name
        listed |= {".".join(match.split(", ")) for match in re.findall(r"_\(([^)]*)\)", body[1])}
    covered = set(FP32_OPS) | set(FP32_RESULT_OPS) | set(WIDEST_OPS) | LOW_PRECISION_OPS
    uncalled = {
        name
        for name in listed - covered
        if re.search(r"rnn|lstm|gru|upsample|convolution|Dimname|dimname", name)
    }
    assert sorted(listed - covered - uncalled) == list(
        words(
            """
        _scaled_dot_product_flash_attention addmv addr chain_matmul einsum linalg_multi_dot mv
        """
        )
    )


def test_code_that_asks_for_the_state_of_autocast_is_told() -> None:
    """``torch.is_autocast_enabled()`` asks about CUDA;
    PEFT's quantised layers decide by it whether to cast.
    """
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch.is_autocast_enabled()
        with shimmed("autocast_state"):
            assert torch.is_autocast_enabled()
            assert torch.get_autocast_dtype("cuda") == torch.bfloat16


def test_optimizers_step_on_fake_tensors_and_keep_counts_on_the_host() -> None:
    """foreach AdamW reads its step count, which is host memory on CUDA: it is given a value,
    and not recorded.
    """
    recorder = Recorder()
    with shimmed("step_values"), BY_NAME["host_steps"].apply(Situation(False, recorder)):
        weight = torch.nn.Parameter(torch.empty(16, 16))
        optimizer = torch.optim.AdamW([weight], foreach=True)
        with recorder:
            recorder.enter_stage("optimizer_step")
            weight.grad = torch.empty_like(weight)
            optimizer.step()
    states = [
        record.block.n_bytes
        for record in recorder.trace.records
        if record.alloc and "zeros_like" in record.block.op
    ]
    assert states == [16 * 16 * 4] * 2
    assert not [record for record in recorder.trace.records if record.alloc and record.block.n_bytes == 4]


@pytest.mark.parametrize("fp8_by", ["triton", "deepgemm"])
def test_a_matrix_in_fp8_casts_its_input_and_returns_what_it_is_given(
    fp8_by: Literal["triton", "deepgemm"],
) -> None:
    """128 features in and 256 out of 4 rows: the cast, its scales, the product; DeepGEMM's cast is a copy,
    the absolute values in both dtypes, and the product with the scales.
    """
    from transformers.integrations.finegrained_fp8 import FP8Linear

    recorder = Recorder()
    situation = Situation(False, recorder, fp8_by=fp8_by)
    with FakeTensorMode(), BY_NAME["fp8_kernels"].apply(situation):
        layer = FP8Linear(128, 256, block_size=(128, 128))
        with recorder:
            recorder.enter_stage("forward")
            rows = torch.empty(4, 128, dtype=torch.bfloat16)
            out = layer(rows)
    assert (out.shape, out.dtype) == ((4, 256), torch.bfloat16)
    made = [record.block.n_bytes for record in recorder.trace.records if record.alloc]
    scales, narrow, product = 4 * 4, 4 * 128, 4 * 256 * 2
    by_operators = [2 * narrow, 2 * narrow, 4 * narrow, *[scales] * 5, 4 * narrow, narrow, product]
    assert made[1:] == (by_operators if fp8_by == "deepgemm" else [narrow, scales, product])


def test_dora_reads_the_weight_of_a_stand_in() -> None:
    """A packed matrix has no state of bitsandbytes to be dequantised by;
    with the shim it has its old dtype.
    """
    from peft.tuners.lora import dora

    class Packed(torch.nn.Linear):
        expanded_dtype, nested = torch.bfloat16, False

    with shimmed("dora_weights"):
        assert dora.dequantize_module_weight(Packed(8, 4)).dtype == torch.bfloat16
        assert dora.dequantize_module_weight(torch.nn.Linear(8, 4)).dtype == torch.float32
    with FakeTensorMode():
        assert dora.dequantize_module_weight(Packed(8, 4)).dtype == torch.float32


def test_scaled_gradients_are_taken_not_to_overflow() -> None:
    """Under fp16 the scaler asks whether a gradient overflowed, which needs a value;
    with the shim the update is done.
    """
    stepped: list[bool] = []
    for context in (FakeTensorMode(), shimmed("no_overflow")):
        with context:
            weight = torch.nn.Parameter(torch.ones(4))
            optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu")
            scaler.scale(weight.sum()).backward()
            try:
                scaler.step(optimizer)
                stepped.append(True)
            except DataDependentOutputException:
                stepped.append(False)
    assert stepped == [False, True]


@pytest.mark.parametrize("real", [64, 63])
def test_flash_attention_gets_no_mask_where_all_tokens_are_real(real: int) -> None:
    """A batch of one sample is as long as that sample."""
    from transformers import masking_utils

    with FakeTensorMode(), BY_NAME["flash_attention"].apply(Situation(True, Recorder(), real)):
        ask = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"]
        mask = ask(attention_mask=torch.ones((1, 64), dtype=torch.bool), kv_length=64)
    assert (mask is None) == (real == 64)


@pytest.mark.parametrize("padded", [True, False])
def test_flash_attention_keeps_real_tokens_only(padded: bool) -> None:
    """Query, key, value, output and one fp32 number per row and head;
    of a padded batch only what is no padding.
    """
    from transformers import LlamaConfig
    from transformers.integrations.flash_attention import flash_attention_forward

    batch, tokens, real, heads, grouped, width = 2, 64, 100, 4, 2, 32
    recorder = Recorder(KERNEL_WORKSPACES)
    situation = Situation(padded, recorder, real)
    module = torch.nn.Linear(1, 1)
    module.config, module.is_causal = LlamaConfig(attn_implementation="eager"), True  # type: ignore[assignment]
    module.config._attn_implementation_internal = "flash_attention_2"  # type: ignore[union-attr]
    with FakeTensorMode(), BY_NAME["flash_attention"].apply(situation), recorder:
        query = torch.empty((batch, heads, tokens, width), dtype=torch.bfloat16, requires_grad=True)
        key, value = (
            torch.empty((batch, grouped, tokens, width), dtype=torch.bfloat16, requires_grad=True)
            for _ in range(2)
        )
        mask = torch.ones((batch, tokens), dtype=torch.bool) if padded else None
        out: list[Tensor] = []

        def attend(*inputs: Tensor) -> None:
            out.append(flash_attention_forward(module, *inputs, mask)[0])

        kept = [
            shape
            for dtype, shape in _saved_by(attend, query, key, value)
            if dtype != torch.int64 and len(shape) > 1
        ]
        recorder.enter_stage("backward")
        out[0].sum().backward()
    rows = real if padded else batch * tokens
    wanted = [heads * width * rows] * 2 + [grouped * width * rows] * 2 + [heads * rows]
    assert sorted(math.prod(shape) for shape in kept) == sorted(wanted)
    workspace = [
        each.block.n_bytes for each in recorder.trace.records if each.alloc and "workspace" in each.block.op
    ]
    rounded = real + 128 * batch if padded else batch * 128
    assert workspace == [4 * heads * rounded, 4 * heads * rounded * width, *[2 * heads * width * rows] * 2]


def test_code_books_are_made_without_their_values() -> None:
    """bitsandbytes sorts the values of a code book, which fake tensors do not have;
    256 numbers are made in any case.
    """
    bitsandbytes = import_or_skip("bitsandbytes")
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        bitsandbytes.functional.create_dynamic_map()
    with shimmed("code_books"):
        assert bitsandbytes.functional.create_dynamic_map().shape == (256,)


@pytest.mark.parametrize("paged", [True, False])
def test_large_states_of_a_paged_optimizer_are_not_the_allocators(paged: bool) -> None:
    """Managed memory is no allocation of torch; states of fewer than 100,000 elements are ordinary ones."""
    bitsandbytes = import_or_skip("bitsandbytes")
    recorder = Recorder()
    small, large = 99_999, 100_000
    with shimmed("paged_states", recorder=recorder):
        weights = [torch.nn.Parameter(torch.empty(count)) for count in (small, large)]
        optimizer = bitsandbytes.optim.AdamW(weights, optim_bits=32, is_paged=paged)
        with recorder:
            recorder.enter_stage("optimizer_step")
            for weight in weights:
                weight.grad = torch.empty_like(weight)
            optimizer.step()
    states = [
        each.block.n_bytes for each in recorder.trace.records if each.alloc and "zeros_like" in each.block.op
    ]
    assert states == [small * 4] * 2 + ([] if paged else [large * 4] * 2)


def test_grouped_products_of_every_dtype_have_the_shapes_of_the_cpu() -> None:
    """Rows by the matrices of their experts, and the gradient of those matrices, in fp32 as well as bf16:
    as on a real CPU.
    """
    for dtype in (torch.float32, torch.bfloat16):
        rows, matrices = torch.ones(6, 16, dtype=dtype), torch.ones(2, 16, 32, dtype=dtype)
        ends = torch.tensor([2, 6], dtype=torch.int32)
        real = [
            torch._grouped_mm(rows, matrices, ends),
            torch._grouped_mm(rows.t(), torch.ones(6, 32, dtype=dtype), ends),
        ]
        with shapes_of_kernels(), FakeTensorMode() as mode:
            fakes = [
                mode.from_tensor(each) for each in (rows, matrices, ends, torch.ones(6, 32, dtype=dtype))
            ]
            made = [
                torch._grouped_mm(fakes[0], fakes[1], fakes[2]),
                torch._grouped_mm(fakes[0].t(), fakes[3], fakes[2]),
            ]
        assert [(each.shape, each.dtype) for each in made] == [(each.shape, each.dtype) for each in real]


def test_a_gradient_of_softplus_has_the_layout_of_what_comes_in() -> None:
    """As a real kernel lays it out: a transposed gradient stays transposed, which shape functions forget."""

    def strides() -> tuple[int, ...]:
        gradient, given = torch.ones(2, 3, 16).transpose(1, 2), torch.ones(2, 16, 3)
        made: Tensor = torch.ops.aten.softplus_backward(gradient, given, 1, 20)
        return made.stride()

    real = strides()
    with FakeTensorMode():
        assert strides() != real
    with shimmed("shapes"):
        assert strides() == real
    with FakeTensorMode():
        assert strides() != real


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_layer_norm_keeps_its_statistics_in_fp32(dtype: torch.dtype) -> None:
    """Fake tensors of a CPU have them in the dtype of the rows."""

    def dtypes() -> list[torch.dtype]:
        rows = torch.ones(4, 8, dtype=dtype)
        made = torch.ops.aten.native_layer_norm(rows, [8], torch.ones(8, dtype=dtype), None, 1e-5)
        return [each.dtype for each in made]

    with FakeTensorMode():
        assert dtypes() == [dtype] * 3
    with shimmed("norm_statistics"):
        assert dtypes() == [dtype, torch.float32, torch.float32]
    with FakeTensorMode():
        assert dtypes() == [dtype] * 3
