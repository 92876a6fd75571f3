"""Markdown files: commands that a README shows, and the config of a model card."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.api.checks import CheckJob, check_and_write, check_job, check_jobs
from planner.api.files import CheckOptions
from planner.configs.markdown import shell_of
from planner.errors import ExitCode, UsageError
from planner.intake.given.request import from_flags
from tests.files import written

COMMAND = (
    "llamafactory-cli train --model_name_or_path Qwen/Qwen2.5-0.5B --stage sft --do_train --template qwen "
    "--finetuning_type lora --dataset a --output_dir b --bf16 --cutoff_len 512"
)
CARD = """---
base_model: a/b
---
axolotl version: `{}`
```yaml
base_model: Qwen/Qwen2.5-0.5B
sequence_len: 512
micro_batch_size: 2
bf16: true
```
"""


def checked(folder: Path, text: str) -> list[object]:
    """The answers of a file: length and stack, or the exit code of what has none."""
    file = written(folder, text, "README.md")
    found = list[object]()
    for job in check_jobs([str(file)], CheckOptions(), ()):
        answer = check_job(job, from_flags({"gpu": "a100-80-sxm"}))
        scenario = answer.subject.scenario if answer.subject else None
        found.append((scenario.recipe.batch.seq_len, scenario.stack.id) if scenario else answer.exit_code)
    return found


def test_commands_of_shells_are_read() -> None:
    """Those of other languages are not, nor text that leaves a quote open."""
    text = "a\n```bash\n$ b\n```\n```python\nc\n```\n  ~~~\nd\n```\ne\n  ~~~\n```sh\nf 'g\n```\nh"
    assert shell_of(text) == "b\nd\n```\ne"


def test_a_readme_is_a_launch_script(tmp_path: Path) -> None:
    """Each of its commands that trains is a job."""
    block = f"```bash\n{COMMAND}\n```\n"
    one = checked(tmp_path, f"It's this:\n{block}")
    assert [each[0] for each in one if isinstance(each, tuple)] == [512]
    both = checked(tmp_path, block + block.replace("512", "256"))
    assert [each[0] for each in both if isinstance(each, tuple)] == [512, 256]


@pytest.mark.parametrize(
    ("version", "stack"),
    [
        ("0.4.1", "axolotl@0.8"),
        ("0.8.0.dev0", "axolotl@0.8"),
        ("0.9.0", "axolotl@0.13"),
        ("0.19.0", "axolotl"),
    ],
)
def test_a_model_card_says_its_version(tmp_path: Path, version: str, stack: str) -> None:
    """Which no key of the file need tell."""
    assert checked(tmp_path, CARD.format(version)) == [(512, stack)]


@pytest.mark.parametrize("text", ["", "# nothing", CARD.format("0.4.1") * 2, "```yaml\n- a\n```"])
def test_a_file_without_the_one_config_is_refused(tmp_path: Path, text: str) -> None:
    """None, or one of several."""
    assert checked(tmp_path, text) == [ExitCode.USAGE]


def test_no_block_is_written_over(tmp_path: Path) -> None:
    """The text around it would be lost."""
    file = written(tmp_path, CARD.format("0.4.1"), "README.md")
    with pytest.raises(UsageError, match="into one first"):
        check_and_write(CheckJob(str(file), CheckOptions()), from_flags({"gpu": "4090"}), "a.yaml")
