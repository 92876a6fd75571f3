"""Config files with any value under any key: an answer or one sentence, never a traceback."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hostile.seeds import CONFIG_KEYS
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.configs.read import TOOLS
from planner.errors import PlannerError
from planner.intake.given.config_file import read_config_file, with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.words import words
from tests.files import written

# Every word that the readers know as a key, and those that they ask for by name.
KEYS = sorted(
    {
        *CONFIG_KEYS,
        *words(
            """
        model_name_or_path finetuning_type lora_target quantization_bit quantization_type flash_attn stage
        packing neat_packing bf16 fp16 pure_bf16 optim deepspeed fsdp fsdp_config max_steps
        gradient_checkpointing gradient_checkpointing_kwargs adapter load_in_4bit load_in_8bit optimizer
        attn_implementation model_init_kwargs plugins zero_optimization train_batch_size offload_optimizer
        offload_param device stage distributed_type num_processes num_machines deepspeed_config
        """
        ),
    }
)
WORDS = [
    "auto",
    "true",
    "lora",
    "full",
    "qlora",
    "nf4",
    "2e8",
    "cpu",
    "FSDP",
    "full_shard",
    "flash_attention_2",
    "7b",
    "",
    "-1",
    "\x00",
]
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2**70), st.floats(), st.sampled_from(WORDS), st.text(max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=6,
)
FLAGS = {"gpu": "a100-80-sxm:2"}


@pytest.mark.parametrize("tool", sorted(TOOLS))
@settings(max_examples=40)
@given(table=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8))
@example(table={"cutoff_len": []})
def test_a_file_of_any_values_is_answered_or_refused(tool: str, table: dict[str, object]) -> None:
    """Reading, merging and resolving end in a scenario or in one printable error of ours."""
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), table, "a.json")
        try:
            config = read_config_file(path, tool)
            resolve(with_flags(config, from_flags(FLAGS | {"model": "qwen2.5-0.5b"})), force=True)
        except PlannerError as error:
            assert str(error)  # noqa: PT017  (an empty message is never right)
