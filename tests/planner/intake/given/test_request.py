"""What is asked for: by flags, by a file, by a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.domain.run_record import RunRecord
from planner.errors import InputFileError, UnknownNameError, UsageError
from planner.intake.given.request import (
    MAX_CONFIG_BYTES,
    Given,
    ScenarioRequest,
    asked_card,
    from_flags,
    from_record,
    from_toml,
    merge,
)
from planner.intake.resolve import resolve
from planner.units import GIB
from tests.files import written
from tests.planner.intake.jobs import BASE, RECORD


def test_a_limit_reaches_the_planner_as_the_memory_of_the_card() -> None:
    """A run within 24 GiB of a larger card is judged against 24 GiB."""
    limited = RunRecord(
        id="r",
        source="s",
        source_group="g",
        model="7b",
        gpu="h200-sxm",
        method="lora",
        seq_len=64,
        outcome="oom",
        memory_limit_mib=24576.0,
    )
    assert resolve(from_record(limited)).hardware.gpu.visible_memory_bytes == 24 * GIB


def test_flags_take_hyphens_and_underscores() -> None:
    """Both spellings mean one field, and an absent flag says nothing."""
    request = from_flags({"lora-rank": "8", "lora_dropout": None, "grad_accum": 2})
    assert request.values == {"lora_rank": Given(8, "cli"), "grad_accum": Given(2, "cli")}


def test_an_unknown_flag_names_the_nearest() -> None:
    """A typing error in the name of a flag is answered with flags."""
    with pytest.raises(UnknownNameError, match="unknown flag '--lora-rnk'; nearest: --lora-rank"):
        from_flags({"lora-rnk": 8})


def test_one_flag_given_twice_is_refused() -> None:
    """Two spellings of one flag are two values for it."""
    with pytest.raises(UsageError, match="given twice"):
        from_flags({"lora-rank": 8, "lora_rank": 16})


def test_a_toml_file_gives_every_value_its_line(tmp_path: Path) -> None:
    """The origin of a value from a file is the line that sets it."""
    path = written(
        tmp_path,
        '# a job\nmodel = "7b"\n\nlora-targets = ["q_proj", "v_proj"]\nseq = 1024\n"gpu" = "4090:2"\n',
        "job.toml",
    )
    request = from_toml(path)
    assert {name: given.origin for name, given in request.values.items()} == {
        "model": f"{path}:2",
        "lora_targets": f"{path}:4",
        "seq": f"{path}:5",
        "gpu": f"{path}:6",
    }
    assert request.get("lora_targets") == ("q_proj", "v_proj")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"seq = 1024\nsequence = 5\n", ":2: unknown key 'sequence'; nearest: seq"),
        (b"model = '7b'\nseq = -1\n", ":2: seq must be a whole number from 1 to 16,777,216, but it is -1"),
        (b"seq = nan\n", ":1: seq must be a whole number"),
        (b"[model]\nname = '7b'\n", ":1: model must be text, but it is a value of type dict"),
        (b"gpu_memory = 24\n", ":1: gpu_memory must be a size with a unit"),
        (b"lora-rank = 8\nlora_rank = 8\n", ":2: 'lora_rank' is given twice"),
        (b"seq = \n", ":1: not valid TOML"),
        (b"model = '\xff'\n", ":1: not UTF-8 text"),
        (b"a = " + b"[" * 20_000, ": not valid TOML"),
        (b"seq = " + b"9" * 5000, ": not valid TOML"),
        (b"#" * (MAX_CONFIG_BYTES + 1), ": larger than the limit of 1.0 MiB"),
    ],
)
def test_a_broken_toml_file_is_refused_with_its_line(tmp_path: Path, content: bytes, problem: str) -> None:
    """Each way in which a configuration file can be broken has a message with file and line."""
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    with pytest.raises(InputFileError) as caught:
        from_toml(path)
    assert str(caught.value).startswith(f"{path}{problem}")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A missing file and a folder are said."""
    with pytest.raises(InputFileError, match="no such file"):
        from_toml(tmp_path / "none.toml")
    with pytest.raises(InputFileError, match="not a regular file"):
        from_toml(tmp_path)


def test_flags_win_over_a_file() -> None:
    """Merging keeps what only one side says, and the override where both do."""
    base = ScenarioRequest({"seq": Given(512, "f:1"), "batch": Given(4, "f:2")})
    assert merge(base, from_flags({"seq": 1024})).values == {
        "seq": Given(1024, "cli"),
        "batch": Given(4, "f:2"),
    }


def test_a_counted_gpu_on_the_command_line_replaces_the_count_of_the_file() -> None:
    """`--gpu X:4` over a file with `gpus = 2` is no contradiction: the flag says both."""
    base = from_flags(BASE | {"gpus": 2})
    assert resolve(merge(base, from_flags({"gpu": "4090:4"}))).hardware.gpus_per_node == 4
    assert (
        resolve(merge(from_flags(BASE | {"gpu": "4090:4"}), from_flags({"gpus": 3}))).hardware.gpus_per_node
        == 3
    )
    assert resolve(merge(base, from_flags({"gpu": "a100-80-sxm"}))).hardware.gpus_per_node == 2


def test_a_record_asks_for_its_configuration() -> None:
    """Columns become fields, blanks stay open, and every origin names the record."""
    request = from_record(RECORD)
    assert {name: given.value for name, given in request.values.items()} == {
        "model": "llama-2-7b",
        "gpu": "rtx4090",
        "method": "lora",
        "gpus": 2,
        "batch": 4,
        "seq": 512,
        "samples": 1100,
        "lora_targets": ("q_proj",),
        "precision": "fp16-mixed",
    }
    assert {given.origin for given in request.values.values()} == {"record:doc-1"}


@pytest.mark.parametrize(
    ("flags", "asked"),
    [
        ({"gpu": "4090"}, ("4090", 1)),
        ({"gpu": "4090:1", "nodes": 1}, ("4090", 1)),
        ({"gpu": "4090:2"}, ("4090", 2)),
        ({"gpu": "4090", "gpus": 2}, ("4090", 2)),
        ({"gpu": "4090:4", "nodes": 2}, ("4090", 8)),
        ({"gpus": 1}, ("", 0)),
    ],
)
def test_one_card_trains_alone_where_no_flag_says_more(
    flags: dict[str, object], asked: tuple[str, int]
) -> None:
    """A program is read for it; ``--gpus`` counts as much as what is behind the card's name."""
    assert asked_card(from_flags(flags)) == asked
