"""What Transformers is told of bases in 8 and 4 bits, and what is widened before they are trained."""

from __future__ import annotations

from typing import Any

import pytest

from planner.domain.recipes.recipe import Recipe
from tests.extras import import_or_skip

torch = import_or_skip("torch")
import_or_skip("transformers")
import_or_skip("bitsandbytes")

from measure.recipe.kbit import prepare_for_kbit, quantization_config
from tests.jobs import resolved


def recipe(**said: Any) -> Recipe:
    """Of a small model on one card."""
    return resolved({"model": "qwen2.5-0.5b", "gpu": "a100-80gb", "seq": 64, **said}).recipe


def test_bitsandbytes_is_told_what_the_recipe_says() -> None:
    """QLoRA is nf4 with scales that are quantised again; plain bases are told nothing."""
    assert quantization_config(recipe(method="full")) is None
    assert quantization_config(recipe(method="int8")).load_in_8bit
    four = quantization_config(recipe(method="qlora", quant_storage="bf16"))
    assert (four.load_in_4bit, four.bnb_4bit_quant_type, four.bnb_4bit_use_double_quant) == (
        True,
        "nf4",
        True,
    )
    assert (four.bnb_4bit_compute_dtype, four.bnb_4bit_quant_storage) == (torch.bfloat16, torch.bfloat16)
    plain = quantization_config(recipe(method="qlora"))
    assert plain.bnb_4bit_quant_storage == torch.uint8


def test_matrices_that_stay_whole_are_named_beside_the_head() -> None:
    """Transformers leaves the head out by itself, unless it is told anything."""
    assert quantization_config(recipe(method="qlora")).llm_int8_skip_modules is None
    told = quantization_config(recipe(method="int8"), ["layers.0.mlp"])
    assert told.llm_int8_skip_modules == ["lm_head", "layers.0.mlp"]


@pytest.mark.parametrize(
    ("said", "wide"),
    [
        ({"stack": "hf-trainer@5"}, {"table", "norm", "matrix"}),
        ({"stack": "trl@0.24"}, {"norm"}),
        ({"stack": "trl@0.24", "precision": "bf16"}, {"table", "norm", "matrix"}),
        ({"stack": "axolotl"}, {"matrix"}),
        ({"stack": "trl"}, set()),
    ],
)
def test_preparation_widens_what_the_software_leaves_wide(said: dict[str, Any], wide: set[str]) -> None:
    """A matrix stands for what no quantiser packs inside of layers, such as a router."""
    import transformers

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=16, **sizes)).bfloat16()
    job = {"model": "qwen2.5-0.5b", "gpu": "a100-80gb", "seq": 64, "method": "qlora", **said}
    prepare_for_kbit(model, resolved(job))
    layer = model.model.layers[0]
    found = {
        "table": model.model.embed_tokens,
        "norm": layer.input_layernorm,
        "matrix": layer.self_attn.q_proj,
    }
    assert {name for name, module in found.items() if module.weight.dtype == torch.float32} == wide
