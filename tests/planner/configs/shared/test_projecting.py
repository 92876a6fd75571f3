"""APOLLO and GaLore in files of four tools: what is projected, to which rank, and when parameters step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.errors import NotModelledError, UsageError
from planner.intake.given.config_file import read_config_file, with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve

TRL = "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_peft: false\n"
AXOLOTL = "base_model: Qwen/Qwen2.5-0.5B\nbf16: true\ndatasets: []\nsequence_len: 1024\n"
FACTORY = (
    "model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: full\ntemplate: qwen\nbf16: true\n"
    "use_galore: true\n"
)
SWIFT = "model: Qwen/Qwen2.5-0.5B\ntuner_type: full\nmax_length: 2048\nuse_galore: true\n"
LAYERS = "optim_target_modules: [attn, mlp]\n"


def scenario_of(folder: Path, text: str, gpu: str = "a100-80-sxm") -> Any:
    """The job of a file."""
    path = folder / "train.yaml"
    path.write_text(text, encoding="utf-8")
    return resolve(with_flags(read_config_file(path, None, Beside()), from_flags({"gpu": gpu, "seq": 512})))


@pytest.mark.parametrize(
    ("text", "optimizer", "rank", "in_backward"),
    [
        (TRL + LAYERS + "optim: galore_adamw\n", "galore_adamw", 128, False),
        (
            TRL + LAYERS + "optim: galore_adamw_8bit\noptim_args: 'rank=64, scale=0.1'\n",
            "galore_adamw_8bit",
            64,
            False,
        ),
        (TRL + LAYERS + "optim: galore_adafactor\n", "galore_adafactor", 128, False),
        (TRL + LAYERS + "optim: galore_adamw_layerwise\n", "galore_adamw", 128, True),
        (TRL + LAYERS + "optim: apollo_adamw_layerwise\n", "apollo_adamw", 128, True),
        (TRL + "optim: apollo_adamw\noptim_target_modules: '.*(attn|mlp).*'\n", "apollo_adamw", 128, False),
        (AXOLOTL + LAYERS + "optimizer: galore_adamw\noptim_args: {rank: 256}\n", "galore_adamw", 256, False),
        (FACTORY + "optim: adamw_torch\ngalore_rank: 8\n", "galore_adamw", 8, False),
        (FACTORY + "optim: adamw_8bit\ngalore_target: mlp,self_attn\n", "galore_adamw_8bit", 16, False),
        (FACTORY + "optim: adafactor\ngalore_layerwise: true\n", "galore_adafactor", 16, True),
        (SWIFT, "galore_adamw", 128, False),
        (SWIFT + "optim: adamw_bnb_8bit\ngalore_rank: 32\n", "galore_adamw_8bit", 32, False),
        (SWIFT + "optim: adafactor\ngalore_optim_per_parameter: true\n", "galore_adafactor", 128, False),
        (SWIFT + "optimizer: default\n", "adamw_torch_fused", None, False),
    ],
)
def test_which_optimizer_a_file_asks_for(
    tmp_path: Path, text: str, optimizer: str, rank: int | None, in_backward: bool
) -> None:
    """Its rank is the file's, or the tool's own."""
    recipe = scenario_of(tmp_path, text).recipe
    assert (recipe.optimizer, recipe.optimizer_rank) == (optimizer, rank)
    assert recipe.optimizer_in_backward is in_backward


@pytest.mark.parametrize(
    ("text", "head"),
    [
        (TRL + LAYERS + "optim: galore_adamw\n", False),
        (TRL + "optim: galore_adamw\noptim_target_modules: all-linear\n", True),
        (AXOLOTL + "optimizer: galore_adamw\noptim_target_modules: all_linear\n", True),
        (TRL + "optim: galore_adamw\noptim_target_modules: [attn, mlp, lm_head]\n", True),
        (FACTORY + "optim: adamw_torch\ngalore_target: all\n", False),
        (FACTORY + "optim: adamw_torch\ngalore_target: self_attn,mlp,lm_head\n", True),
        (SWIFT + "galore_target_modules: [self_attn, mlp, lm_head]\n", True),
    ],
)
def test_whether_the_head_is_projected(tmp_path: Path, text: str, head: bool) -> None:
    """Transformers' ``all-linear`` takes every linear layer; LLaMA-Factory's ``all`` leaves the head out."""
    assert scenario_of(tmp_path, text).stack.projects_head is head


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TRL + "optim: galore_adamw\noptim_target_modules: [attn]\n", "some matrices only"),
        (TRL + "optim: galore_adamw\noptim_target_modules: '.*attn.*'\n", "some matrices only"),
        (TRL + LAYERS + "optim: galore_adamw\noptim_args: proj_type=full\n", "proj_type 'full'"),
        (TRL + LAYERS + "optim: apollo_adamw\noptim_args: proj=svd\n", "proj 'svd'"),
        (TRL + LAYERS + "optim: adamw_torch_layerwise\n", "adamw_torch_layerwise"),
        (FACTORY + "optim: adamw_torch\ngalore_target: q_proj\n", "some matrices only"),
        (FACTORY + "optim: adamw_torch\ngalore_proj_type: left\n", "galore_proj_type: 'left'"),
        (FACTORY + "optim: paged_adamw_8bit\n", "paged states"),
        (SWIFT + "galore_quantization: true\n", "Q-GaLore"),
        (SWIFT + "galore_with_embedding: true\n", "token table"),
        (SWIFT + "galore_proj_type: right\n", "another projection"),
        (SWIFT + "optim: paged_adamw_8bit\n", "paged states"),
        (SWIFT + "deepspeed: zero2\n", "every GPU holds all of its states"),
    ],
)
def test_what_is_not_modelled_is_named(tmp_path: Path, text: str, why: str) -> None:
    """No verdict for another projection than the usual one over all layers."""
    with pytest.raises(NotModelledError, match=why):
        scenario_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "gpu", "why"),
    [
        (TRL + "optim: galore_adamw\n", "a100-80-sxm", "without optim_target_modules"),
        (
            TRL + LAYERS + "optim: galore_adamw_layerwise\n",
            "a100-80-sxm:2",
            "layer-wise GaLore on several GPUs",
        ),
        (
            TRL + LAYERS + "optim: apollo_adamw_layerwise\n",
            "a100-80-sxm:2",
            "layer-wise APOLLO on several GPUs",
        ),
        (
            TRL + LAYERS + "optim: galore_adamw_layerwise\ngradient_accumulation_steps: 2\n",
            "a100-80-sxm",
            "gradient_accumulation_steps above 1",
        ),
        (TRL + LAYERS + "optim: galore_adafactor_layerwise\n", "a100-80-sxm", "at its learning rate"),
        (
            FACTORY + "optim: adamw_torch\ngalore_layerwise: true\n",
            "a100-80-sxm:8",
            "LLaMA-Factory refuses layer-wise",
        ),
        (FACTORY + "optim: sgd\n", "a100-80-sxm", "LLaMA-Factory stops beside optim sgd"),
        (SWIFT + "optim: sgd\n", "a100-80-sxm", "ms-swift stops"),
    ],
)
def test_what_the_tool_stops_at_is_its_refusal(tmp_path: Path, text: str, gpu: str, why: str) -> None:
    """The libraries stop with an error; so does the check."""
    with pytest.raises(UsageError, match=f"{why}.*refused-by-its-tool"):
        scenario_of(tmp_path, text, gpu)


def test_a_rank_that_is_none_is_an_error(tmp_path: Path) -> None:
    """A typing error is not taken for the default."""
    with pytest.raises(UsageError, match="a rank of 1 to 65,536"):
        scenario_of(tmp_path, TRL + LAYERS + "optim: galore_adamw\noptim_args: rank=none\n")


@pytest.mark.parametrize("text", [f"{TRL}optim: ", f"{AXOLOTL}optimizer: "])
def test_matrices_are_told_of_where_nothing_is_projected(tmp_path: Path, text: str) -> None:
    """Not where they are heeded."""
    path = tmp_path / "train.yaml"
    for optimizer, told in (("galore_adamw", False), ("adamw_torch", True)):
        path.write_text(f"{text}{optimizer}\n{LAYERS}", encoding="utf-8")
        remarks = read_config_file(path, None, Beside()).remarks
        assert any("GaLore alone" in each.text for each in remarks) is told


def test_details_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    """Transformers stops at a list."""
    with pytest.raises(UsageError, match="text such as rank=64"):
        scenario_of(tmp_path, TRL + LAYERS + "optim: galore_adamw\noptim_args: [rank, 64]\n")
