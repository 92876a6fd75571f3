"""Axolotl's files by the age of the software that they are for: dtypes and packages of 2023 to 2025-03."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.errors import InputFileError, UsageError
from planner.intake.given.config_file import read_config_file
from tests.files import filled, read

LORA = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\nadapter: lora\nlora_r: 16\n"
LLAMA = LORA.replace("Qwen/Qwen2.5-0.5B", "huggyllama/llama-7b")
QLORA = "sequence_len: 512\nadapter: qlora\nload_in_4bit: true\nbase_model: "
INT8 = QLORA.replace("qlora", "lora").replace("4bit", "8bit")
OLD = "wandb_run_id:\nflash_attention: true\nbf16: true\n"
MISTRAL = OLD + "base_model: mistralai/Mistral-7B-v0.1\nsequence_len: 512\n"


def test_axolotl_of_2023_cast_back_what_flash_attention_needs_for_llama_only(tmp_path: Path) -> None:
    """A full fine-tune of another model kept embeddings,
    head and norms in fp32 then (utils/models.py of 2023-11, line 431).
    """
    assert "widens_ends=true" in read(tmp_path, MISTRAL).request.get("switches")
    for text in (
        MISTRAL.replace("mistralai/Mistral-7B-v0.1", "huggyllama/llama-7b"),
        MISTRAL.replace("wandb_run_id", "local_rank"),
    ):
        config = read(tmp_path, text)
        assert config.request.get("method") == "full"
        assert "widens_ends=true" not in (config.request.get("switches") or ())
    assert read(tmp_path, MISTRAL + "adapter: lora\nlora_r: 8\n").request.get("method") == "lora"


@pytest.mark.parametrize(
    ("text", "upcast"),
    [
        (QLORA + "Qwen/Qwen-7B\n", "all"),
        (QLORA + "EleutherAI/gpt-j-6b\nlora_o_kernel: false\n", "all"),
        (QLORA + "cerebras/Cerebras-GPT-1.3B\nlora_o_kernel: false\n", "all"),
        (INT8 + "EleutherAI/gpt-j-6b\n", "all"),
        # Axolotl prepares no Qwen with adapter: lora, and has known the names of GPT-NeoX since 2024.
        (INT8 + "Qwen/Qwen-7B\n", "none"),
        (INT8 + "EleutherAI/pythia-1.4b\n", "layers"),
        (INT8 + "EleutherAI/pythia-1.4b\nwandb_run_id:\n", "all"),
        (QLORA + "Qwen/Qwen2.5-7B\n", "layers"),
        (QLORA + "EleutherAI/gpt-j-6b\nfsdp: [full_shard]\n", "layers"),
    ],
)
def test_k_bit_preparation_stays_where_axolotl_does_not_know_the_names(
    tmp_path: Path, text: str, upcast: str
) -> None:
    """Modules return to 16 bits by name: norm, embed_tokens, lm_head and those of a few families."""
    config = read(tmp_path, text)
    stack = filled(config, {"gpu": "a100-80-sxm", "gpus": 2}).stack
    assert stack.kbit_upcast == upcast
    assert any("stay in fp32" in remark.text for remark in config.remarks) == (upcast == "all")


@pytest.mark.parametrize(
    ("text", "upcast"),
    [
        (INT8 + "Qwen/Qwen2.5-0.5B\nrl: dpo\nlocal_rank:\n", "all"),
        (QLORA + "Qwen/Qwen2.5-0.5B\nrl: kto\nlocal_rank:\n", "norms"),
        (QLORA + "Qwen/Qwen2.5-0.5B\nrl: orpo\nlocal_rank:\nbf16: false\nfp16: true\n", "all"),
        # TRL has not prepared bases since 0.27, and a supervised fine-tune does without it.
        (INT8 + "Qwen/Qwen2.5-0.5B\nrl: dpo\n", "layers"),
        (INT8 + "Qwen/Qwen2.5-0.5B\nlocal_rank:\n", "layers"),
        (LORA + "rl: dpo\nlocal_rank:\n", "layers"),
    ],
)
def test_trl_prepared_a_quantised_base_of_preferences_once_more(
    tmp_path: Path, text: str, upcast: str
) -> None:
    """Its trainers get the base and the configuration of the adapters (trl 0.15.2 trainer/dpo_trainer.py)."""
    config = read(tmp_path, text)
    stack = filled(config, {"gpu": "a100-80-sxm"}).stack
    assert stack.kbit_upcast == upcast
    assert any("once more" in remark.text for remark in config.remarks) == (upcast != "layers")


@pytest.mark.parametrize(
    "since", ["", "wandb_name:\n", "evals_per_epoch: 4\n", "bf16: auto\n", "chat_template: chatml\n"]
)
def test_a_key_that_came_later_is_not_for_axolotl_of_2023(tmp_path: Path, since: str) -> None:
    """An example file of StarCoder2, of 2024, still has ``wandb_run_id``."""
    request = read(tmp_path, LORA + "wandb_run_id:\n" + since).request
    assert request.get("stack") == ("axolotl@0.8" if since else "axolotl@0.3")
    assert (request.get("attention") == "eager") is (not since)


@pytest.mark.parametrize("text", ["max_packed_sequence_len: 512\n", "tokens:\n  bos_token: <s>\n"])
def test_values_that_ended_in_2024_are_of_2023_or_stop_the_tool(tmp_path: Path, text: str) -> None:
    """The schema since 0.4.1 raises at a length of packs and at tokens that are no list; at an empty key and
    at a list it does not.
    """
    assert read(tmp_path, LORA + text).request.get("stack") == "axolotl@0.3"
    name = text.partition(":")[0]
    for since in ("evals_per_epoch: 4\nlocal_rank:\n", "evals_per_epoch: 4\n"):
        with pytest.raises(UsageError, match=f"{name}: Axolotl since 0.4.1 stops"):
            read(tmp_path, LORA + text + since)
    path = tmp_path / "train.yaml"
    with pytest.raises(UsageError, match=f"{name}: Axolotl since 0.4.1 stops"):
        read_config_file(path, beside=Beside(stack="axolotl"))
    assert read_config_file(path, beside=Beside(stack="axolotl@0.3")).request.get("stack") == "axolotl@0.3"
    assert read(tmp_path, LORA + f"{name}:\nlocal_rank:\n").request.get("stack") == "axolotl@0.8"


def test_a_list_of_tokens_is_of_any_age(tmp_path: Path) -> None:
    """They are added to the vocabulary."""
    assert read(tmp_path, LORA + "tokens: ['<|im_start|>']\n").request.get("stack") == "axolotl"


@pytest.mark.parametrize("since", ["eval_strategy: steps\n", "plugins: []\n"])
def test_a_key_that_is_still_one_tells_no_age_beside_newer_ones(tmp_path: Path, since: str) -> None:
    """``wandb_run_id`` has a place in the schema of today; other keys of 2023 and 2024 went out of use."""
    assert read(tmp_path, LORA + "wandb_run_id: mine\n" + since).request.get("stack") == "axolotl"
    older = read(tmp_path, LORA + "is_llama_derived_model: true\n" + since)
    assert older.request.get("stack") == "axolotl@0.8"


@pytest.mark.parametrize(
    ("text", "reentrant"),
    [
        ("rl: dpo\n", False),
        ("rl: dpo\nlocal_rank:\n", False),
        ("rl: dpo\nlocal_rank:\ngradient_checkpointing_kwargs: {use_reentrant: true}\n", True),
        ("local_rank:\n", True),
        ("", True),
    ],
)
def test_preferences_are_checkpointed_without_reentry(tmp_path: Path, text: str, reentrant: bool) -> None:
    """The builder of their trainers says so where the file does not, in every version since 2024-08."""
    request = read(tmp_path, LORA + "gradient_checkpointing: true\n" + text).request
    assert request.get("checkpoint_reentrant") is reentrant


def test_axolotl_of_2023_ran_with_the_packages_of_its_time(tmp_path: Path) -> None:
    """bitsandbytes 0.41 kept what 0.45 lets go, PEFT 0.6 made adapters in the base's dtype, and the modeling
    code was that of Transformers 4.36.
    """
    found = [
        filled(read(tmp_path, LLAMA + "bf16: true\n" + key), {"gpu": "a100-80-sxm"})
        for key in ("wandb_run_id:\n", "local_rank:\n")
    ]
    assert [each.stack.int8_keeps_quantized_input for each in found] == [True, False]
    assert [each.stack.model_code for each in found] == ["transformers-4", "transformers-5"]
    assert [each.recipe.adapter.dtype for each in found if each.recipe.adapter] == ["bf16", "fp32"]


@pytest.mark.parametrize(
    ("text", "storage"), [("", "bf16"), ("local_rank:\n", "bf16"), ("wandb_run_id:\n", None)]
)
def test_axolotl_of_2023_left_the_stored_dtype_to_bitsandbytes(
    tmp_path: Path, text: str, storage: str | None
) -> None:
    """bnb_4bit_quant_storage came in 2024-03 (pull request 1378)."""
    assert read(tmp_path, QLORA + "huggyllama/llama-7b\n" + text).request.get("quant_storage") == storage


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("local_rank:\n", True),
        ("local_rank:\nflash_attention: true\n", False),
        ("local_rank:\npretraining_dataset: [a]\n", False),
        ("sdp_attention: true\n", False),
        ("", True),
    ],
)
def test_a_pack_has_a_mask_where_samples_are_told_apart(tmp_path: Path, text: str, masked: bool) -> None:
    """Up to 0.8 torch's fused attention gets it, as that of padding; 0.19 has a kernel for it,
    if the file names sdpa.
    """
    config = read(tmp_path, LORA + "sample_packing: true\n" + text)
    scenario = filled(config, {"gpu": "a100-80-sxm"})
    assert (scenario.recipe.attention == "sdpa") is ("flash" not in text)
    assert scenario.stack.masks_samples(scenario.recipe) is masked


@pytest.mark.parametrize(
    ("text", "optimizer"),
    [
        (LORA + "local_rank:\n", "adamw_hf"),
        (LORA + "wandb_run_id:\n", "adamw_hf"),
        (LORA + "local_rank:\noptimizer: adamw_torch\n", "adamw_torch"),
        (LORA + "optimizer: adamw_hf\n", "adamw_hf"),
        (LORA, None),
    ],
)
def test_the_optimizer_where_a_file_names_none(tmp_path: Path, text: str, optimizer: str | None) -> None:
    """Up to 0.7 that of Transformers, whose name alone tells the age; newer stacks have a default."""
    config = read(tmp_path, text)
    assert config.request.get("optimizer") == optimizer
    stack = filled(config, {"gpu": "a100-80-sxm"}).stack
    assert (stack.id == "axolotl") is (optimizer is None)


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        (LORA + "local_rank:\n", "axolotl@0.8"),
        (LORA.replace("Qwen2.5-0.5B", "Qwen3-0.6B") + "local_rank:\n", "axolotl@0.8"),
        (LORA.replace("Qwen/Qwen2.5-0.5B", "HuggingFaceTB/SmolLM3-3B") + "local_rank:\n", "axolotl"),
        (LORA.replace("Qwen2.5-0.5B", "Qwen3-0.6B") + "flash_attention: true\n", "axolotl@0.13"),
        # Its decoder came with 5.0, later than the class that is named.
        (
            LORA.replace("Qwen/Qwen2.5-0.5B", "mistralai/Ministral-3-3B-Base-2512") + "local_rank:\n",
            "axolotl",
        ),
        (LORA + "load_in_4bit: true\n", "axolotl@0.13"),
        (LORA + "load_in_4bit: true\nload_in_8bit: true\n", "axolotl"),
    ],
)
def test_a_model_and_a_base_in_4_bits_tell_the_age(tmp_path: Path, text: str, stack: str) -> None:
    """0.8 asks for Transformers 4.51.  ``adapter: lora`` over 4 bits stops since 0.13."""
    assert read(tmp_path, text).request.get("stack") == stack


@pytest.mark.parametrize(("name", "sharding"), [("zero1", "zero1"), ("zero2", "zero2"), ("zero3", "zero3")])
def test_the_folder_of_2023_is_axolotl_s_alone(tmp_path: Path, name: str, sharding: str) -> None:
    """Its files named AdamW, which takes the place of the file's own optimizer."""
    text = f"deepspeed: deepspeed/{name}.json\nbf16: true\n"
    request = read(tmp_path, LORA + "optimizer: adamw_bnb_8bit\nlocal_rank:\n" + text).request
    assert request.get("sharding") == sharding
    assert request.get("optimizer").startswith("adamw_torch")
    other = "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nfinetuning_type: lora\ntemplate: qwen\n"
    with pytest.raises(InputFileError, match="neither beside this file"):
        read(tmp_path, other + "dataset: notes\n" + text)


@pytest.mark.parametrize(("mark", "reentrant"), [("local_rank:\n", True), ("flash_attention: true\n", False)])
def test_frozen_weights_are_not_checkpointed_by_reentry_since_0_10(
    tmp_path: Path, mark: str, reentrant: bool
) -> None:
    """The trainer's builder says so from 0.10.1 on, where the file names what is trained and nothing else."""
    text = "base_model: Qwen/Qwen2.5-0.5B\nmicro_batch_size: 1\ngradient_checkpointing: true\n"
    text += 'unfrozen_parameters: ["^lm_head.weight$"]\n'
    assert read(tmp_path, text + mark).request.get("checkpoint_reentrant") is reentrant
