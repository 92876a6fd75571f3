"""``planner.estimate``, ``check`` and ``search`` say what the command line says, to the byte."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.api.keywords import JobFlags, SearchFlags, SearchKeywords
from planner.cli.command_options import CHECK_OPTIONS, SEARCH_OPTIONS
from planner.cli.main import main
from planner.errors import NotModelledError
from planner.intake.given.flags import request_fields
from tests.jobs import typed

EXAMPLES = Path(__file__).parents[1] / "configs" / "examples"
QLORA = EXAMPLES / "llama_factory_qlora.yaml"
JOBS: list[tuple[str, dict[str, Any]]] = [
    (
        "--model 7b --method qlora --gpu 4090 --seq 1024",
        {"model": "7b", "method": "qlora", "gpu": "4090", "seq": 1024},
    ),
    (
        "--model mistral-small-24b --method qlora --gpu 4090 --seq 4096 --samples 1000 --price 0.4",
        typed("--model mistral-small-24b --method qlora --gpu 4090 --seq 4096 --samples 1000 --price 0.4"),
    ),
    (
        (
            "--model 70b --method full --gpu h100-sxm:8 --nodes 2 --sharding fsdp --seq 4096 "
            "--gradient-checkpointing"
        ),
        {"model": "70b", "method": "full", "gpu": "h100-sxm:8", "nodes": 2, "sharding": "fsdp", "seq": 4096}
        | {"gradient_checkpointing": True},
    ),
    (
        (
            "--model 7b --method lora --gpu-memory 17179869184B --seq 512 --no-gradient-checkpointing "
            "--lora-targets q_proj;v_proj"
        ),
        {
            "model": "7b",
            "method": "lora",
            "gpu_memory": 16 * 2**30,
            "seq": 512,
            "gradient_checkpointing": False,
        }
        | {"lora_targets": ["q_proj", "v_proj"]},
    ),
    (
        (
            "--model 7b --method full --gpu 4090 --seq 512 --sharding zero2 --offload optimizer "
            "--host-memory 9GB --calibration none"
        ),
        typed("--model 7b --method full --gpu 4090 --seq 512 --sharding zero2 --offload optimizer")
        | {"host_memory": "9GB", "calibration": "none"},
    ),
]

Said = Callable[..., dict[str, Any]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """The document that the command line writes."""

    def run(*words: str) -> dict[str, Any]:
        code = main([*words, "--json"])
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document | {"code": code}

    return run


@pytest.mark.parametrize(("words", "flags"), JOBS, ids=[words for words, _ in JOBS])
def test_an_estimate_is_what_the_command_line_says(words: str, flags: dict[str, Any], said: Said) -> None:
    """The document is the same, and each attribute is the number of the document."""
    answer, document = planner.estimate(**flags), said(*words.split())
    code = document.pop("code")
    assert answer.to_dict() == document
    assert answer.exit_code == code
    memory, sure = document["memory"], document["uncertainty"]
    assert (answer.verdict, answer.probability, answer.why) == tuple(
        document[name] for name in ("verdict", "fits_probability", "reason")
    )
    assert answer.fits == (document["verdict"] == "fits")
    assert (answer.needs_bytes, answer.limit_bytes) == (memory["must_have_bytes"], memory["limit_bytes"])
    for level in ("allocated", "reserved", "driver"):
        assert getattr(answer.peak, f"{level}_bytes") == memory[f"{level}_peak_bytes"]
        interval = getattr(answer.peak, f"{level}_interval")
        assert (interval is None) == (sure is None)
        if interval is not None:
            assert {"low": interval.low, "high": interval.high} == sure["memory"][level]
    assert answer.host.needs_bytes == document["host"]["required_per_node_bytes"]
    assert answer.host.available_bytes == document["host"]["available_bytes"]
    time = document["time"]
    assert (answer.step and answer.step.seconds, answer.tokens_per_s) == (
        time and time["step_s"],
        time and time["tokens_per_s"],
    )
    if answer.run is not None:
        assert (answer.run.seconds, answer.run.cost_usd) == (time["run_time_s"], time["cost_usd"])
    assert (answer.run is None) == ("samples" not in flags)
    assert sum(term.n_bytes for term in answer.terms if term.at_peak) == pytest.approx(
        sum(term["bytes"] for term in memory["terms"] if term["at_peak"]), abs=len(answer.terms)
    )
    assert answer.warnings == tuple(document["warnings"])


def test_an_answer_prints_the_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``render()`` draws what ``plan`` prints at that width."""
    monkeypatch.setenv("COLUMNS", "80")
    words, flags = JOBS[0]
    main(words.split())
    assert planner.estimate(**flags).render(80) == capsys.readouterr().out


def test_levers_are_there_where_a_job_is_short() -> None:
    """A job that does not fit comes with changes, each with the flags that ask for it."""
    answer = planner.estimate(model="mistral-small-24b", method="qlora", gpu="4090", seq=4096)
    assert not answer.fits
    assert any(lever.fits for lever in answer.levers)
    assert all(lever.flags for lever in answer.levers)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"modle": "7b"}, ("keyword", "modle", "model")),
        ({"model": "7b", "method": "qlora", "gpu": "4090", "seq": -1}, ("seq", "-1")),
        ({"model": "7b", "method": "qlora", "gpu": "4091", "seq": 1}, ("4091", "4090")),
        ({"model": "7b", "method": "qlora", "gpu": "4090"}, ("missing seq; ", "planner.estimate(")),
        ({"model": object(), "method": "qlora", "gpu": "4090", "seq": 8}, ("model",)),
        (
            {"model": "7b", "method": "qlora", "gpu": "4090", "seq": 8, "pipeline_parallel": 2},
            ("pipeline_parallel",),
        ),
    ],
    ids=["keyword", "negative", "card", "missing", "object", "not-modelled"],
)
def test_what_cannot_be_used_raises_one_sentence(flags: dict[str, Any], words: tuple[str, ...]) -> None:
    """Wrong names and values are the errors of the command line."""
    with pytest.raises(planner.UsageError) as raised:
        planner.estimate(**flags)
    assert all(word in str(raised.value) for word in words)
    assert "\n" not in str(raised.value)


def test_the_keywords_are_the_flags() -> None:
    """What type checkers know of the keywords is what the command line takes."""
    names = {field.name for field in request_fields()}
    assert typing.get_type_hints(JobFlags).keys() == names
    assert typing.get_type_hints(SearchFlags).keys() == names
    shown = {"output_format", "as_json"}
    assert typing.get_type_hints(SearchKeywords).keys() == names | (SEARCH_OPTIONS.keys() - shown)
    with pytest.raises(planner.UnknownNameError):
        planner.check(QLORA, **dict.fromkeys(shown, "x"))
    for name in CHECK_OPTIONS.keys() - shown - {"configs", "write", "allow"}:
        planner.check(QLORA, gpu="4090", **{name: None})


def test_a_file_is_answered_as_plan_check_answers_it(said: Said) -> None:
    """The same verdict and numbers; what was said wins over the file."""
    answer = planner.check(QLORA, gpu="4090", batch=1)
    result = said("check", str(QLORA), "--gpu", "4090", "--batch", "1")["results"][0]
    expected = result["answer"]
    assert isinstance(answer, planner.FileAnswer)
    assert (answer.path, answer.tool, answer.flags) == (str(QLORA), result["tool"], expected["flags"])
    assert (answer.verdict, answer.probability, answer.why) == tuple(
        expected[name] for name in ("verdict", "fits_probability", "reason")
    )
    assert expected["peak_bytes"] in (answer.peak.driver_bytes, answer.needs_bytes)
    assert answer.step is not None
    assert answer.step.seconds == expected["step_s"]
    assert list(answer.ignored) == result["ignored"]
    assert [f"{each['origin']}: {each['text']}" for each in result["remarks"]] == list(answer.remarks)


def test_one_bad_file_raises_and_among_several_does_not(tmp_path: Path) -> None:
    """A single file that cannot be read is an error; in a list it is a result of its own."""
    missing = tmp_path / "missing.yaml"
    with pytest.raises(planner.InputFileError, match="missing"):
        planner.check(missing, gpu="4090")
    first, second = planner.check([QLORA, missing], gpu="a100-80-sxm")
    assert first.fits
    assert isinstance(second, planner.FileFailure)
    assert not second.fits
    assert second.exit_code == 2
    assert "missing.yaml" in second.error


def test_a_search_is_what_the_command_line_finds(said: Said) -> None:
    """The same document; the keywords of a row ask for the same recipe again."""
    found = planner.search(
        model="8b", method="qlora", gpu=["3090", "4090"], seq=1024, top=2, gradient_checkpointing=True
    )
    words = "search --model 8b --method qlora --gpu 3090,4090 --seq 1024 --top 2 --gradient-checkpointing"
    document = said(*words.split())
    assert found.exit_code == document.pop("code")
    assert found.to_dict() == document
    recipes = [recipe for group in document["groups"] for recipe in group["recipes"]]
    assert [row.needs_bytes for row in found.rows] == [recipe["must_have_bytes"] for recipe in recipes]
    assert found.fits
    for row in found.rows:
        again = planner.estimate(**row.flags)
        assert (again.needs_bytes, again.peak.driver_bytes) == (row.needs_bytes, row.driver_bytes)
        assert again.step is not None
        assert again.step.seconds == row.step_s


def test_a_search_solves_and_reads_a_file(said: Said) -> None:
    """``solve`` and ``config`` go through, and a row of such a search stands by itself."""
    job = EXAMPLES / "job.toml"
    found = planner.search(config=job, gpu="a100-80-sxm", solve="batch")
    document = said("search", "--config", str(job), "--gpu", "a100-80-sxm", "--solve", "batch")
    document.pop("code")
    assert found.to_dict() == document
    assert found.solved == "batch"
    assert planner.estimate(**found.rows[0].flags).needs_bytes == found.rows[0].needs_bytes


@pytest.mark.parametrize("sharding", ["none", "zero2", "fsdp"])
def test_a_forced_job_that_trains_nothing_has_no_answer(sharding: str) -> None:
    """A name that no matrix has is refused; forced, there is no step to count, however GPUs share it."""
    with pytest.raises(NotModelledError, match="Nothing of this job is trained"):
        planner.estimate(
            model="qwen2.5-0.5b",
            method="lora",
            gpu="4090:2",
            seq=512,
            lora_targets="V_PROJ",
            sharding=sharding,
            force=True,
        )
