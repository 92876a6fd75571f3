"""What decides the operators of a layer: dtypes under a method and an engine, matrices, and what is alike."""

from __future__ import annotations

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import Job, job_of
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.view import LayerView, layer_view, tower_view
from tests.planner.intake.jobs import scenario_of

MIXED: dict[str, object] = {"load_dtype": "fp32", "precision": "bf16-mixed"}


def job(**flags: object) -> Job:
    """Two samples of 512 tokens."""
    given = {"model": "llama-2-7b", "method": "full", "gpu": "a100-80gb", "seq": 512, "batch": 2}
    return job_of(scenario_of(**{**given, **flags}), Coefficients())


def view(**flags: object) -> LayerView:
    """The first kind of layer of such a job."""
    asked = job(**flags)
    return layer_view(asked, asked.model.groups[0].block, trained=asked.recipe.method == "full")


@pytest.mark.parametrize(
    ("flags", "base", "autocast"),
    [
        (MIXED, "fp32", True),
        ({**MIXED, "gpus": 8, "sharding": "fsdp"}, "bf16", False),
        ({**MIXED, "gpus": 8, "sharding": "zero3"}, "bf16", False),
        ({"load_dtype": "bf16", "precision": "bf16"}, "bf16", False),
        ({"load_dtype": "fp32", "precision": "fp32"}, "fp32", False),
    ],
)
def test_who_casts_weights_decides_what_layers_see(
    flags: dict[str, object], base: str, autocast: bool
) -> None:
    """Autocast casts at each product; engines hand out 16-bit weights."""
    dtypes = view(**flags).dtypes
    assert (dtypes.base, dtypes.autocast) == (base, autocast)
    assert dtypes.compute == ("fp32" if flags["precision"] == "fp32" else "bf16")


def test_autocast_decides_the_dtype_of_a_product() -> None:
    """Without it a product has the dtype of its factors."""
    assert view(**MIXED).product_dtype("fp32") == "bf16"
    assert view(load_dtype="fp32", precision="fp32").product_dtype("fp32") == "fp32"


def test_adapters_and_quantised_matrices_are_told_by_their_names() -> None:
    """Adapters at queries alone, in a base of 4 bits."""
    seen = view(method="qlora", lora_targets="q_proj")
    linears = {linear.name: linear for linear in seen.block.linears}
    assert [name for name, linear in linears.items() if seen.adapted(linear)] == ["q_proj"]
    assert all(map(seen.quantized, linears.values()))
    assert not any(map(view().adapted, linears.values()))
    assert not any(map(view().quantized, linears.values()))


def test_a_router_without_a_module_is_no_matrix_of_the_layer() -> None:
    """Matrices come in the order of the code; what reads the same tensor is listed together."""
    assert [each.name for each in view().linears("attn_in")] == ["q_proj", "k_proj", "v_proj"]
    assert view().linears("nowhere") == []
    mixture = view(model="qwen3-30b-a3b", method="lora")
    bare = [each for each in mixture.block.linears if (each.group, each.kind) == ("router", "parameter")]
    reads = {each.reads for each in mixture.block.linears}
    assert not any(each in mixture.linears(name) for name in reads for each in bare)


def test_layers_that_run_alike_are_equal() -> None:
    """Neither sizes nor the optimizer move an operator of a layer; one sample alone and padding do."""
    asked = view()
    for alike in (view(batch=4), view(seq=1024), view(optimizer="sgd"), view(grad_accum=4)):
        assert alike == asked
        assert hash(alike) == hash(asked)
    assert view(batch=1) != asked
    assert view(batch=1).single
    assert view(attention="eager") != asked


def test_a_tower_gets_no_mask_and_no_kernels_of_language_models() -> None:
    """Unsloth has fused functions for the layers of the language model."""
    asked = job(method="lora", stack="unsloth", batch=1)
    block = asked.model.groups[0].block
    tower, layer = tower_view(asked, block, trained=False), layer_view(asked, block, trained=False)
    assert layer.stack.adapter_kernels.startswith("fused")
    assert (tower.stack.adapter_kernels, tower.stack.fused_mlp) == ("eager", False)
    assert (tower.masked, tower.single, layer.single) == (False, False, True)


def test_heads_too_wide_for_flash_attention_are_masked_where_the_stack_does_so() -> None:
    """Gemma 4: global layers have heads of 512 features; a stack that has no such patch is refused."""
    asked = job(model="gemma-4-31b", attention="flash2", padding="packed", switches=["masks_wide_heads=true"])
    kernels = {
        (each.block.attention.head_dim, seen.recipe.attention, seen.masked)
        for each in asked.model.groups
        for seen in [layer_view(asked, each.block, trained=True)]
    }
    assert kernels == {(256, "flash2", False), (512, "sdpa", True)}


def test_code_of_transformers_takes_padding_out_before_flash_attention() -> None:
    """Not of a single row, which has none, and not in code of its own."""

    def unpads(**flags: object) -> bool:
        padded = {"attention": "flash2", "padding": "longest", "seq": 1024, "tokens_per_sample": 512}
        asked = job(**{"model": "llama-3.1-8b", "batch": 2, **padded, **flags})
        return layer_view(asked, asked.model.groups[0].block, trained=True).unpads

    assert unpads()
    assert not unpads(batch=1)
    assert not unpads(tokens_per_sample=1024)
    assert not unpads(attention="sdpa")
    assert not unpads(stack="torchtune")


def test_real_tokens_are_those_of_one_whole_sample_and_of_mean_ones() -> None:
    """Two rows of 1,024, of which one has 512 tokens."""
    padded = {"attention": "flash2", "padding": "longest", "seq": 1024, "tokens_per_sample": 512}
    values = unit_values(job(model="llama-3.1-8b", batch=2, **padded))
    assert values[Unit.REAL_TOKENS] == 1024 + 512
    assert values[Unit.TOKENS] == 2048
