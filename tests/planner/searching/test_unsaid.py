"""What nobody said: the settings that are named, how far they move the answer,
and that their flags do what is stated.
"""

from __future__ import annotations

import json

import pytest

from planner.cli.main import main
from planner.domain.prediction import Prediction
from planner.domain.scenario import Scenario
from planner.intake.given.request import from_flags, merge
from planner.intake.resolve import resolve
from planner.predicting import estimate
from planner.report.prediction.sections import build_sections
from planner.report.prediction.subject import Subject
from planner.searching import unsaid
from planner.searching.unsaid import MAX_ROWS, Unsaid, unsaid_settings
from planner.units import GIB
from tests.jobs import resolved, typed

Flags = dict[str, object]
LORA: Flags = {"model": "llama-3.1-8b", "method": "lora", "gpu": "a100-80-sxm", "seq": "4096"}
QLORA: Flags = {"model": "7b", "method": "qlora", "gpu": "4090", "seq": "1024"}
SHARDED: Flags = {"model": "7b", "method": "full", "gpu": "h100-sxm:8", "seq": "4096", "sharding": "fsdp"}
OLD_CARD: Flags = typed("--model qwen2.5-0.5b --method full --gpu t4 --seq 512 --precision fp16-mixed")
JOBS = {"lora": LORA, "qlora": QLORA, "sharded": SHARDED, "t4": OLD_CARD}


def named(flags: Flags) -> tuple[Unsaid, ...]:
    """What is named for a job under the priors."""
    scenario: Scenario = resolved(flags)
    return unsaid_settings(scenario, estimate(scenario))


def typed(flags: str) -> Flags:
    """``--attention eager`` or ``--no-gradient-checkpointing`` as the flags of a request."""
    name, _, value = flags.removeprefix("--").partition(" ")
    if value:
        return {name.replace("-", "_"): value}
    return {name.removeprefix("no-").replace("-", "_"): not name.startswith("no-")}


def test_the_job_itself_is_not_predicted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its prediction is at hand: others are compared with that one."""
    predicted = []

    def spy(scenario: Scenario, *_: object) -> Prediction:
        predicted.append(scenario)
        return estimate(scenario)

    monkeypatch.setattr(unsaid, "predict_with", spy)
    job = resolved(QLORA)
    assert unsaid_settings(job, estimate(job))
    assert predicted
    assert job not in predicted


def test_what_is_not_modelled_otherwise_does_not_keep_the_answer_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Jamba's kernel fails over fp32 weights: no setting and no lever names them."""
    command = ["--model", "jamba-v0.1", "--method", "lora", "--gpu", "h200-sxm:8", "--seq", "1k", "--json"]
    assert main(command) in (0, 3)
    answer = json.loads(capsys.readouterr().out)
    assert "fp32" not in json.dumps([answer["levers"], answer["unsaid"]])


@pytest.mark.parametrize("name", JOBS)
def test_typing_the_flags_moves_the_answer_as_stated(name: str) -> None:
    """With the flags after the job's own, the need, the speed and the verdict are those that are stated."""
    before = estimate(resolved(JOBS[name]))
    found = named(JOBS[name])
    assert 3 <= len(found) <= MAX_ROWS
    for each in found:
        after = estimate(resolve(merge(from_flags(JOBS[name]), from_flags(typed(each.flags)))))
        moved = float(after.memory.must_have_bytes) - float(before.memory.must_have_bytes)
        assert before.time is not None
        assert after.time is not None
        assert moved == pytest.approx(each.moves_bytes, abs=1), each
        assert float(after.time.tokens_per_s) / float(before.time.tokens_per_s) == pytest.approx(
            each.speed_ratio
        ), each
        assert after.verdict == each.verdict, each


def test_what_moves_most_comes_first() -> None:
    """LoRA on long sequences: the batch and written-out attention decide before the checkpoint's dtype
    does.
    """
    found = named(LORA)
    settings = [each.setting for each in found]
    assert set(settings[:2]) == {"batch=1", "attention=sdpa"}
    assert "load_dtype=bf16" in settings[2:]
    assert ("stack=hf-trainer@5", "--stack hf-trainer@4") in [(each.setting, each.flags) for each in found]
    sizes = [
        abs(each.moves_bytes)
        for each in found
        if each.speed_ratio is not None and 0.95 < each.speed_ratio < 1.05
    ]
    assert sizes == sorted(sizes, reverse=True)


def test_stacks_are_left_out_where_they_have_a_line_of_their_own() -> None:
    """All other rows stay."""
    job = resolved(LORA)
    found = unsaid_settings(job, estimate(job))
    rest = tuple(each for each in found if not each.setting.startswith("stack="))
    assert len(rest) < len(found)
    without = unsaid_settings(job, estimate(job), stacks=False)
    assert without[: len(rest)] == rest
    assert not any(each.setting.startswith("stack=") for each in without)


def test_what_was_said_is_not_named() -> None:
    """A setting from the command line is the user's own."""
    said = {**LORA, "attention": "sdpa", "batch": "1", "stack": "hf-trainer@5"}
    assert {each.setting.partition("=")[0] for each in named(said)}.isdisjoint(
        {"attention", "batch", "stack"}
    )


def test_a_stack_whose_versions_were_said_has_no_other_version() -> None:
    """The rows of other versions of the stack go; those of other settings stay."""
    rows = [each.setting.partition("=")[0] for each in named({**LORA, "versions": "bitsandbytes==0.48.0"})]
    assert "stack" not in rows
    assert "attention" in rows


def test_a_name_that_stands_for_several_versions_names_the_one_that_moves_most() -> None:
    """TRL 1.5 held copies of whole logits, which 1.16 never makes: one row, as typed; none where the
    version is said.
    """
    job: Flags = {**QLORA, "model": "qwen3-1.7b", "batch": "4", "seq": "2048", "stack": "trl"}
    (row,) = (each for each in named(job) if each.setting.startswith("versions="))
    assert (row.setting, row.flags) == ("versions=trl==1.16.0", "--versions trl==1.5.0")
    assert row.moves_bytes > 10 * GIB
    old = estimate(resolved({**job, "versions": "trl==1.5.0"}))
    moved = old.memory.must_have_bytes - estimate(resolved(job)).memory.must_have_bytes
    assert row.moves_bytes == pytest.approx(moved, abs=1)
    for said in ({"versions": "peft==0.21.0"}, {"stack": "trl@0.24"}):
        assert not any(each.setting.startswith("versions=") for each in named({**job, **said}))


def test_nothing_is_named_that_a_rule_speaks_against() -> None:
    """bf16 weights on a card without bf16 units would bring a warning,
    so no other value brings one that was not there.
    """
    before = set(resolved(OLD_CARD).warnings)
    for each in named(OLD_CARD):
        assert set(resolve(merge(from_flags(OLD_CARD), from_flags(typed(each.flags)))).warnings) <= before, (
            each
        )


def test_the_report_has_a_section_only_where_something_moves() -> None:
    """Rows make a section of their own; without rows there is none."""
    scenario = resolved(LORA)
    rows = (
        Unsaid("attention=sdpa", "--attention eager", 3 * 2**30, 0.5, "does_not_fit"),
        Unsaid("x=1", "--x 2", -(2**30), None, "fits"),
    )
    titles = [
        [part.title for part in build_sections(Subject(scenario, estimate(scenario), unsaid=each))]
        for each in (rows, ())
    ]
    assert len([title for title in titles[0] if title.startswith("Assumptions that move")]) == 1
    assert not [title for title in titles[1] if title.startswith("Assumptions that move")]


def test_the_command_shows_it_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    """The human report has the section, and JSON the rows with integer bytes."""
    arguments = [f"--{name}={value}" for name, value in QLORA.items()]
    assert main([*arguments, "--calibration", "none", "--details"]) == 0
    text = capsys.readouterr().out
    assert "Assumptions that move the answer most" in text
    assert "--no-gradient-checkpointing" in text
    assert main([*arguments, "--calibration", "none", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["unsaid"]
    assert any(row["setting"] == "gradient_checkpointing=true" and row["moves_bytes"] > 2**30 for row in rows)
    assert all(isinstance(row["moves_bytes"], int) for row in rows)


def test_lengths_that_nobody_says_are_named_beside_the_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    """Padded to the longest of unknown samples, the report says what widens its intervals;
    with a mean length it does not.
    """
    arguments = [*(f"--{name}={value}" for name, value in QLORA.items()), "--padding", "longest"]
    shown = []
    for more in ([], ["--tokens-per-sample", "500"]):
        main([*arguments, *more])
        shown.append(" ".join(capsys.readouterr().out.split()))
    assert "intervals are wide (--tokens-per-sample)" in shown[0]
    assert "intervals are wide" not in shown[1]


def test_an_evaluation_in_the_trainers_batches_is_named_where_its_logits_are_the_peak() -> None:
    """A vocabulary of 262,144 words, eight samples at once, where one is trained on.

    A user's run of Gemma 4 E2B at 4,096 tokens trained in 15 GB and ran out of 24 when it evaluated.
    """
    job: Flags = {**LORA, "model": "gemma-4-e2b", "gpu": "4090", "batch": "1", "stack": "unsloth"}
    (row,) = (each for each in named(job) if each.setting == "evaluation=none")
    assert row.flags == "--eval-batch 8"
    assert row.moves_bytes > 5 * GIB
    assert not any(each.setting == "evaluation=none" for each in named({**job, "eval_batch": "1"}))
