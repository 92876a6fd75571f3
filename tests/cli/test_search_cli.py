"""``plan search`` as a user meets it: every printed recipe is what ``plan`` says of it,
every exit code, every refusal.
"""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from planner.catalog.location import data_dir
from planner.cli.main import main
from planner.intake.given.fields import REQUEST_FIELDS
from planner.predicting import estimate_calibrated
from planner.records.calibration_file import DEFAULT_CALIBRATION, find_calibration, personal_dir
from planner.report.search.document import SearchDocument
from planner.searching.places import COMMON_CARDS
from planner.searching.recipes.space import MICRO_BATCHES
from tests.files import written
from tests.jobs import resolved

Captured = pytest.CaptureFixture[str]

ONE_CARD = "--model 8b --gpu 4090 --seq 2048"
SEARCHES = {
    "one card": ONE_CARD,
    "two kinds of card, with prices": (
        "--model 70b --gpu h100-sxm:8,a100-80-sxm:8 --method lora,qlora --seq 8192 --samples 50000 "
        "--price 2.99,1.80"
    ),
    "a global batch": "--model 7b --gpu 4090:2 --method qlora --seq 1024 --global-batch 32",
    "natural lengths, host known": (
        "--model 8b --gpu 3090 --method full,lora --seq 4096 --tokens-per-sample 700 --host-memory 256GB"
    ),
    "the largest batch": "--model 7b --method qlora --gpu 4090 --seq 2048 --solve batch",
    "the longest sequence": "--model 8b --method lora --gpu 4090 --solve seq",
    "the fewest cards": (
        "--model 70b --method lora --gpu 4090 --seq 2048 --loss hf --gradient-checkpointing --solve gpus"
    ),
    "nothing fits": "--model 70b --method full,lora --gpu 4090 --seq 65536 --offload none",
}


@pytest.fixture(autouse=True)
def _no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``plan`` advises is another test's, and takes most of its time."""
    monkeypatch.setattr("planner.api.answering._advised", lambda subject, model, *, brief: subject)


# What was asked before in this process, with its exit code: some searches are looked at by several tests.
_ANSWERS: dict[str, tuple[int, str]] = {}


def answer_to(capsys: Captured, flags: str, code: int | None = None) -> dict[str, Any]:
    """The JSON answer to a search."""
    if flags not in _ANSWERS:
        got = main(["search", *shlex.split(flags), "--json"])
        out, err = capsys.readouterr()
        assert err == ""
        _ANSWERS[flags] = (got, out)
    got, out = _ANSWERS[flags]
    assert code is None or got == code, out
    document: dict[str, Any] = json.loads(out)
    assert document["exit_code"] == got
    assert document["verdict"] != "fits" or document["n_fit"]
    return document


def shown(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Every recipe of a document."""
    found = [recipe for group in document["groups"] for recipe in group["recipes"]]
    return found + [
        group[name] for group in document["groups"] for name in ("nearest", "above") if group[name]
    ]


def refused(capsys: Captured, flags: str, code: int = 2) -> str:
    """The one sentence with which a search is refused."""
    assert main(["search", *shlex.split(flags)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("plan: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.every(4)
@pytest.mark.parametrize("name", SEARCHES)
def test_every_recipe_is_what_plan_says_of_its_flags(capsys: Captured, name: str) -> None:
    """Peak, what must be held, step time, verdict,
    chance and cost of a recipe are those of ``plan`` with its arguments.
    """
    recipes = shown(answer_to(capsys, SEARCHES[name]))
    assert recipes
    for recipe in recipes:
        main([*recipe["arguments"], "--json"])
        plan = json.loads(capsys.readouterr().out)
        memory, time = plan["memory"], plan["time"] or {}
        said = {
            "verdict": plan["verdict"],
            "fits_probability": plan["fits_probability"],
            "limit_bytes": memory["limit_bytes"],
            "must_have_bytes": memory["must_have_bytes"],
            "driver_peak_bytes": memory["driver_peak_bytes"],
            "host_required_per_node_bytes": plan["host"]["required_per_node_bytes"],
            "host_reclaimable_per_node_bytes": plan["host"]["reclaimable_per_node_bytes"],
            "step_s": time["step_s"],
            "samples_per_s": time["samples_per_s"],
            "run_time_s": time["run_time_s"],
            "cost_usd": time["cost_usd"],
            "warnings": plan["warnings"],
        }
        assert {key: recipe[key] for key in said} == said, shlex.join(recipe["arguments"])


def test_what_was_said_holds_in_every_recipe(capsys: Captured) -> None:
    """A flag is a constraint; commas give choices, and no other value is in the answer."""
    flags = (
        "--model 8b --gpu 4090 --method lora,qlora --seq 1024,2048 --gradient-checkpointing --loss hf "
        "--batch 2,3 --offload none"
    )
    document = answer_to(capsys, flags, 0)
    recipes = shown(document)
    assert {recipe["quantization"] for recipe in recipes} <= {"none", "nf4"}
    assert {group["training"] for group in document["groups"]} == {
        f"{method}, seq {seq}" for method in ("lora", "qlora") for seq in (1024, 2048)
    }
    for recipe in recipes:
        assert recipe["gradient_checkpointing"] is True
        assert (recipe["loss"], recipe["offload"]) == ("hf", "none")
        assert recipe["micro_batch"] in (2, 3)


def test_the_global_batch_is_kept(capsys: Captured) -> None:
    """With ``--global-batch`` every recipe takes that many samples per optimizer step;
    one that cannot be divided is refused.
    """
    document = answer_to(capsys, SEARCHES["a global batch"], 0)
    assert {each["micro_batch"] * each["grad_accum"] * each["gpus_per_node"] for each in shown(document)} == {
        32
    }
    assert document["notes"] == []
    assert "--global-batch 7 " in refused(
        capsys, "--model 7b --gpu 4090:2 --method qlora --seq 1024 --global-batch 7"
    )


def test_a_place_that_cannot_be_tried_is_named(capsys: Captured) -> None:
    """Of several cards, one over which the global batch cannot be divided is left out, and that is said."""
    document = answer_to(
        capsys, "--model 7b --gpu 4090:2,4090:3 --method qlora --seq 1024 --loss hf --global-batch 16", 0
    )
    assert document["notes"] == ["4090:3 is left out: the global batch cannot be divided over its GPUs."]
    assert {each["gpus_per_node"] for each in shown(document)} == {2}


def test_the_place_with_the_largest_is_first(capsys: Captured) -> None:
    """Solving on several cards, the answer is that of the card that holds most."""
    flags = (
        "--model 8b --gpu 4090,a100-80-sxm,3090 --method qlora --seq 2048 --loss hf "
        "--gradient-checkpointing --solve batch"
    )
    (group,) = answer_to(capsys, flags, 0)["groups"]
    batches = [each["micro_batch"] for each in group["recipes"]]
    assert group["recipes"][0]["gpu"] == "a100-80-sxm"
    assert batches[0] == max(batches) == group["above"]["micro_batch"] - 1


def test_the_best_comes_first_and_the_others_have_more_room(capsys: Captured) -> None:
    """Rows of one card go from the fastest to the roomiest,
    but for the one that changes least of the stack's own ways.
    """
    document = answer_to(capsys, f"{ONE_CARD} --top 10", 0)
    for group in document["groups"]:
        times = [recipe["sample_s"] for recipe in group["recipes"]]
        assert all(after >= before / 1.01 for before, after in pairwise(times)), group["training"]
    assert document["n_tried"] > document["n_fit"] > 0


def test_nothing_that_fits_is_faster_than_the_first(capsys: Captured) -> None:
    """The first recipe of a method is the fastest of all that were tried and fit,
    as far as others can be asked for by hand.
    """
    best = answer_to(capsys, f"{ONE_CARD} --method qlora", 0)["groups"][0]["recipes"][0]
    base = {"model": "8b", "gpu": "4090", "seq": "2048", "method": "qlora"}
    calibration = find_calibration(DEFAULT_CALIBRATION, data_dir() / "calibration")
    seen = 0
    for checkpointing, loss, batch in product((True, False), ("hf", "liger"), MICRO_BATCHES):
        flags = {**base, "gradient_checkpointing": checkpointing, "loss": loss, "batch": batch}
        answer = estimate_calibrated(resolved(flags), calibration)
        if answer.verdict == "fits" and answer.time is not None:
            seen += 1
            assert answer.time.samples_per_s <= 1.01 * best["samples_per_s"], flags
    assert seen > 3


def test_prices_go_with_their_cards_and_the_cheapest_is_first(capsys: Captured) -> None:
    """With a price for each card recipes are ranked by cost, and each card shows at least its best."""
    document = answer_to(capsys, SEARCHES["two kinds of card, with prices"], 0)
    for group in document["groups"]:
        costs = [recipe["cost_usd"] for recipe in group["recipes"]]
        assert costs == sorted(costs)
        assert {recipe["gpu"] for recipe in group["recipes"]} == {"h100-sxm", "a100-80-sxm"}
    assert "2 prices for 1 choice of --gpu" in refused(capsys, f"{ONE_CARD} --price 1,2")


def test_offload_that_nobody_asked_for_is_a_last_resort(capsys: Captured) -> None:
    """Where something fits without offload no listed recipe offloads; where nothing does,
    offload is tried.
    """
    for group in answer_to(capsys, ONE_CARD, 0)["groups"]:
        offloads = {recipe["offload"] for recipe in group["recipes"]}
        assert offloads == ({"optimizer+params"} if group["training"] == "full" else {"none"})


def test_a_lower_confidence_accepts_what_plan_calls_uncertain(capsys: Captured) -> None:
    """By default a recipe fits when ``plan`` says fits; ``--confidence`` moves that,
    and ``plan``'s own verdict is kept.
    """
    flags = (
        "--model 8b --gpu 4090 --seq 2176 --method qlora --loss liger --gradient-checkpointing --batch "
        "7 --offload none"
    )
    document = answer_to(capsys, flags, 4)
    assert document["verdict"] == "uncertain"
    assert document["groups"][0]["nearest"]["verdict"] == "uncertain"
    accepted = answer_to(capsys, f"{flags} --confidence 0.5", 0)["groups"][0]["recipes"]
    assert [recipe["verdict"] for recipe in accepted] == ["uncertain"]
    assert "confidence must be a number from 0.5" in refused(capsys, f"{flags} --confidence 0.2")


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ("--model 8b --gpu 4090 --method full --seq 1000000", 3, "times the card's"),
        ("--model deepseek-v3 --method lora --gpu-memory 8GB --seq 2048", 3, "NOTHING FITS"),
        ("--model 8b --gpu b100 --seq 2048", 6, "--gpu-memory"),
        (
            "--model 1b --gpu mi300x --seq 64 --method lora --batch 1 --loss hf --offload none",
            6,
            "This is no CUDA device. The recipe that holds least needs",
        ),
        ("--model 7b --method full --gpu 4090 --seq 512 --host-memory 32GiB", 5, "GiB of host RAM on a node"),
    ],
)
def test_where_nothing_fits_the_nearest_miss_is_told(
    capsys: Captured, flags: str, code: int, words: str
) -> None:
    """The exit code says what is short, and the report by how much the nearest recipe misses."""
    assert main(["search", *shlex.split(flags)]) == code
    out, err = capsys.readouterr()
    assert err == ""
    assert words in out
    assert max(map(len, out.splitlines())) <= 100


def test_what_rests_on_host_ram_that_nobody_named_says_so_first(capsys: Captured) -> None:
    """Where only offload fits and the host's RAM was not said,
    the headlines of ``plan search`` and of ``plan`` say it.
    """
    flags = "--model 70b --method full --gpu h100-sxm --seq 512 --loss hf --batch 1 --gradient-checkpointing"
    assert main(["search", *shlex.split(flags), "--top", "1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("FITS IF HOST RAM SUFFICES: ")
    assert "Offload needs 1" in out
    assert main(["search", *shlex.split(flags), "--host-memory", "4TB"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("FITS: ")
    assert "Offload needs" not in out
    offload = shlex.split(f"{flags} --sharding zero3 --offload optimizer+params")
    assert main(offload) == 0
    assert re.match(r"FITS IF A NODE HAS [\d.,]+ GiB OF RAM: needs ", capsys.readouterr().out)
    assert main([*offload, "--host-memory", "4TB"]) == 0
    assert capsys.readouterr().out.startswith("FITS: needs ")


def test_where_host_ram_is_short_the_nearest_lacks_nothing_else(capsys: Captured) -> None:
    """Of recipes that need more host RAM than there is,
    the nearest is one that the card would surely hold.
    """
    document = answer_to(capsys, "--model 8b --gpu 4090 --seq 2048 --method full --host-memory 64GB", 5)
    assert document["verdict"] == "host_memory_short"
    assert document["groups"][0]["nearest"]["fits_probability"] >= document["confidence"]
    assert (
        main(["search", *shlex.split("--model 8b --gpu 4090 --seq 2048 --method full --host-memory 64GB")])
        == 5
    )
    assert "chance to fit of at least 95 % and the host RAM that they need" in " ".join(
        capsys.readouterr().out.split()
    )


def test_what_the_file_says_cannot_be_solved_for(capsys: Captured, tmp_path: Path) -> None:
    """The refusal names the file and its line, where the flag was not typed."""
    file = written(tmp_path, 'model = "7b"\nmethod = "qlora"\ngpu = "4090"\nbatch = 2\n', "job.toml")
    assert "leave it out of " in (said := refused(capsys, f"--config '{file}' --solve batch"))
    assert "job.toml:4" in said


def test_the_fewest_cards_are_told_with_and_without_offload(capsys: Captured) -> None:
    """Where host RAM is not known, what needs a lot of it is not the first answer."""
    assert (
        main(
            [
                "search",
                *shlex.split(
                    "--model 7b --method full --gpu 4090 --seq 512 --batch 1 --loss hf --solve gpus"
                ),
            ]
        )
        == 0
    )
    out = " ".join(capsys.readouterr().out.split())
    found = re.search(
        r"fewest GPUs: (\d+) \(.*\); with offload (\d+) .*, which needs [\d.,]+ GiB of host RAM",
        out,
    )
    assert found is not None
    assert int(found[1]) > int(found[2]) == 1


@pytest.mark.parametrize("columns", ["60", "80"])
def test_a_narrow_terminal_keeps_words_whole(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """On a narrow terminal the recipes are not broken into syllables."""
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["search", *shlex.split(f"{ONE_CARD} --method lora --top 1")]) == 0
    assert "checkpointing," in capsys.readouterr().out


def test_a_nearest_miss_comes_with_what_would_make_it_fit(capsys: Captured) -> None:
    """Where nothing fits, changes and larger cards after which the nearest recipe would are listed."""
    document = answer_to(capsys, "--model 70b --method qlora --gpu 4090 --seq 2048 --offload none", 3)
    assert document["levers"]
    assert all(lever["fits"] for lever in document["levers"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("", "missing --model, --gpu"),
        ("--model 8b", "missing --gpu; for example: plan search"),
        (f"{ONE_CARD} --method lora,qlorra", "qlora"),
        (f"{ONE_CARD} --batch 1,,2", "empty choice"),
        (f"{ONE_CARD} --batch 1,0", "batch must be a whole number"),
        (f"{ONE_CARD} --solve rank", "batch, seq, gpus"),
        (f"{ONE_CARD} --solve seq", "leave --seq out"),
        (f"{ONE_CARD} --solve batch --batch 4", "leave --batch out"),
        (f"{ONE_CARD} --solve gpus --nodes 2", "leave --nodes out"),
        (f"{ONE_CARD} --top 0", "top must be a whole number"),
        ("--model 8b --gpu rtx4091,h100 --seq 2048", "rtx4090"),
        (f"{ONE_CARD} --method full --lora-rank 8", "lora-options-with-full"),
        (f"{ONE_CARD} --calibration nobody", "unknown calibration"),
    ],
)
def test_what_cannot_be_searched_is_one_sentence(capsys: Captured, flags: str, words: str) -> None:
    """Every mistake is refused with the place and the way out."""
    assert words in refused(capsys, flags)


def test_the_length_that_was_taken_is_said(capsys: Captured) -> None:
    """Where no length is said one is taken, the answer says so first, and every command carries it."""
    assert main(["search", "--model", "8b", "--gpu", "4090"]) == 0
    out = capsys.readouterr().out
    assert "No --seq is given: 2,048 tokens" in out
    commands = re.findall(r"^plan (?:.*\\\n)*.*$", out, re.MULTILINE)
    assert commands
    assert all("--seq 2048" in " ".join(command.replace("\\\n", " ").split()) for command in commands)


def test_the_printed_commands_can_be_pasted(capsys: Captured) -> None:
    """The commands of the report, joined as a shell joins them, are commands of ``plan`` that work."""
    assert main(["search", *shlex.split(SEARCHES["two kinds of card, with prices"]), "--method", "lora"]) == 0
    block = capsys.readouterr().out.split("The commands\n------------\n")[1].split("\n\n")[0]
    commands = [line for line in block.replace("\\\n", " ").splitlines() if not line.startswith("#")]
    assert len(commands) == 3
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
        assert capsys.readouterr().out.startswith("FITS")


def test_a_config_file_is_a_constraint_too(capsys: Captured, tmp_path: Path) -> None:
    """What a file says holds, flags win, and the printed commands name the file."""
    file = written(
        tmp_path, 'model = "7b"\nmethod = "qlora"\ngpu = "4090"\nseq = 1024\nloss = "hf"\n', "my job.toml"
    )
    (group,) = answer_to(capsys, f"--config '{file}' --seq 2048", 0)["groups"]
    assert group["training"] == "qlora"
    assert {(recipe["loss"], recipe["seq_len"]) for recipe in group["recipes"]} == {("hf", 2048)}
    assert main([*group["recipes"][0]["arguments"], "--json"]) == 0


def test_a_config_file_of_a_tool_is_a_constraint_too(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file says holds and what its tool does by itself may vary;
    a recipe is what ``plan`` says of file and flags.
    """
    monkeypatch.chdir(Path(__file__).parents[1] / "planner" / "configs" / "examples")
    document = answer_to(capsys, "--config llama_factory_qlora.yaml --gpu 4090", 0)
    (group,) = document["groups"]
    assert group["training"] == "lora on nf4"
    for recipe in group["recipes"]:
        assert main([*recipe["arguments"], "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert plan["memory"]["must_have_bytes"] == recipe["must_have_bytes"]
        assert plan["time"]["step_s"] == recipe["step_s"]
        assert set(plan["warnings"]) == {*recipe["warnings"], *document["notes"]}
        assert plan["scenario"]["recipe"]["seq_len"] == recipe["seq_len"] == group["recipes"][0]["seq_len"]


def test_markdown_and_the_schema(capsys: Captured) -> None:
    """Markdown has a table and a shell block; the schema names itself,
    and its model refuses what it does not know.
    """
    assert main(["search", *shlex.split(ONE_CARD), "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert "\n| " in out
    assert "\n```sh\n# 1\nplan --model 8b" in out
    assert main(["schema", "search"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$id"] == "planner/search@1"
    document = answer_to(capsys, ONE_CARD, 0)
    SearchDocument.model_validate(document)
    with pytest.raises(ValidationError):
        SearchDocument.model_validate({**document, "extra": 1})


def test_ways_of_training_that_a_rule_forbids_are_named_once(capsys: Captured) -> None:
    """A method that contradicts another flag is left out with the rule; the others are answered."""
    flags = "--model 8b --gpu 4090 --seq 1024 --batch 1 --loss hf --lora-rank 4,8"
    assert main(["search", *shlex.split(flags)]) == 0
    out = capsys.readouterr().out
    assert out.count("lora-options-with-full") == 1
    assert "full, lora rank 4; full, lora rank 8: LoRA options" in out
    assert "--force" not in out
    assert "qlora, lora rank 8: " in out


def test_a_calibration_of_ones_own_is_used_and_named(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A personal calibration that cannot be read is said, as ``plan`` says it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = personal_dir()
    folder.mkdir(parents=True)
    (folder / "mine.json").write_text("{}")
    notes = answer_to(capsys, f"{ONE_CARD} --method lora --batch 1", 0)["notes"]
    assert any(note.startswith("a personal calibration is left out") for note in notes)


AWKWARD = st.sampled_from(
    [
        "",
        "-1",
        "0",
        "1e3",
        "nan",
        ",",
        "1,",
        "a,b",
        "4090:0",
        "x" * 300,
        "\udc80",
        "1,2,3",
        "none",
        "2:2",
        "\x1b[2J",
    ]
)
SEARCHED = st.sampled_from(
    [
        *(
            "--batch",
            "--seq",
            "--gpu",
            "--gpus",
            "--nodes",
            "--price",
            "--lora-rank",
            "--solve",
            "--confidence",
            "--top",
        ),
        *(
            "--global-batch",
            "--gpu-memory",
            "--method",
            "--tokens-per-sample",
            "--grad-accum",
            "--samples",
            "--stack",
            "--offload",
        ),
    ]
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(extra=st.lists(st.tuples(SEARCHED, AWKWARD), min_size=1, max_size=3))
def test_no_value_makes_a_traceback(capsys: Captured, extra: list[tuple[str, str]]) -> None:
    """Whatever is given to the flags, the answer is a report or one sentence, and never an internal error."""
    fixed = (
        "--model gpt2 --method lora --gpu 4090 --loss hf --gradient-checkpointing --optimizer "
        "adamw_torch --sharding none"
    )
    code = main(["search", *shlex.split(fixed), *(f"{flag}={value}" for flag, value in extra)])
    out, err = capsys.readouterr()
    assert code in (0, 2, 3, 4, 5, 6), err
    assert "Traceback" not in err
    assert bool(out) != bool(err)
    assert err.count("\n") <= 1


def test_without_a_calibration_the_verdict_alone_decides(capsys: Captured) -> None:
    """Uncalibrated there is no chance to fit, and the headline does not speak of one."""
    assert main(["search", *shlex.split(ONE_CARD), "--calibration", "none"]) == 0
    assert "chance to fit of" not in capsys.readouterr().out
    assert "leave it out" in refused(capsys, f"{ONE_CARD} --calibration none --confidence 0.9")


A6000_OR_A100 = "--model qwen2.5-32b --method qlora --solve seq"


def test_a_larger_card_goes_as_far_and_offload_is_told_apart(capsys: Captured) -> None:
    """80 GB are never answered with less than 48 GB,
    and what fits without offload is told beside what needs it.
    """
    longest = {}
    for card in ("rtx-a6000", "a100-80-sxm"):
        (group,) = answer_to(capsys, f"{A6000_OR_A100} --gpu {card}")["groups"]
        longest[card] = group["recipes"][0]["seq_len"]
        assert group["recipes"][0]["offload"] == "optimizer+params"
    assert longest["a100-80-sxm"] >= longest["rtx-a6000"] > 0
    assert any(recipe["offload"] == "none" for recipe in group["recipes"])
    assert main(["search", *shlex.split(f"{A6000_OR_A100} --gpu a100-80-sxm")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    found = re.search(
        r"longest sequence: (\d+) \(.*?\); with offload (\d+) \(.*?\), which needs [\d.,]+ GiB of host RAM",
        out,
    )
    assert found is not None
    assert int(found[2]) == longest["a100-80-sxm"] > int(found[1]) > 0


def test_adapters_come_before_all_weights_that_need_the_host(capsys: Captured) -> None:
    """On one 24 GiB card a full fine-tune rests on host RAM, so it is the last way of training."""
    titles = [group["training"] for group in answer_to(capsys, "--model 8b --gpu 4090 --seq 2048")["groups"]]
    assert titles[-1] == "full"
    assert set(titles) == {"full", "lora", "qlora"}


def test_the_best_stack_that_was_not_asked_for_is_named(capsys: Captured) -> None:
    """Where another common stack does more as it is, it is named, and ``plan`` says the same of it;
    not where one was said.  By its own no recipe fits.
    """
    flags = "--model mistral-small-24b --method qlora --gpu 4090 --seq 4096"
    other = answer_to(capsys, flags)["other_stack"]
    assert other["offload"] in ("none", "activations")
    named = other["arguments"][other["arguments"].index("--stack") + 1]
    assert main([*other["arguments"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["must_have_bytes"] == other["must_have_bytes"]
    assert main(["search", *shlex.split(flags)]) == 3
    assert f"Other software: --stack {named}" in " ".join(capsys.readouterr().out.split())
    assert answer_to(capsys, f"{flags} --stack hf-trainer@5")["other_stack"] is None


def test_any_stack_asks_for_the_common_ones(capsys: Captured) -> None:
    """``--stack any`` lists each common stack, that with the fastest recipe first."""
    groups = answer_to(capsys, "--model 8b --method qlora --gpu 4090 --seq 2048 --stack any")["groups"]
    assert {group["training"] for group in groups} == {
        f"qlora, stack {name}" for name in ("hf-trainer@5", "trl", "llama-factory", "axolotl", "unsloth")
    }
    speeds = [group["recipes"][0]["samples_per_s"] for group in groups]
    assert speeds[0] == max(speeds)


def test_any_card_asks_for_the_common_ones(capsys: Captured) -> None:
    """``--gpu any`` lists each common card on which the job fits; ``any:2`` two of each."""
    flags = "--model 1b --method qlora --seq 512 --batch 1 --loss hf --attention sdpa"
    (group,) = answer_to(capsys, f"{flags} --gpu any")["groups"]
    cards = [recipe["gpu"] for recipe in group["recipes"]]
    assert cards[0] == "b200"
    assert set(cards) == set(COMMON_CARDS)
    (group,) = answer_to(capsys, f"{flags} --gpu any:2 --sharding ddp")["groups"]
    assert {recipe["gpus_per_node"] for recipe in group["recipes"]} == {2}


def test_lengths_beyond_the_models_own_are_solved_for_when_asked(capsys: Captured) -> None:
    """A length stops at what the model was made for, unless the flag lifts that limit,
    which belongs to lengths alone.
    """
    flags = "--model llama-2-7b --method qlora --gpu a100-80-sxm --solve seq"
    within, beyond = (
        answer_to(capsys, each)["groups"][0]["recipes"][0] for each in (flags, f"{flags} --beyond-context")
    )
    assert within["seq_len"] == 4096
    assert beyond["seq_len"] > 8192
    assert any("4,096" in warning for warning in beyond["warnings"])
    assert "--solve seq" in refused(capsys, "--model 7b --gpu 4090 --seq 512 --beyond-context")


def test_no_line_is_wider_than_the_terminal_and_no_flag_is_cut(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 columns the tables, the levers and the commands fit, and commands can be read back whole."""
    monkeypatch.setenv("COLUMNS", "80")
    known = {
        flag
        for field in REQUEST_FIELDS.values()
        for flag in (field.flag, field.flag.replace("--", "--no-", 1))
    }
    for flags in (
        "--model 8b --gpu 4090,rtxpro6000-bw --seq 2048 --price 1,2",
        "--model 70b --method qlora --gpu 4090 --offload none",
    ):
        main(["search", *shlex.split(flags)])
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        assert "100 %" not in out
        flags_seen = {word.strip(".:") for word in out.split() if word.startswith("--") and word.strip("-")}
        assert flags_seen <= {*known, "--global-batch", "--solve"}


def test_where_no_recipe_is_modelled_the_exit_code_says_so(capsys: Captured) -> None:
    """Every recipe breaks a rule of what may run: that is no mistake of who asked."""
    flags = "--model qwen2.5-vl-7b --method lora --gpu a100-80-sxm:8 --seq 512 --sharding fsdp1"
    flags += " --images-per-sample 1 --image-size 280x280"
    assert "[vision-fsdp1]" in refused(capsys, flags, 6)
    flags = "--model 8b --gpu 4090 --seq 512 --offload optimizer --sharding none"
    assert "[offload-without-engine]" in refused(capsys, flags)
