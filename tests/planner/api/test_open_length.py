"""Files that leave the length of samples to the data: one answer where all lengths have it, else a bound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import planner
from planner.api.checks import check_job, command_job
from planner.api.files import CheckOptions
from planner.api.open_length import SHORTEST_TOKENS, answer_at_any_length, with_shorter
from planner.domain.prediction import Verdict
from planner.errors import ExitCode, LengthOpenError, NotModelledError, UsageError
from planner.intake.given.request import Given, from_flags
from planner.report.check.checked import Checked
from tests.files import written
from tests.planner.report.prediction import made

SENTENCE = "a.yaml: max_length is null: say --seq"
RECIPE = """
model:
  _component_: torchtune.models.llama3_1.{builder}
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: null
dataset:
  _component_: torchtune.datasets.alpaca_dataset
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
optimizer:
  _component_: torch.optim.AdamW
  fused: True
loss:
  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss
batch_size: 2
gradient_accumulation_steps: 1
device: cuda
dtype: bf16
enable_activation_checkpointing: True
"""


LLAMA_FACTORY = """
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: lora
dataset: notes
template: qwen
bf16: true
cutoff_len: 8192
per_device_train_batch_size: 8
"""


def answer(seq_tokens: int, verdict: Verdict) -> Checked:
    """Of one length; the model was made for 4,096 tokens."""
    subject = made.subject(verdict=verdict)
    scenario = subject.scenario
    batch = replace(scenario.recipe.batch, seq_len=seq_tokens)
    scenario = replace(
        scenario,
        model=replace(scenario.model, max_position_tokens=4096),
        recipe=replace(scenario.recipe, batch=batch),
    )
    return Checked("a.yaml", subject=replace(subject, scenario=scenario))


def test_what_fits_at_the_longest_fits() -> None:
    """The model takes no longer ones."""
    found = answer_at_any_length(lambda length: answer(length, "fits"), SENTENCE)
    assert found.subject is not None
    assert found.subject.scenario.recipe.batch.seq_len == 4096
    assert "4,096" in found.remarks[0][1]


def test_a_tool_may_take_less_than_the_model() -> None:
    """Then nothing longer is tried."""
    found = answer_at_any_length(lambda length: answer(length, "fits"), SENTENCE, 3000)
    assert found.subject is not None
    assert found.subject.scenario.recipe.batch.seq_len == 3000
    assert "3,000" in found.remarks[0][1]


def test_what_does_not_fit_at_the_shortest_does_not_fit() -> None:
    """Longer ones need more.  Where it is uncertain, the length may decide."""
    for verdict in ("does_not_fit", "host_memory_short"):
        found = answer_at_any_length(lambda length, is_=verdict: answer(length, is_), SENTENCE)  # type: ignore[misc]
        assert found.subject is not None
        assert found.subject.prediction.verdict == verdict
        assert found.subject.scenario.recipe.batch.seq_len == SHORTEST_TOKENS
        assert f"--seq {SHORTEST_TOKENS}" in found.details
    with pytest.raises(LengthOpenError, match="samples of 128 tokens may not fit"):
        answer_at_any_length(lambda length: answer(length, "uncertain"), SENTENCE)


@pytest.mark.parametrize("longest", [128, 1024, 2048])
def test_in_between_the_length_decides(longest: int) -> None:
    """The sentence names the longest that fits and the next that was tried."""
    with pytest.raises(LengthOpenError, match=f"{longest:,} tokens fit, those of {2 * longest:,}") as raised:
        answer_at_any_length(
            lambda length: answer(length, "fits" if length <= longest else "uncertain"), SENTENCE
        )
    assert raised.value.exit_code == ExitCode.UNCERTAIN
    assert str(raised.value).startswith(SENTENCE)


def test_lengths_that_samples_cannot_have_are_passed_over() -> None:
    """Images take more than that; where the first that can be counted is too long, a shorter one may fit."""

    def ask(length: int) -> Checked:
        if length < 1024:
            raise UsageError("images need more")
        return answer(length, "fits" if length < 4096 and fits else "does_not_fit")

    fits = True
    with pytest.raises(LengthOpenError, match="2,048 tokens fit, those of 4,096"):
        answer_at_any_length(ask, SENTENCE)
    fits = False
    with pytest.raises(LengthOpenError, match="samples of 1,024 tokens may not fit"):
        answer_at_any_length(ask, SENTENCE)


def test_what_is_wrong_at_every_length_is_said() -> None:
    """It is not the length that stops the job."""

    def ask(_length: int) -> Checked:
        raise UsageError("another key is wrong")

    with pytest.raises(UsageError, match="another key"):
        answer_at_any_length(ask, SENTENCE)


def test_a_recipe_that_pads_to_the_longest_sample(tmp_path: Path) -> None:
    """Its bound lies between two lengths that are answered so when they are given."""
    recipe = written(tmp_path, RECIPE.format(builder="llama3_1_8b"), "recipe.yaml")
    with pytest.raises(LengthOpenError, match="samples of up to") as raised:
        planner.check(recipe, gpu="a100-80-sxm")
    longest, next_one = (
        int(word.replace(",", "")) for word in str(raised.value).split() if word[0].isdigit()
    )
    assert planner.check(recipe, gpu="a100-80-sxm", seq=longest).verdict == "fits"
    assert planner.check(recipe, gpu="a100-80-sxm", seq=next_one).verdict != "fits"
    assert planner.check(recipe, gpu="t4").verdict == "does_not_fit"


def shortened(ask: dict[int, Verdict | Exception]) -> tuple[str, str]:
    """Verdict and warning on samples that are cut at 8,192 tokens, where shorter ones have these."""
    before = made.subject(verdict="does_not_fit").prediction

    def verdict(seq_tokens: int) -> Verdict:
        found = ask[seq_tokens]
        if isinstance(found, Exception):
            raise found
        return found

    found = with_shorter(before, verdict, Given(8192, "a.yaml:cutoff_len", cuts="longest"))
    assert found.memory == before.memory
    return found.verdict, " ".join(found.warnings[len(before.warnings) :])


def test_where_short_samples_fit_the_cut_decides_nothing() -> None:
    """The longest that fits is named, with the first that may not."""
    verdict, text = shortened({1024: "fits", 2048: "fits", 4096: "uncertain"})
    assert verdict == "uncertain"
    assert "up to 2,048 tokens fit, those of 4,096 may not" in text
    assert "a.yaml:cutoff_len" in text
    verdict, text = shortened({1024: "fits", 2048: "fits", 4096: "fits"})
    assert "up to 4,096 tokens fit, those of 8,192 may not" in text
    verdict, text = shortened({1024: "uncertain"})
    assert verdict == "uncertain"
    assert "samples of 1,024 tokens may fit" in text
    verdict, text = shortened({1024: NotModelledError("uneven"), 2048: "fits", 4096: "does_not_fit"})
    assert "up to 2,048 tokens fit, those of 4,096 may not" in text


def test_what_is_generated_is_as_long_as_it_may_be() -> None:
    """Prompts may be shorter: the lengths that are tried are theirs."""
    asked = list[int]()

    def verdict(seq_tokens: int) -> Verdict:
        asked.append(seq_tokens)
        return "fits" if seq_tokens < 3000 else "does_not_fit"

    before = made.subject(verdict="does_not_fit").prediction
    found = with_shorter(before, verdict, Given(10240, "a.yaml:max_length", cuts="longest"), 2048)
    assert asked == [2048 + 128, 2048 + 256, 2048 + 512, 2048 + 1024]
    assert "up to 2,560 tokens fit, those of 3,072 may not" in found.reason


def test_where_the_shortest_do_not_fit_nothing_changes() -> None:
    """Nor where none can be counted."""
    assert shortened({1024: "does_not_fit"}) == ("does_not_fit", "")
    none = UsageError("images need more")
    assert shortened({1024: none, 2048: none, 4096: none}) == ("does_not_fit", "")


def checked(path: Path, text: str, gpu: str = "a100-40-sxm", **flags: int) -> tuple[str, str]:
    """Verdict and warnings of a file."""
    path.write_text(text, encoding="utf-8")
    found = planner.check(path, gpu=gpu, **flags)
    return found.verdict, " ".join(getattr(found, "warnings", ()))


def test_padded_samples_may_be_shorter_than_the_cut(tmp_path: Path) -> None:
    """Packs, one length for all, and lengths that somebody gave are as long as they are; ``plan --config``
    says the same.
    """
    path = tmp_path / "train.yaml"
    verdict, text = checked(path, LLAMA_FACTORY)
    assert verdict == "uncertain"
    longest = int(text.split("up to ")[1].split()[0].replace(",", ""))
    assert planner.estimate(config=path, gpu="a100-40-sxm").verdict == "uncertain"
    assert checked(path, LLAMA_FACTORY, seq=longest)[0] == "fits"
    assert checked(path, LLAMA_FACTORY, seq=8192)[0] == "does_not_fit"
    assert checked(path, LLAMA_FACTORY, tokens_per_sample=8000)[0] == "does_not_fit"
    assert checked(path, f"{LLAMA_FACTORY}packing: true\n")[0] == "does_not_fit"
    assert checked(path, LLAMA_FACTORY, gpu="t4")[0] == "does_not_fit"


def test_images_that_are_only_scaled_down_may_be_smaller_than_the_cut() -> None:
    """MAX_PIXELS says how large an image is at most; whoever says how large it is means all of them."""
    command = (
        "MAX_PIXELS=4194304 NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-VL-7B-Instruct "
        "--train_type full --deepspeed zero2 --max_length 15000 --dataset notes "
        "--per_device_train_batch_size 8"
    )
    for flags, verdict in (({}, "uncertain"), ({"image_size": "2048x2048"}, "does_not_fit")):
        given = from_flags({"gpu": "a100-80-sxm:8", **flags})
        found = check_job(command_job(command, CheckOptions()), given)
        assert found.subject is not None, found.failure
        assert found.subject.prediction.verdict == verdict


def test_samples_end_to_end_that_fill_no_row_may_be_shorter() -> None:
    """Megatron of ms-swift lays the samples of a micro-batch end to end; a pack is full."""
    command = (
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B --train_type lora --max_length 65536 "
        "--tensor_model_parallel_size 2 --sequence_parallel true --micro_batch_size 2 --global_batch_size 8 "
        "--dataset notes"
    )
    given = from_flags({"gpu": "a100-40-sxm:8"})
    for text, verdict in ((command, "uncertain"), (f"{command} --packing true", "does_not_fit")):
        found = check_job(command_job(text, CheckOptions()), given)
        assert found.subject is not None, found.failure
        assert found.subject.prediction.verdict == verdict
