"""Config files of every tool, mutated: ``plan check``,
``plan --config`` and ``plan search --config`` answer or refuse.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hostile.harness import assert_sound, examples
from hostile.mutations import damaged, encoded, mutated
from hostile.seeds import CONFIG_KEYS, CONFIGS, EXAMPLES, config, written
from hypothesis import example, given
from hypothesis import strategies as st

from planner.configs.read import TOOL_NAMES
from planner.intake.given.fields import REQUEST_FIELDS

# What most files leave open, so that a mutated one gets past the questions for it.
REST = ("--gpu", "a100-80-sxm:2", "--model", "qwen2.5-0.5b", "--force")
COMMANDS = (
    ("check", "{file}", *REST),
    ("check", "{file}", *REST, "--json"),
    ("check", "{file}", "--gpu", "4090"),
    ("check", "{file}", "--gpu", "4090", "--model", "llama-3.1-70b", "--write", "{out}"),
    ("check", "{file}", "{sound}", *REST, "--format", "markdown"),
    ("check", "{sound}", *REST, "--accelerate", "{file}"),
    ("check", "{sound}", *REST, "--deepspeed", "{file}"),
    ("--config", "{file}", *REST, "--explain"),
    ("--config", "{file}", *REST, "--json"),
    ("search", "--config", "{file}", *REST[:4]),
)


@st.composite
def contents(draw: st.DrawFn) -> tuple[str, bytes]:
    """The suffix and the content of a config."""
    name = draw(st.sampled_from(CONFIGS))
    keys = list(REQUEST_FIELDS) if name.endswith(".toml") else CONFIG_KEYS
    suffix = draw(st.sampled_from([Path(name).suffix] * 8 + [".yaml", ".json", ".toml", ".sh", ".txt", ""]))
    return suffix, draw(damaged(encoded(written(draw(mutated(config(name), keys)), suffix))))


@examples(16)
@given(contents(), st.sampled_from(COMMANDS), st.sampled_from([None] * 4 + list(TOOL_NAMES)))
@example((".yaml", b"base_model: {{ model }}\n"), COMMANDS[2], None)
@example(
    (".yaml", b"model_name_or_path: gpt2\nfinetuning_type: lora\ndeepspeed: ~nosuchuser/a.json\n"),
    COMMANDS[2],
    None,
)
def test_a_mutated_config_is_answered_or_refused(
    content: tuple[str, bytes], command: tuple[str, ...], tool: str | None
) -> None:
    """Whatever a config says, there is an answer or a sentence."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(EXAMPLES / "zero3_offload.json", folder)
        file, sound = Path(folder) / f"train{content[0]}", Path(folder) / "sound.yaml"
        shutil.copy(EXAMPLES / "trl_lora.yaml", sound)
        file.write_bytes(content[1])
        places = {"file": file, "sound": sound, "out": f"{folder}/train-fits{content[0]}"}
        said = [word.format(**places) for word in command]
        assert_sound(
            "plan", *said, *(("--tool", tool) if tool and command[0] == "check" else ()), files=[file]
        )
