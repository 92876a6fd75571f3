"""``tune run``: a recipe, its file, and what the words behind it change."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.api.checks import check_job, command_job
from planner.api.files import CheckOptions
from planner.configs.launchers.command_line import started
from planner.errors import NotModelledError, UsageError
from planner.intake.given.request import from_flags

EXAMPLES = Path(__file__).parents[1] / "examples"
FILE = EXAMPLES / "torchtune_qlora.yaml"
ONE = f"tune run lora_finetune_single_device --config {FILE}"
SEVERAL = f"tune run --nproc_per_node 4 lora_finetune_distributed --config {FILE}"
NAME = Path("command")


def test_words_change_keys_add_them_and_take_them_out() -> None:
    """A component is named by the table that it stands in; torchtune 0.6.1 config/_utils.py."""
    words = "batch_size=3 model.lora_rank=5 new.deep=true optimizer=torch.optim.SGD ~optimizer.lr seed=None"
    table = started(NAME, f"{ONE} {words}").arguments
    before = started(NAME, ONE).arguments
    assert (table["batch_size"], table["model"]["lora_rank"], table["new"]) == (3, 5, {"deep": True})
    assert table["model"]["_component_"] == before["model"]["_component_"]
    assert table["optimizer"]["_component_"] == "torch.optim.SGD"
    assert "lr" in before["optimizer"]
    assert "lr" not in table["optimizer"]
    assert table["seed"] is None


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        (f"{ONE} a=b=c", UsageError, "no argument of a recipe: they are KEY=VALUE"),
        (f"{ONE} {'a.' * 9_000}b=1", UsageError, "no argument of a recipe"),
        (f"{ONE} ~nothing", UsageError, "names no key of the file"),
        ("tune run lora_dpo_distributed a=b", UsageError, "asks for --config FILE"),
        (
            "tune run lora_dpo_single_device --config llama3/8B_lora_dpo",
            UsageError,
            "write it here with tune cp",
        ),
        (ONE.replace("run", "run --nnodes 1"), UsageError, "leave them out, or name the distributed recipe"),
        (f"tune run mine.py --config {FILE}", NotModelledError, "this recipe is not modelled"),
        ("tune run quantize --config a.yaml", UsageError, "no command that starts a training"),
    ],
)
def test_what_tune_or_this_reader_stops_at_is_said(text: str, kind: type[Exception], sentence: str) -> None:
    """With the way out."""
    with pytest.raises(kind, match=sentence):
        started(NAME, text)


@pytest.mark.parametrize(
    ("command", "gpu", "flags"),
    [
        (ONE, "a100-80-sxm:8", ("--gpus 1",)),
        (SEVERAL, "a100-80-sxm", ("--gpus 4", "--sharding fsdp")),
        (SEVERAL.replace(" 4 ", " 1 "), "a100-80-sxm", ("--gpus 1", "--sharding fsdp")),
    ],
)
def test_the_recipe_and_its_launch_say_how_the_model_is_divided(
    command: str, gpu: str, flags: tuple[str, ...]
) -> None:
    """The file itself is of neither."""
    job = command_job(f"{command} compile=False tokenizer.max_seq_len=512", CheckOptions())
    checked = check_job(job, from_flags({"gpu": gpu}), advise=False)
    assert not checked.failure
    assert all(flag in checked.flags for flag in flags)
