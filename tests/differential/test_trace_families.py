"""Every architecture of the catalog that Transformers ships: on fake tensors its modules run the same program as on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("peft", reason="tracing needs the measure extra")

from matrix.models import MODELS
from scenarios import Setup
from test_trace_stream import FULL, LORA, assert_same_program
from tiny_families import FUSED_EXPERTS, WITHOUT_SDPA, tiny_fields
from tiny_traces import Small, fake_trace, real_trace, small_scenario

from planner.catalog.models import model_entry, model_ids, spec_of

SMALL = Small(2, 16)
SETUPS = {"full": FULL, "lora": LORA}
# One each of: experts in one tensor, latent attention, sinks, one key head for all, position biases.  The rest is slow.
QUICK = {
    ("mixtral-8x7b", "full"),
    ("deepseek-v2-lite", "full"),
    ("gpt-oss-20b", "full"),
    ("falcon-7b", "lora"),
    ("bloom-7b1", "lora"),
}
CASES = [
    pytest.param(model, method, marks=() if (model, method) in QUICK else pytest.mark.slow, id=f"{model}-{method}")
    for model in MODELS
    for method in SETUPS
]


def setup_of(model: str, method: str) -> Setup:
    """Full fine-tuning, or LoRA under autocast with everything checkpointed, as far as the architecture allows."""
    setup = SETUPS[method]
    if model in WITHOUT_SDPA:
        setup = replace(setup, attention="eager")
    return replace(setup, dropout=0.0) if model in FUSED_EXPERTS else setup


@pytest.mark.parametrize(("model", "method"), CASES)
def test_fake_tensors_run_the_program_of_the_cpu(model: str, method: str) -> None:
    """Without the shims for CUDA, operators with their shapes, allocations and peaks are those of a real CPU run, exactly."""
    case = small_scenario(model, setup_of(model, method), small=SMALL)
    assert_same_program(fake_trace(model, case), real_trace(model, case))


def test_every_architecture_of_the_catalog_is_among_them() -> None:
    """No model type that ships with Transformers is left out; those that need code of their own cannot run anywhere here."""
    import transformers

    covered = {tiny_fields(model)["model_type"] for model in MODELS}
    shipped = set()
    for name in model_ids():
        entry = model_entry(name)
        fields = entry.config_fields()
        kind = fields.get("text_config", fields).get("model_type")
        if not spec_of(entry).remote_code and kind in transformers.CONFIG_MAPPING:
            shipped.add(kind)
    assert len(shipped) > 30
    assert shipped - covered == set()
