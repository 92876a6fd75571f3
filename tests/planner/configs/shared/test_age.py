"""What a file is read as where a key tells its age, for every tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.catalog.stacks import load_stack
from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.read import read_config
from planner.configs.said_by_file import Reading
from planner.errors import NotModelledError
from tests.files import written

TRAINER = "model_name_or_path: gpt2\nper_device_train_batch_size: 2\n"
LLAMA_FACTORY = "model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: lora\ntemplate: qwen\nbf16: true\n"
AXOLOTL = "base_model: Qwen/Qwen2.5-0.5B\nadapter: lora\nmicro_batch_size: 1\n"
DPO = "rpo_alpha: 0\nbeta: 0.1\n"


def reading_of(folder: Path, text: str, tool: str) -> Reading:
    """What is read of a file."""
    path = written(folder, text)
    return read_config(path, tool, Beside(look=False))


@pytest.mark.parametrize(
    ("tool", "text", "stack"),
    [
        ("llama-factory", LLAMA_FACTORY + "evaluation_strategy: steps\n", "llama-factory@0.8"),
        ("llama-factory", LLAMA_FACTORY + "overwrite_cache: true\nuse_swanlab: false\n", "llama-factory@0.9"),
        ("axolotl", AXOLOTL + "wandb_run_id:\n", "axolotl@0.3"),
        ("axolotl", AXOLOTL + "local_rank:\n", "axolotl@0.8"),
        ("axolotl", AXOLOTL + "flash_attention: true\n", "axolotl@0.13"),
        ("trl", TRAINER + "max_seq_length: 512\n", "trl@0"),
        ("trl", TRAINER + "torch_dtype: bfloat16\n", "trl@0.24"),
        ("trl", TRAINER + "num_generations: 4\nmax_prompt_length: 512\n", "trl@0.24"),
        ("trl", TRAINER + DPO + "max_prompt_length: 512\n", "trl@0.24"),
        ("transformers", TRAINER + "evaluation_strategy: steps\n", "hf-trainer@4"),
    ],
)
def test_a_file_is_read_as_the_software_that_is_counted(
    tmp_path: Path, tool: str, text: str, stack: str
) -> None:
    """Its name begins the title of the stack, and defaults are those of no other."""
    reading = reading_of(tmp_path, text, tool)
    assert reading.value("stack") == stack
    assert load_stack(stack).title.startswith(reading.tool)
    defaults = {said.origin for said in reading.said.values() if said.origin.startswith("default of ")}
    assert defaults <= {f"default of {reading.tool}"}


@pytest.mark.parametrize(
    ("tool", "text", "stack"),
    [
        ("llama-factory", LLAMA_FACTORY, "llama-factory@0.8"),
        ("llama-factory", LLAMA_FACTORY + "evaluation_strategy: steps\n", "llama-factory@0.9"),
        ("llama-factory", LLAMA_FACTORY + "evaluation_strategy: steps\n", "llama-factory"),
        ("axolotl", AXOLOTL, "axolotl@0.8"),
        ("trl", TRAINER + "max_seq_length: 512\n", "trl"),
    ],
)
def test_a_file_is_read_as_the_software_that_is_asked_for(
    tmp_path: Path, tool: str, text: str, stack: str
) -> None:
    """Whatever its keys say."""
    path = written(tmp_path, text)
    assert read_config(path, tool, Beside(look=False, stack=stack)).value("stack") == stack


def test_a_default_is_that_of_the_version_that_is_asked_for(tmp_path: Path) -> None:
    """``cutoff_len`` is 1,024 up to LLaMA-Factory 0.8 and 2,048 since."""
    path = written(tmp_path, LLAMA_FACTORY)
    assert read_config(path, None, Beside(look=False)).value("seq") == 2048
    old = read_config(path, None, Beside(look=False, stack="llama-factory@0.8"))
    assert (old.value("seq"), "1,024" in old.needs["seq"]) == (None, True)


OWN = "trust_remote_code: true\n"


@pytest.mark.parametrize(
    ("tool", "text", "remarked"),
    [
        ("axolotl", AXOLOTL.replace("Qwen/Qwen2.5-0.5B", "tiiuae/falcon-7b") + OWN, True),
        ("axolotl", AXOLOTL.replace("Qwen/Qwen2.5-0.5B", "tiiuae/falcon-7b"), False),
        ("axolotl", AXOLOTL.replace("Qwen/Qwen2.5-0.5B", "nobody/mpt-7b-chat-tuned") + OWN, True),
        # No class of Transformers: its own code is what is counted.
        ("axolotl", AXOLOTL.replace("Qwen/Qwen2.5-0.5B", "Qwen/Qwen-7B") + OWN, False),
        ("axolotl", AXOLOTL + OWN, False),
        ("trl", TRAINER.replace("gpt2", "microsoft/phi-2") + OWN, True),
        (
            "trl",
            TRAINER.replace("gpt2", "microsoft/phi-2") + "model_init_kwargs: {trust_remote_code: true}\n",
            True,
        ),
        ("llama-factory", LLAMA_FACTORY.replace("Qwen/Qwen2.5-0.5B", "tiiuae/falcon-7b"), False),
        # Up to 0.9.1 such code is trusted whatever the file says.
        (
            "llama-factory",
            LLAMA_FACTORY.replace("Qwen/Qwen2.5-0.5B", "tiiuae/falcon-7b") + "overwrite_cache: true\n",
            True,
        ),
        ("llama-factory-v1", "model: deepseek-ai/DeepSeek-V2-Lite\n" + OWN, True),
    ],
)
def test_code_of_a_checkpoints_own_is_told(tmp_path: Path, tool: str, text: str, remarked: bool) -> None:
    """Once, where it runs in place of the class that is counted."""
    remarks = [remark.text for remark in reading_of(tmp_path, text, tool).remarks]
    assert sum("code of their own" in text for text in remarks) == remarked


def test_own_code_that_differs_is_refused(tmp_path: Path) -> None:
    """Trinity's has experts that quantisers reach, which are tensors in the class of Transformers."""
    text = AXOLOTL.replace("Qwen/Qwen2.5-0.5B", "arcee-ai/Trinity-Nano-Preview")
    with pytest.raises(NotModelledError, match="own code of arcee-ai/Trinity-Nano-Preview"):
        reading_of(tmp_path, text + OWN, "axolotl")
    assert reading_of(tmp_path, text, "axolotl").value("model") == "arcee-ai/Trinity-Nano-Preview"
