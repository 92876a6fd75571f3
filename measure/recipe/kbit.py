"""Bases in 8 and 4 bits: what Transformers is told when it loads them, and what PEFT does before adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from measure.recipe.adapters import DTYPES
from measure.recipe.checkpointing import checkpoint_kwargs
from planner.domain.recipes.recipe import STAYS_16_BIT, Recipe
from planner.domain.scenario import Scenario

FOUR_BIT = ("nf4", "fp4")


def quantization_config(recipe: Recipe, whole: Sequence[str] = ()) -> Any:
    """The configuration of bitsandbytes, ``None`` where nothing is quantised by it.

    ``whole``: paths of matrices that the checkpoint holds as they were.
    """
    import transformers

    numerics = recipe.numerics
    make: Any = transformers.BitsAndBytesConfig
    # It stands in for the head, which is left out by default.
    left_out = ["lm_head", *whole] if whole else None
    if numerics.quantization == "int8":
        return make(load_in_8bit=True, llm_int8_skip_modules=left_out)
    if numerics.quantization not in FOUR_BIT:
        return None
    return make(
        load_in_4bit=True,
        bnb_4bit_quant_type=numerics.quantization,
        bnb_4bit_use_double_quant=numerics.double_quant,
        bnb_4bit_compute_dtype=DTYPES[numerics.compute_dtype],
        bnb_4bit_quant_storage=DTYPES[numerics.quant_storage] if numerics.quant_storage else torch.uint8,
        llm_int8_skip_modules=left_out,
    )


def prepare_for_kbit(model: Any, scenario: Scenario) -> dict[str, torch.dtype]:
    """PEFT's preparation of quantised bases, where the stack calls it, and what the stack returns to 16 bits
    behind it; gives the dtypes in between, by name.

    Source: trl 0.24.0 trainer/utils.py peft_module_casting_to_bf16: all but norms; axolotl 0.19.0
    loaders/model.py convert_embedding_modules_dtype: norms, token table and head.
    """
    import peft

    recipe, upcast = scenario.recipe, scenario.stack.kbit_upcast_over(scenario.recipe)
    dtypes = _dtypes(model)
    if upcast == "none" or recipe.numerics.quantization in STAYS_16_BIT:
        return dtypes
    prepare: Any = peft.prepare_model_for_kbit_training
    prepare(
        model,
        use_gradient_checkpointing=recipe.gradient_checkpointing,
        gradient_checkpointing_kwargs=checkpoint_kwargs(recipe),
    )
    between = _dtypes(model)
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    for name, tensor in model.named_parameters() if upcast != "all" else ():
        is_end = any(end is not None and tensor is getattr(end, "weight", None) for end in ends)
        if is_end or (upcast == "layers") == ("norm" in name):
            tensor.data = tensor.data.to(dtypes[name])
    return between


def _dtypes(model: Any) -> dict[str, torch.dtype]:
    return {name: tensor.dtype for name, tensor in model.named_parameters()}
