"""Files that train some layers only: what their tools freeze, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.anatomy.trained_parts import parts_of
from planner.configs.launchers.fsdp_keys import Beside
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import (
    REFUSED_BY_TOOL,
    InputFileError,
    NotModelledError,
    PlannerError,
    RefusedCombinationError,
    UsageError,
)
from planner.intake.given.config_file import read_config_file
from planner.intake.train_layers import Drawn, trained_parts
from planner.program.job import job_of
from planner.program.ops.sizes import unit_values
from planner.program.step import step_of
from tests.files import filled, read, written

FACTORY = "model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: freeze\ntemplate: qwen\nbf16: true\n"
AXOLOTL = (
    "base_model: Qwen/Qwen2.5-0.5B\nbf16: true\ndatasets: []\nsequence_len: "
    "1024\ngradient_checkpointing: true\n"
)


def recipe_of(folder: Path, text: str, gpu: str = "a100-80-sxm") -> Any:
    """The scenario of a file, on one card where nothing else is said."""
    return filled(read(folder, text), {"gpu": gpu})


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("", ("last:2",)),
        ("freeze_trainable_layers: 8\n", ("last:8",)),
        ("num_layer_trainable: 8\nname_module_trainable: all\n", ("last:8",)),
        ("freeze_trainable_layers: -3\nfreeze_trainable_modules: all\n", ("first:3",)),
        ("freeze_extra_modules: embed_tokens,lm_head\n", ("last:2", "embed", "head")),
        ("freeze_trainable_layers: 8\nuse_llama_pro: true\n", ("spread:8",)),
    ],
)
def test_llama_factory_freezes(text: str, layers: tuple[str, ...], tmp_path: Path) -> None:
    """The last layers, the first ones, or those that LLaMA Pro added; other layers are not checkpointed."""
    scenario = recipe_of(tmp_path, FACTORY + text)
    assert (scenario.recipe.method, scenario.recipe.train_layers) == ("full", layers)
    assert scenario.stack.frozen_layers == "spared"


@pytest.mark.parametrize(
    ("patterns", "layers"),
    [
        (["model.layers.1[0-9]+"], ("10-19", "100-127")),
        (
            ["^lm_head.weight$", "^model.embed_tokens.weight$[:32000]", "model.layers.5."],
            ("5", "embed", "head"),
        ),
        (["model.layers.[02]."], ("0", "2")),
        (["model.norm", "model.layers.3"], ("3", "30-39", "norm")),
        (["model.layers.2[0-5].mlp"], ("20-25:mlp",)),
        (["model.layers.4.block_sparse_moe.gate", "model.layers.[46].", "model.norm"], ("4", "6", "norm")),
    ],
)
def test_axolotl_leaves_unfrozen(patterns: list[str], layers: tuple[str, ...], tmp_path: Path) -> None:
    """Expressions over names; a partly frozen model is checkpointed without reentry."""
    scenario_text = AXOLOTL + f"unfrozen_parameters: {patterns}\n"
    scenario = recipe_of(tmp_path, scenario_text)
    assert scenario.recipe.train_layers == layers
    assert not scenario.recipe.checkpoint_reentrant


def test_axolotl_freezes_adapters_as_well(tmp_path: Path) -> None:
    """Their names begin otherwise.  It runs as long as something requires a gradient, and trains nothing."""
    text = AXOLOTL + "adapter: lora\nlora_r: 8\nunfrozen_parameters: [^lm_head.weight$]\n"
    path = written(tmp_path, text)
    config = read_config_file(path, None, Beside())
    assert any("nothing is trained" in remark.text for remark in config.remarks)
    assert not recipe_of(tmp_path, text).recipe.train_layers
    without = text.replace("gradient_checkpointing: true", "gradient_checkpointing: false")
    assert recipe_of(tmp_path, without)
    with pytest.raises(UsageError, match="a loss without a gradient"):
        recipe_of(tmp_path, without.replace("^lm_head.weight$", "^model.layers.3"))
    for name in ("base_model.model.lm_head", "^base_model", "'[a-z_]+'"):
        with pytest.raises(NotModelledError, match="which adapters"):
            recipe_of(tmp_path, text.replace("^lm_head.weight$", name))


def test_axolotl_before_transformers_5_calls_mixtures_otherwise(tmp_path: Path) -> None:
    """Later the same expressions name nothing, and what else is named is trained."""
    mixture = "'model.layers.[4-6].block_sparse_moe.gate', 'model.layers.[4-6].block_sparse_moe.experts'"
    text = AXOLOTL + "unfrozen_parameters: [" + mixture
    older = "]\nlocal_rank:\ngradient_checkpointing_kwargs: {use_reentrant: false}\n"
    assert recipe_of(tmp_path, text + older).recipe.train_layers == ("4-6:mlp",)
    assert recipe_of(tmp_path, text + ", model.norm]\n").recipe.train_layers == ("norm",)
    with pytest.raises(NotModelledError, match="so that nothing is trained"):
        recipe_of(tmp_path, text + "]\n")


def test_a_head_that_is_the_table_has_no_name_of_its_own(tmp_path: Path) -> None:
    """A dry run of Axolotl 0.19 (Llama 3.2 1B, four feed-forward parts and lm_head) trains no table and
    allocates 9.64 GiB, where a trained table would make it 11.13.
    """
    text = AXOLOTL + "unfrozen_parameters: [^lm_head.weight$, model.layers.5.]\n"
    with pytest.raises(RefusedCombinationError, match="leave head out"):
        recipe_of(tmp_path, text)
    untied = text.replace("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-7B")
    assert recipe_of(tmp_path, untied).recipe.train_layers == ("5", "head")


def test_axolotl_leaves_the_language_model_unfrozen(tmp_path: Path) -> None:
    """Of a model that sees; any other has no parameter of that name, and all of them are not part of it."""
    patterns = "unfrozen_parameters: [^model.language_model.*, lm_head.*]\n"
    sees = AXOLOTL.replace("Qwen/Qwen2.5-0.5B", "Qwen/Qwen3.5-0.8B")
    assert set(recipe_of(tmp_path, sees + patterns).recipe.frozen) == {"vision_tower", "projector"}
    with pytest.raises(UsageError, match="no vision tower"):
        recipe_of(tmp_path, AXOLOTL + patterns)
    with pytest.raises(NotModelledError):
        recipe_of(tmp_path, sees + patterns.replace("model.language_model.*", "model.visual.*"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (FACTORY + "freeze_trainable_modules: mlp\n", "some modules"),
        (FACTORY + "freeze_extra_modules: visual\n", "visual"),
        (FACTORY + "freeze_extra_modules: embed_tokens,norm\n", "'norm' is not modelled"),
        (AXOLOTL + "unfrozen_parameters: ['model.layers.2[0-9]+.self_attn']\n", "whole layers"),
        (
            AXOLOTL
            + "unfrozen_parameters: ['^lm_head.weight$', 'model.layers.2[0-9]+.block_sparse_moe.experts']\n"
            + "local_rank:\n",
            "whole feed-forward parts",
        ),
    ],
)
def test_parts_of_layers_are_refused(text: str, says: str, tmp_path: Path) -> None:
    """Nothing that trains some matrices of a layer is taken for whole layers, or for none."""
    with pytest.raises(NotModelledError, match=says):
        recipe_of(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        FACTORY.replace("freeze", "lora") + "use_dora: true\nuse_rslora: true\n",
        AXOLOTL
        + "adapter: lora\nlora_r: 8\nlora_target_linear: true\npeft_use_dora: true\npeft_use_rslora: true\n"
        "lora_mlp_kernel: false\n",
        (
            "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_peft: true\nlora_r: 8\nmax_length: 512\nuse_dora: "
            "true\nuse_rslora: true\n"
        ),
    ],
    ids=["llama-factory", "axolotl", "trl"],
)
def test_dora_by_each_tools_key(text: str, tmp_path: Path) -> None:
    """DoRA is counted; rsLoRA is another scaling, which changes nothing."""
    adapter = recipe_of(tmp_path, text).recipe.adapter
    assert adapter is not None
    assert adapter.dora


def test_rotations_of_llama_factory(tmp_path: Path) -> None:
    """OFT has no LoRA matrices, whatever the file says of them, and the targets of LoRA."""
    text = (
        FACTORY.replace("freeze", "oft")
        + "oft_block_size: 64\nlora_rank: 8\nlora_target: q_proj\noft_target: all\n"
    )
    adapter = recipe_of(tmp_path, text).recipe.adapter
    assert (adapter.oft_block_size, adapter.rank, adapter.targets) == (64, 0, ("q_proj",))
    assert recipe_of(tmp_path, FACTORY.replace("freeze", "oft")).recipe.adapter.oft_block_size == 32
    with pytest.raises(NotModelledError, match="oft_rank"):
        recipe_of(tmp_path, FACTORY.replace("freeze", "oft") + "oft_rank: 8\n")


def test_no_number_of_layers(tmp_path: Path) -> None:
    """A number that is none."""
    with pytest.raises(InputFileError, match="whole number"):
        recipe_of(tmp_path, FACTORY + "freeze_trainable_layers: 0\n")


@pytest.mark.parametrize("name", ["adam_mini", "muon"])
def test_llama_factorys_own_optimizers(name: str, tmp_path: Path) -> None:
    """They take the place of what ``optim`` says."""
    text = FACTORY.replace("freeze", "full") + f"use_{name}: true\noptim: adamw_torch\n"
    assert recipe_of(tmp_path, text).recipe.optimizer == name


def test_apollo_steps_inside_of_backward_on_one_gpu(tmp_path: Path) -> None:
    """The rank of the file, or LLaMA-Factory's; several GPUs it refuses itself."""
    text = (
        FACTORY.replace("freeze", "full").replace("Qwen/Qwen2.5-0.5B", "meta-llama/Llama-3.1-8B")
        + "use_apollo: true\noptim: adamw_torch\n"
    )
    recipe = recipe_of(tmp_path, text + "apollo_layerwise: true\napollo_rank: 128\n").recipe
    assert (recipe.optimizer, recipe.optimizer_rank) == ("apollo_adamw", 128)
    assert recipe.optimizer_in_backward
    assert recipe_of(tmp_path, text).recipe.optimizer_rank == 16
    with pytest.raises(UsageError, match=r"refuses layer-wise APOLLO .*refused-by-its-tool"):
        recipe_of(tmp_path, text + "apollo_layerwise: true\n", "a100-80-sxm:8")


def test_badam_is_counted_at_the_first_layer(tmp_path: Path) -> None:
    """Weights stay in 16 bits, in the dtype of the checkpoint where the file says none;
    several GPUs its tool refuses.
    """
    text = FACTORY.replace("freeze", "full").replace("bf16: true\n", "") + "use_badam: true\n"
    scenario = recipe_of(tmp_path, text)
    assert (scenario.recipe.optimizer, scenario.recipe.train_layers) == ("badam", ("first:1",))
    assert scenario.recipe.numerics.precision == "bf16"
    assert not scenario.stack.trainable_fp32
    assert recipe_of(tmp_path, text + "bf16: true\n").recipe.numerics.precision == "bf16-mixed"
    with pytest.raises(UsageError, match=r"refuses BAdam .*refused-by-its-tool"):
        recipe_of(tmp_path, text, "a100-80-sxm:8")
    with pytest.raises(UsageError, match="does not go beside adapters"):
        recipe_of(tmp_path, text.replace("full", "lora"))
    for more in (
        "badam_mode: ratio",
        "badam_switch_mode: fixed",
        "optim: paged_adamw_8bit",
        "deepspeed: ds.json",
    ):
        with pytest.raises(NotModelledError):
            recipe_of(tmp_path, text + more + "\n")


def test_an_expanded_model_that_is_not_here_is_asked_for(tmp_path: Path) -> None:
    """LLaMA-Pro's script writes it to a folder; no model of that name is looked up, and none is guessed."""
    text = (
        FACTORY.replace("Qwen/Qwen2.5-0.5B", "models/mine-pro")
        + "freeze_trainable_layers: 8\nuse_llama_pro: true\n"
    )
    with pytest.raises(UsageError, match=r"models/mine-pro is a model expanded .* --model .* trains 8"):
        recipe_of(tmp_path, text)


@pytest.mark.parametrize("name", ["~nosuchuser/pro", "models/" + "x" * 5000, "models/\\0"])
def test_the_folder_of_an_expanded_model_may_be_no_path(name: str, tmp_path: Path) -> None:
    """It is asked for all the same."""
    text = (
        FACTORY.replace("Qwen/Qwen2.5-0.5B", f'"{name}"')
        + "freeze_trainable_layers: 8\nuse_llama_pro: true\n"
    )
    with pytest.raises(PlannerError):
        recipe_of(tmp_path, text)


def test_the_expanded_model_of_the_tools_own_example_is_known(tmp_path: Path) -> None:
    """Its script adds 8 layers to Llama 3 8B, of which the file trains every fifth;
    with another count it says too little.
    """
    text = FACTORY.replace("Qwen/Qwen2.5-0.5B", "models/llama3-8b-pro") + "use_llama_pro: true\n"
    scenario = recipe_of(tmp_path, text + "freeze_trainable_layers: 8\n")
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert scenario.model.param_count == 8_030_261_248 + 8 * layer
    assert sorted(parts_of(scenario.model, scenario.recipe).layers) == [4, 9, 14, 19, 24, 29, 34, 39]
    with pytest.raises(UsageError, match="is a model expanded"):
        recipe_of(tmp_path, text + "freeze_trainable_layers: 4\n")


def test_lisa_draws_layers_and_keeps_the_states_of_all(tmp_path: Path) -> None:
    """Weights of two layers get gradients, and every layer has states;
    behind DDP the tool stops.
    """
    text = AXOLOTL + "lisa_n_layers: 2\nlisa_step_interval: 20\n"
    scenario = recipe_of(tmp_path, text)
    assert scenario.recipe.train_layers == ("drawn:2@20", "embed", "norm", "head")
    everything = recipe_of(tmp_path, AXOLOTL)
    assert states_of(scenario) == states_of(everything)
    assert trained_parts(("drawn:2@20",), 24, tied=True).layers == {22, 23}
    with pytest.raises(UsageError, match=REFUSED_BY_TOOL):
        recipe_of(tmp_path, text, "a100-80-sxm:2")
    with pytest.raises(NotModelledError, match="adapter"):
        recipe_of(tmp_path, text + "adapter: lora\n")


@pytest.mark.parametrize(("count", "interval", "steps"), [(4, 20, 520), (1, 5, 550), (32, 7, 0)])
def test_the_step_when_all_layers_were_drawn(count: int, interval: int, steps: int) -> None:
    """Of 32 layers 32 x (28 / 32)^n are never drawn in n draws of four: 1.1 after 25, 0.99 after 26."""
    assert Drawn(count, interval).steps_to_all(32) == steps


def states_of(scenario: Scenario) -> float:
    """Bytes of the optimizer's states after a step."""
    job = job_of(scenario, Coefficients())
    stream = step_of(job)
    sizes = stream.sizes(unit_values(job))  # type: ignore[arg-type]
    return sum(sizes[slot] for slot in stream.state_slots() if stream.term(slot) == "optimizer_states")
