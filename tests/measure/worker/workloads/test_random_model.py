"""The model of a case: its configuration, the random values of its weights, and how they are quantised."""

from __future__ import annotations

from typing import Any

import pytest

from measure.run.cases.case import RunCase, RunOptions
from tests.extras import import_or_skip

torch = import_or_skip("torch")
import_or_skip("transformers")
import_or_skip("peft")

from torch import nn

from measure.worker.workloads.random_model import (
    _keep_plain_layout,
    _Loader,
    model_config,
    quantization_config,
)

CPU = torch.device("cpu")


def case(**said: Any) -> RunCase:
    """A job on one card."""
    plain = {"model": "qwen2.5-0.5b", "gpu": "a100-80gb", "method": "full", "seq": 64, "precision": "bf16"}
    return RunCase({**plain, **said}, RunOptions())


def test_the_configuration_is_that_of_the_catalog_without_a_cache() -> None:
    """With the attention that the job asks for."""
    job = case(attention="eager")
    config = model_config(job, job.scenario())
    assert (config.model_type, config.hidden_size) == ("qwen2", 896)
    assert (config._attn_implementation, config.use_cache) == ("eager", False)


def test_bitsandbytes_is_told_what_the_recipe_says() -> None:
    """QLoRA is nf4 with scales that are quantised again; plain bases are told nothing."""
    import_or_skip("bitsandbytes")
    assert quantization_config(case().scenario().recipe) is None
    assert quantization_config(case(method="int8").scenario().recipe).load_in_8bit
    four = quantization_config(case(method="qlora", quant_storage="bf16").scenario().recipe)
    assert (four.load_in_4bit, four.bnb_4bit_quant_type, four.bnb_4bit_use_double_quant) == (
        True,
        "nf4",
        True,
    )
    assert (four.bnb_4bit_compute_dtype, four.bnb_4bit_quant_storage) == (torch.bfloat16, torch.bfloat16)
    plain = quantization_config(case(method="qlora").scenario().recipe)
    assert plain.bnb_4bit_quant_storage == torch.uint8


def test_weights_are_made_as_a_loader_makes_them() -> None:
    """Vectors are one, biases zero, matrices narrow around zero; a shared weight is made once."""
    torch.manual_seed(0)
    with torch.device("meta"):
        one, two, norm = nn.Linear(64, 64), nn.Linear(64, 64, bias=False), nn.LayerNorm(8, bias=False)
    two.weight = one.weight
    loader = _Loader(CPU, torch.float32)
    for module in (one, two, norm):
        loader.fill(module)
    assert one.weight is two.weight
    assert one.weight.device == CPU
    assert float(one.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert not one.bias.any()
    assert (norm.weight == 1).all()
    before = one.weight
    loader.fill(one)
    assert one.weight is before, "what is there is left alone"


@pytest.mark.parametrize(("columns", "rows", "packs"), [(64, 32, True), (128, 33, False), (65, 32, False)])
def test_only_whole_tiles_are_packed_for_evaluation_on_a_cpu(columns: int, rows: int, packs: bool) -> None:
    """Blocks of 64 along a row, 32 rows at a time; layers that say nothing of it stay as they are."""
    layer: Any = nn.Linear(columns, rows)
    layer.support_avx512bf16_for_cpu = True
    other = nn.Linear(columns, rows)
    _keep_plain_layout(nn.Sequential(layer, other))
    assert layer.support_avx512bf16_for_cpu is packs
    assert not hasattr(other, "support_avx512bf16_for_cpu")
