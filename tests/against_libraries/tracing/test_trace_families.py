"""Every architecture of the catalog that Transformers ships:
on fake tensors its modules run the same program as on the CPU.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from matrix.models import MODELS
from scenarios import Setup
from test_trace_stream import FULL, LORA, assert_same_program, bytes_in_order, operators_of
from tiny_families import COMPARED_ELSEWHERE, FUSED_EXPERTS, WITHOUT_SDPA, tiny_fields
from tiny_traces import Small, fake_trace, peaks, real_trace, small_scenario
from torch.autograd.grad_mode import _force_original_view_tracking

from planner.catalog.models import model_entry, model_ids, spec_of
from planner.words import words

SMALL = Small(2, 16)
SETUPS = {"full": FULL, "lora": LORA}
# Source: torch 2.13 csrc/autograd/variable.cpp grad_fn, functions/tensor.cpp CopySlices.
WRITES_TO_SLICES = frozenset(
    words(
        """
        deepseek-v2-lite deepseek-v3 glm-4.7-flash minicpm3-4b qwen3.5-0.8b qwen3.5-35b-a3b
        qwen3-next-80b-a3b
        """
    )
)
# One each of: experts in one tensor, latent attention, sinks, one key head for all, position biases.
# The rest is slow.
QUICK = {
    ("mixtral-8x7b", "full"),
    ("deepseek-v2-lite", "full"),
    ("gpt-oss-20b", "full"),
    ("falcon-7b", "lora"),
    ("bloom-7b1", "lora"),
}
CASES = [
    pytest.param(
        model, method, marks=() if (model, method) in QUICK else pytest.mark.slow, id=f"{model}-{method}"
    )
    for model in MODELS
    for method in SETUPS
]


def setup_of(model: str, method: str) -> Setup:
    """Full fine-tuning, or LoRA under autocast with everything checkpointed,
    as far as the architecture allows.
    """
    setup = SETUPS[method]
    if model in WITHOUT_SDPA:
        setup = replace(setup, attention="eager")
    if model == "llama-4-scout":
        # The adapter of its router fails in PEFT 0.21: the router is a linear layer that returns two tensors.
        setup = replace(setup, targets=("attention",))
    return replace(setup, dropout=0.0) if model in FUSED_EXPERTS else setup


@pytest.mark.every(2)
@pytest.mark.parametrize(("model", "method"), CASES)
def test_fake_tensors_run_the_program_of_the_cpu(model: str, method: str) -> None:
    """Without the shims for CUDA, operators with their shapes,
    allocations and peaks are those of a real CPU run, exactly.

    The code of DeepSeek, GLM and Qwen writes into slices.  How autograd then finds the slice of what was
    written is a switch of torch's: by slicing again, as it always does for subclasses of tensors, or by
    ``as_strided``, as it does else.  Both runs do the former.
    """
    case = small_scenario(model, setup_of(model, method), small=SMALL)
    with _force_original_view_tracking(model in WRITES_TO_SLICES):
        real = real_trace(model, case)
    assert_same_program(fake_trace(model, case), real)


@pytest.mark.slow
@pytest.mark.parametrize("model", sorted(WRITES_TO_SLICES))
def test_how_views_are_found_again_changes_views_only(model: str) -> None:
    """Real runs with and without that switch: the same allocations and peaks,
    and the same operators but for views.
    """
    case = small_scenario(model, setup_of(model, "full"), small=SMALL)
    plain = real_trace(model, case)
    with _force_original_view_tracking(True):
        replayed = real_trace(model, case)
    assert bytes_in_order(plain) == bytes_in_order(replayed)
    assert peaks(plain) == peaks(replayed)
    counts = [Counter(name.partition(" ")[0] for name in operators_of(trace)) for trace in (plain, replayed)]
    assert set(counts[0] - counts[1]) == {"aten.as_strided.default"}
    again = set(counts[1] - counts[0])
    assert again
    assert again <= {"aten.slice.Tensor", "aten.select.int"}


def test_every_architecture_of_the_catalog_is_among_them() -> None:
    """No model type that ships with Transformers is left out;
    those that need code of their own, or kernels of CUDA in layers without attention, cannot run here.
    Nor can DBRX, which asks each expert for its tokens (``dry_run/test_selected_experts.py``).  Others are
    traced in two sizes (``step_program/test_later_decoders.py``).
    """
    import transformers

    covered = {tiny_fields(model)["model_type"] for model in MODELS}
    shipped = set()
    for name in model_ids():
        entry = model_entry(name)
        fields = entry.config_fields()
        kind = fields.get("text_config", fields).get("model_type")
        spec = spec_of(entry)
        if spec.remote_code or spec.vision is not None or any(block.mixer for block, _ in spec.blocks()):
            continue
        if kind in transformers.CONFIG_MAPPING:
            shipped.add(kind)
    assert len(shipped) > 30
    assert shipped - covered == COMPARED_ELSEWHERE
