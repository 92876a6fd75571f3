"""The kernels of attention, against sizes worked out by hand:
4 query heads of 64 features that share 2 key heads, in bf16.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from planner.domain.attention_shape import AttentionSpec
from planner.domain.recipes.parallel import ALONE
from planner.program.ops.kernels import fused_attention, kernel_of
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.recorded_part import Shape, Template, Terms, run
from planner.program.view import Dtypes, LayerView

HEADS, SHARED, WIDTH = 4, 2, 64
TERMS = Terms("saved_activations", "block_recompute")
QUERY, KEY = HEADS * WIDTH * 2, SHARED * WIDTH * 2


def view_of(
    attention: AttentionSpec, *, masked: bool = False, single: bool = True, has_flash: bool = True
) -> LayerView:
    """What the kernels read of a view."""
    fields: dict[str, Any] = {
        "block": SimpleNamespace(attention=attention),
        "recipe": SimpleNamespace(attention="sdpa", parallel=ALONE),
        "stack": SimpleNamespace(
            sdpa_mask="bool",
            sdpa_kernel="any",
            copies_kv_heads="none",
            selective_flex="unread",
            model_code="transformers-5",
            tells_samples=lambda _: False,
        ),
        "dtypes": Dtypes("bf16", "bf16", "bf16", "bf16", "bf16", autocast=False),
    }
    given = {"masked": masked, "single": single, "has_flash": has_flash, "unpads": False}
    return SimpleNamespace(**fields, **given)  # type: ignore[return-value]


def recorded(view: LayerView, dtype: Dtype = "bf16") -> Template:
    """One kernel run forward and backward on a query,
    and on keys and values that are parts of nothing else.
    """
    spec = view.block.attention

    def part(torch: Operators, x: Tensor) -> Tensor:
        key = torch.parameter(Unit.TOKENS, spec.k_width, dtype, trained=True)
        value = torch.parameter(Unit.TOKENS, spec.v_width, dtype, trained=True)
        return fused_attention(torch, view, x, key, value)

    return run(part, Shape(spec.q_width, dtype, True), TERMS)


def made(template: Template, stage: str) -> list[tuple[str, float, Unit]]:
    """Operators of a stage in their order, with bytes and unit of what they make."""
    slots = [event for event in template.stages[stage] if event >= 0]
    return [(template.ops[slot][1], template.unit_bytes[slot], template.units[slot]) for slot in slots]


def test_flash_with_shared_heads_sums_key_and_value_gradients_of_all_heads() -> None:
    """Two gradients of all heads come beside those of the two shared heads."""
    spec = AttentionSpec(HEADS, SHARED, WIDTH, WIDTH)
    template = recorded(view_of(spec))
    forward, backward = "flash_attention", "flash_attention_backward"
    assert made(template, "forward") == [(forward, QUERY, Unit.TOKENS), (forward, HEADS * 4, Unit.TOKENS)]
    # Row sums, fp32 accumulator, two gradients of all heads; then those of query, key and value.
    sizes = [HEADS * 4, QUERY * 2, QUERY, QUERY, QUERY, KEY, KEY]
    assert made(template, "backward") == [(backward, size, Unit.TOKENS) for size in sizes]


@pytest.mark.parametrize(
    ("heads", "code", "copies"),
    [(4, "transformers-5", False), (6, "transformers-5", True), (6, "own", False)],
)
def test_flex_copies_shared_heads_where_queries_are_no_power_of_two(
    heads: int, code: str, copies: bool
) -> None:
    """By Transformers; torchtitan never does.  The output lies head by head, so that it is copied; backward
    has row sums and three gradients.
    """
    view = view_of(AttentionSpec(heads, SHARED, WIDTH, WIDTH))
    view.recipe.attention = "flex"  # type: ignore[misc]
    view.stack.model_code = code  # type: ignore[misc, assignment]
    template, query = recorded(view), heads * WIDTH * 2
    repeated = [("clone", query, Unit.TOKENS)] * 2 if copies else []
    kernel = [("flash_attention", query, Unit.TOKENS), ("flash_attention", heads * 4, Unit.TOKENS)]
    assert made(template, "forward") == [*repeated, *kernel, ("clone", query, Unit.TOKENS)]
    keys = [("flash_attention_backward", query if copies else KEY, Unit.TOKENS)] * 2
    summed = [("sum", KEY, Unit.TOKENS)] * 2 if copies else []
    sums = ("flash_attention_backward", heads * 4, Unit.TOKENS)
    assert made(template, "backward") == [
        sums,
        ("flash_attention_backward", query, Unit.TOKENS),
        *keys,
        *summed,
    ]


def test_flash_casts_fp32_inputs_to_the_dtype_of_loading() -> None:
    """Norms in fp32 over a packed base make them; the kernel takes 16 bits."""
    view = view_of(AttentionSpec(HEADS, SHARED, WIDTH, WIDTH))
    view.recipe.attention = "flash2"  # type: ignore[misc]
    view.recipe.numerics = SimpleNamespace(load_dtype="bf16")  # type: ignore[misc, assignment]
    forward = made(recorded(view, "fp32"), "forward")
    casts = [("to", QUERY, Unit.TOKENS), ("to", KEY, Unit.TOKENS), ("to", KEY, Unit.TOKENS)]
    assert forward[:4] == [*casts, ("flash_attention", QUERY, Unit.TOKENS)]


def test_flash_of_real_tokens_saves_no_padding() -> None:
    """Three copies of what is real, the kernel, and zeros around; backward the same ways back."""
    view = view_of(AttentionSpec(HEADS, HEADS, WIDTH, WIDTH))
    view.recipe.attention = "flash2"  # type: ignore[misc]
    view.unpads = True  # type: ignore[misc]
    template = recorded(view)
    real, kernel = Unit.REAL_TOKENS, "flash_attention"
    picked = [("index", QUERY, real)] * 3
    assert made(template, "forward") == [
        *picked, (kernel, QUERY, real), (kernel, HEADS * 4, real), ("zeros", QUERY, Unit.TOKENS)
    ]  # fmt: skip
    backward = made(template, "backward")
    assert backward[0] == ("index", QUERY, real)
    assert [each for each in backward if each[0] == "new_zeros"] == [("new_zeros", QUERY, Unit.TOKENS)] * 3
    assert {unit for op, _, unit in backward if op.startswith(kernel)} == {real}


@pytest.mark.parametrize("copies", ["none", "all"])
def test_the_unfused_kernel_copies_heads_of_groups_once(copies: str) -> None:
    """Key and value for each query, by the kernel or by the model's code, and the query as a batch."""
    view = view_of(AttentionSpec(HEADS, SHARED, WIDTH, WIDTH), single=False)
    view.stack.copies_kv_heads = copies  # type: ignore[misc, assignment]
    view.stack.sdpa_kernel = "math"  # type: ignore[misc]
    forward = made(recorded(view, "fp32"), "forward")
    clones = [size for op, size, _ in forward if op == "clone"]
    assert clones == [2 * QUERY] * 4  # those three, and the output
    assert "to" not in [op for op, _, _ in forward]  # scores in fp32 are returned as they are


def test_unfused_scores_take_their_mask_in_place_and_are_marked() -> None:
    """A product and a softmax are all that is as large; marks of a byte go with the scores.

    A dry run of torch 2.13 logs these requests.
    """
    view = view_of(AttentionSpec(HEADS, HEADS, WIDTH, WIDTH), single=False)
    view.stack.sdpa_kernel = "math"  # type: ignore[misc]
    forward = made(recorded(view, "fp32"), "forward")
    pairs = [(op, size) for op, size, unit in forward if unit is Unit.PAIRS]
    assert pairs == [("bmm", HEADS * 4), ("softmax", HEADS * 4), ("isneginf", HEADS)]
    assert ("all", HEADS, Unit.TOKENS) in forward


def test_some_code_copies_shared_heads_for_every_kernel() -> None:
    """Keys and values of all heads, before the kernel's output."""
    spec = AttentionSpec(HEADS, SHARED, WIDTH, WIDTH)
    view = view_of(spec)
    view.stack.copies_kv_heads = "repeated"  # type: ignore[misc]
    forward = [(op, size) for op, size, _ in made(recorded(view), "forward")]
    assert forward[:3] == [("clone", QUERY), ("clone", QUERY), ("flash_attention", QUERY)]


@pytest.mark.parametrize("has_flash", [True, False])
def test_unsloth_joins_what_the_kernel_returns_of_each_sample(*, has_flash: bool) -> None:
    """On cards without FlashAttention it copies keys and values for xFormers instead."""
    view = view_of(AttentionSpec(HEADS, SHARED, WIDTH, WIDTH), has_flash=has_flash)
    view.stack.copies_kv_heads = "joined"  # type: ignore[misc]
    forward = [op for op, size, _ in made(recorded(view), "forward") if size == QUERY]
    assert forward[:2] == (["flash_attention", "cat"] if has_flash else ["clone", "clone"])


def test_a_mask_repeats_shared_heads_and_is_made_additive_in_the_layer() -> None:
    """Keys and values are copied for all heads; the boolean mask becomes one of bf16."""
    template = recorded(view_of(AttentionSpec(HEADS, SHARED, WIDTH, WIDTH), masked=True))
    assert made(template, "forward") == [
        ("clone", QUERY, Unit.TOKENS),
        ("clone", QUERY, Unit.TOKENS),
        ("zeros_like", 2, Unit.PAIRS),
        ("logical_not", 1, Unit.PAIRS),
        ("efficient_attention", QUERY, Unit.TOKENS),
        ("efficient_attention", HEADS * 4, Unit.TOKENS),
    ]
    # Tiles of 64 rows and 64 columns in fp32, 16 bytes of lock each: 260 bytes for each row and head.
    assert made(template, "backward")[1] == ("efficient_attention", HEADS * (64 * 4 + 0.25), Unit.TOKENS)
    assert [op for op, _, _ in made(template, "backward")][-2:] == ["sum", "sum"]


def test_one_shared_head_is_repeated_without_a_copy() -> None:
    """One head seen as many is a view."""
    template = recorded(view_of(AttentionSpec(HEADS, 1, WIDTH, WIDTH), masked=True))
    assert "clone" not in [op for op, _, _ in made(template, "forward")]


@pytest.mark.parametrize("sdpa_input", ["grouped", "broadcast"])
def test_code_that_copies_every_head_copies_one_too(sdpa_input: Any) -> None:
    """LitGPT: no model's own way of handing over one head is left, so the fused kernel runs."""
    view = view_of(AttentionSpec(HEADS, 1, WIDTH, WIDTH, sdpa_input=sdpa_input))
    view.stack.copies_kv_heads = "all"  # type: ignore[misc]
    forward = [(op, size) for op, size, _ in made(recorded(view), "forward")]
    assert forward[:3] == [("clone", QUERY), ("clone", QUERY), ("flash_attention", QUERY)]


def test_code_that_copies_groups_leaves_one_head_a_view() -> None:
    """Torchtune: one head expanded and flattened is a view, and the fused kernel takes it."""
    view = view_of(AttentionSpec(HEADS, 1, WIDTH, WIDTH))
    view.stack.copies_kv_heads = "repeated"  # type: ignore[misc]
    assert next(op for op, _, _ in made(recorded(view), "forward")) == "flash_attention"


def test_flash_pads_heads_to_multiples_of_eight_and_copies_the_output() -> None:
    """60 features become 64; the output is cut back and copied."""
    template = recorded(view_of(AttentionSpec(HEADS, HEADS, 60, 60)))
    assert made(template, "forward") == [
        *[("pad", QUERY, Unit.TOKENS)] * 3,
        ("flash_attention", QUERY, Unit.TOKENS),
        ("flash_attention", HEADS * 4, Unit.TOKENS),
        ("clone", HEADS * 60 * 2, Unit.TOKENS),
    ]


@pytest.mark.parametrize(
    ("spec", "dtype", "masked", "kernel"),
    [
        (AttentionSpec(4, 2, 64, 64), "bf16", False, "flash"),
        (AttentionSpec(4, 2, 64, 64), "bf16", True, "efficient"),
        (AttentionSpec(4, 4, 192, 128), "bf16", False, "efficient"),
        (AttentionSpec(4, 4, 320, 320), "bf16", False, "efficient"),
        (AttentionSpec(4, 4, 64, 64), "fp32", False, "efficient"),
        (AttentionSpec(4, 4, 60, 60), "bf16", True, "math"),
        (AttentionSpec(4, 1, 64, 64, sdpa_input="broadcast"), "bf16", True, "math"),
    ],
)
def test_the_kernel_that_torch_chooses(spec: AttentionSpec, dtype: Any, masked: bool, kernel: str) -> None:
    """Flash, memory-efficient or unfused, by mask, dtype and widths."""
    query = Tensor(None, Unit.TOKENS, spec.q_width, dtype)
    assert kernel_of(view_of(spec, masked=masked), query, masked=masked) == kernel


@pytest.mark.parametrize(
    ("n_kv_heads", "dtype", "masked", "kernel"),
    [
        (2, "fp16", False, "math"),
        (2, "fp16", True, "efficient"),
        (4, "fp16", False, "efficient"),
        (4, "bf16", False, "math"),
        (4, "fp32", False, "efficient"),
    ],
)
def test_the_kernel_of_a_card_without_flash(n_kv_heads: int, dtype: Any, masked: bool, kernel: str) -> None:
    """Before compute capability 8.0 no kernel takes heads in groups, and none but the unfused one bf16."""
    view = view_of(AttentionSpec(4, n_kv_heads, 64, 64), masked=masked, has_flash=False)
    assert kernel_of(view, Tensor(None, Unit.TOKENS, 4 * 64, dtype), masked=masked) == kernel


@pytest.mark.parametrize("kernel", ["efficient", "math"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_one_kernel_that_a_program_leaves(kernel: str, *, masked: bool) -> None:
    """Torch's ``sdpa_kernel`` switches the others off; FlashAttention's package is none of them."""
    view = view_of(AttentionSpec(4, 4, 64, 64), masked=masked)
    query = Tensor(None, Unit.TOKENS, 4 * 64, "bf16")
    view.stack.sdpa_kernel = kernel  # type: ignore[misc, assignment]
    assert kernel_of(view, query, masked=masked) == kernel
    view.recipe.attention = "flash2"  # type: ignore[misc]
    assert kernel_of(view, query, masked=masked) == "flash"
