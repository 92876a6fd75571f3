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
    _random_model,
    _RandomWeight,
    model_config,
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


def test_random_weights_are_read_as_those_of_a_file() -> None:
    """Vectors are one, biases zero, matrices narrow around zero, in the dtype of the file."""
    torch.manual_seed(0)

    def read(name: str, *shape: int) -> Any:
        weight = _RandomWeight(name, torch.empty(shape, dtype=torch.bfloat16, device="meta"), CPU)
        assert weight.get_shape() == list(shape)
        return weight[...]

    matrix = read("up_proj.weight", 64, 64)
    assert (matrix.dtype, matrix.device) == (torch.bfloat16, CPU)
    assert float(matrix.float().std()) == pytest.approx(0.02, rel=0.1)
    assert not read("up_proj.bias", 64).any()
    assert (read("norm.weight", 8) == 1).all()


@pytest.mark.parametrize("method", ["full", "qlora", "int8"])
def test_a_random_model_comes_from_from_pretrained(method: str) -> None:
    """Whole, tied, on the device, quantised where asked, with nothing left to be initialised."""
    if method != "full":
        import_or_skip("bitsandbytes")
    job = case(model="smollm2-135m", method=method, load_dtype="bf16")
    model = _random_model(job, job.scenario(), CPU)
    layer, names = model.model.layers[0].mlp.up_proj, {"full": "Linear", "qlora": "Linear4bit"}
    assert type(layer).__name__ == names.get(method, "Linear8bitLt")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert {each.device for each in model.parameters()} == {CPU}
    assert float(model.model.embed_tokens.weight.detach().float().std()) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(("columns", "rows", "packs"), [(64, 32, True), (128, 33, False), (65, 32, False)])
def test_only_whole_tiles_are_packed_for_evaluation_on_a_cpu(columns: int, rows: int, packs: bool) -> None:
    """Blocks of 64 along a row, 32 rows at a time; layers that say nothing of it stay as they are."""
    layer: Any = nn.Linear(columns, rows)
    layer.support_avx512bf16_for_cpu = True
    other = nn.Linear(columns, rows)
    _keep_plain_layout(nn.Sequential(layer, other))
    assert layer.support_avx512bf16_for_cpu is packs
    assert not hasattr(other, "support_avx512bf16_for_cpu")
