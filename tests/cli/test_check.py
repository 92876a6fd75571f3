"""``plan check``: a line for each config, the worst exit code, JSON by its schema,
and no file that spoils the others.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from planner.cli.command_options import CHECK_OPTIONS
from planner.cli.main import main
from planner.configs.read import TOOL_NAMES
from planner.errors import ExitCode
from planner.report.check.document import CheckDocument
from planner.report.check.sections import Checked, worst_exit_code
from tests.files import written

EXAMPLES = Path(__file__).parents[1] / "planner" / "configs" / "examples"
QLORA = str(EXAMPLES / "llama_factory_qlora.yaml")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    code = main(["check", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_each_config_gets_one_line_and_the_worst_code_is_the_exit_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that fits, one that does not and a file that is not there: 2 is the worst,
    and every file has its verdict.
    """
    monkeypatch.chdir(tmp_path)
    Path("fits.toml").write_text('model = "qwen2.5-0.5b"\nmethod = "lora"\nseq = 512\n', encoding="utf-8")
    Path("large.toml").write_text('model = "llama-3.1-70b"\nmethod = "full"\nseq = 512\n', encoding="utf-8")
    code, out, err = run(capsys, "fits.toml", "large.toml", "--gpu", "4090")
    lines = out.splitlines()
    assert (code, err) == (3, "")
    assert (lines[1].split()[0], lines[1].split()[-1]) == ("FITS", "fits.toml")
    assert lines[2].startswith("DOES NOT FIT")
    assert lines[2].endswith("large.toml")
    code, out, _ = run(capsys, "fits.toml", "large.toml", "none.yaml", "--gpu", "4090")
    assert code == 2
    assert out.splitlines()[3].split() == ["CANNOT", "BE", "USED", "none.yaml"]
    assert "none.yaml: no such file" in out


def test_an_address_is_told_from_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is fetched: the page is to be saved first."""
    assert main(["check", "https://example.com/train.yaml", "--gpu", "4090"]) == 2
    told = capsys.readouterr().out
    assert "an address" in told
    assert told.count("example.com") == 1


def test_a_command_is_checked_beside_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer ends with the command itself; it cannot be written, and something must be given."""
    monkeypatch.chdir(tmp_path)
    text = (
        "torchrun --nproc_per_node 2 t.py --model_name_or_path gpt2 --bf16 True --num_train_epochs 3 "
        "--block_size 128"
    )
    code, out, err = run(capsys, "--command", text, "--gpu", "4090", "--method", "full")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"plan check --command '{text}' --method full --gpu 4090 && {text}"
    assert "--config" not in out
    Path("job.toml").write_text('model = "qwen2.5-0.5b"\nmethod = "lora"\nseq = 512\n', encoding="utf-8")
    code, out, _ = run(capsys, "job.toml", "--command", text, "--gpu", "4090", "--method", "full")
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines()[1:3]] == ["job.toml", "command"]
    code, _, err = run(capsys, "--command", text, "--gpu", "4090", "--method", "full", "--write", "a.yaml")
    assert code == 2
    assert "--write changes a config file" in err
    code, _, err = run(capsys, "--gpu", "4090")
    assert code == 2
    assert "no config is given" in err


def test_commands_that_ask_for_one_job_are_told_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A loop over what changes no byte, such as learning rates, is one answer; JSON has each of them."""
    train = (
        "trl sft --model_name_or_path Qwen/Qwen3-0.6B --use_peft --max_length 1024 --learning_rate $rate "
        "--output_dir out"
    )
    script = written(tmp_path, f"for rate in 1e-4 2e-4 3e-4; do\n{train}\ndone\n", "run.sh")
    code, out, _ = run(capsys, str(script), "--gpu", "4090")
    assert code == 0
    assert out.startswith("FITS: ")
    assert "run.sh#1 and 2 alike" in out
    code, out, _ = run(capsys, str(script), "--gpu", "4090", "--json")
    names = [Path(each["config"]).name for each in json.loads(out)["results"]]
    assert names == ["run.sh#1", "run.sh#2", "run.sh#3"]
    script.write_text(f"{script.read_text()}{train.replace('$rate', '1e-4')} --packing\n")
    _, out, _ = run(capsys, str(script), "--gpu", "4090")
    rows = [line.split("  ")[-1].strip() for line in out.splitlines() if line.startswith("FITS ")]
    assert rows == ["run.sh#1 and 2 alike", "run.sh#4"]


def test_the_worst_of_several_codes_follows_the_published_order() -> None:
    """1, 2, 6, 3, 5, 4, 0."""
    order = [ExitCode(code) for code in (1, 2, 6, 3, 5, 4, 0)]
    for position, worst in enumerate(order):
        rest = [Checked("x", failure="x", failure_code=code) for code in reversed(order[position:])]
        assert worst_exit_code(rest) == worst


def test_json_says_where_every_value_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    """The document is valid by its own schema, names file and key of each value,
    and has the flags that ask for the same.
    """
    code, out, _ = run(capsys, QLORA, "--gpu", "a100-80-sxm:2", "--json")
    document = CheckDocument.model_validate_json(out)
    (result,) = document.results
    assert code == document.exit_code == result.exit_code == 0
    assert result.answer is not None
    assert result.answer.limit_bytes is not None
    assert 0 < result.answer.peak_bytes < result.answer.limit_bytes
    origins = {entry.name: entry.origin for entry in result.answer.assumptions}
    assert origins["seq"] == f"{QLORA}:cutoff_len"
    assert "--seq 4096" in result.answer.flags
    assert json.loads(out)["schema"] == "planner/check@1"


def test_json_of_a_file_that_cannot_be_used_has_its_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No answer, the error, and its own exit code; a key beyond the formulas is 6."""
    path = written(tmp_path, "finetuning_type: lora\nshift_attn: true\n", "shifted.yaml")
    code, out, _ = run(capsys, str(path), "--gpu", "4090", "--json")
    (result,) = CheckDocument.model_validate_json(out).results
    assert (code, result.exit_code, result.answer) == (6, 6, None)
    assert str(result.error).startswith(f"{path}:shift_attn: shifted sparse attention is not modelled")


def test_a_fit_that_rests_on_unknown_host_ram_is_no_plain_fit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With offload and a host of which nobody said how much RAM it has,
    the verdict says that it is about the card alone.
    """
    path = written(
        tmp_path,
        'method = "full"\nsharding = "zero3"\noffload = "optimizer+params"\nseq = 512\n',
        "offload.toml",
    )
    flags = (str(path), "--model", "qwen2.5-0.5b", "--gpu", "4090")
    code, out, _ = run(capsys, *flags)
    assert code == 0
    assert out.startswith("FITS IF A NODE HAS ")
    assert run(capsys, *flags, "--host-memory", "256GB")[1].startswith("FITS: ")
    assert "FITS, RAM UNKNOWN " in run(capsys, *flags[:1], *flags)[1]


def test_without_a_gpu_the_flag_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Files of trainers name no card."""
    code, out, _ = run(capsys, QLORA)
    assert code == 2
    assert "missing --gpu; for example: plan check train.yaml --gpu 4090" in " ".join(out.split())


def test_the_example_says_all_that_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With what the message names, the file is answered."""
    path = tmp_path / "train.yaml"
    path.with_suffix(".toml").write_text("", encoding="utf-8")
    code, out, _ = run(capsys, str(path.with_suffix(".toml")))
    assert code == 2
    example = " ".join(out.split()).partition("train.yaml ")[2].split()
    assert run(capsys, str(path.with_suffix(".toml")), *example)[0] == 0


def test_unknown_keys_and_values_not_taken_over_are_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Both stand below the table under the name of their file,
    with the job and the defaults that were taken.
    """
    path = written(
        tmp_path,
        Path(QLORA).read_text(encoding="utf-8").replace("learning_rate", "lerning_rate")
        + "colour: 8\nmoe_aux_loss_coef: 0.1\n",
    )
    _, out, _ = run(capsys, str(path), "--gpu", "a100-80-sxm")
    words = " ".join(out.split())
    assert "read as LLaMA-Factory 0.9.5" in words
    assert "Unknown keys, ignored: lerning_rate, colour" in words
    assert "lerning_rate: is learning_rate meant?" in words
    assert "moe_aux_loss_coef: the routers' loss is not counted" in words
    assert "default of LLaMA-Factory 0.9.5: double_quant=true, quant_storage=bf16" in words


def test_of_many_configs_only_what_needs_attention_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Above ten files a section needs an unknown key, a remark or a warning; all verdicts stay."""
    _, out, _ = run(capsys, *[QLORA] * 11, "--gpu", "a100-80-sxm")
    assert out.count("FITS") == 11
    assert "read as" not in out


def test_markdown_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The same answers for a comment on a pull request."""
    _, out, _ = run(capsys, QLORA, QLORA, "--gpu", "a100-80-sxm", "--format", "markdown")
    assert "| verdict | needs | of GiB |" in out


def test_a_prediction_takes_the_same_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """``plan --config`` gives the whole report of a file that ``plan check`` reads,
    and warns about what it ignored.
    """
    path = written(tmp_path, Path(QLORA).read_text(encoding="utf-8") + "colour: 8\n")
    code = main(["--config", str(path), "--gpu", "a100-80-sxm", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["scenario"]["stack"] == "llama-factory"
    assert f"{path}:colour: unknown key, ignored" in document["warnings"]


def test_the_report_lists_settings_under_their_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Assumptions of one file stand in one row, each with its key; the tool's defaults in another."""
    monkeypatch.chdir(EXAMPLES)
    main(["--config", "llama_factory_qlora.yaml", "--gpu", "a100-80-sxm", "--details"])
    words = " ".join(capsys.readouterr().out.split())
    assert (
        "llama_factory_qlora.yaml model=llama-3.1-8b (model_name_or_path), method=lora (finetuning_type)"
        in words
    )
    assert "default of LLaMA-Factory 0.9.5 double_quant=true, quant_storage=bf16" in words


def test_only_yaml_files_load_the_yaml_library() -> None:
    """Predictions by flags, and checks of TOML and JSON, start without it."""
    code = (
        "import sys\nfrom planner.cli.main import main\n"
        f"main(['check', {str(EXAMPLES / 'job.toml')!r}, {str(EXAMPLES / 'deepspeed_alone.json')!r}])\n"
        "assert 'yaml' not in sys.modules\n"
        f"main(['check', {QLORA!r}, '--gpu', '4090'])\nassert 'yaml' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_broken_reader_does_not_take_the_other_answers_along(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect of ours in one file is that file's exit code 1, and the others are answered."""
    import planner.api.checks as module

    real = module.read_config_file

    def broken(path: str, *rest: object) -> object:
        if path == "broken":
            raise ZeroDivisionError
        return real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "read_config_file", broken)
    code, out, _ = run(capsys, "broken", QLORA, "--gpu", "a100-80-sxm")
    assert code == 1
    assert "INTERNAL ERROR" in out
    assert "FITS" in out


def test_the_help_names_every_tool() -> None:
    """`--tool` lists what `planner/configs/read.py` reads, though the help is made without importing it."""
    declared = get_args(CHECK_OPTIONS["tool"][0])[1]
    assert all(re.search(rf"\b{re.escape(name)}\b(?!-)", declared.help) for name in TOOL_NAMES)


def test_a_path_with_a_space_can_be_copied(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What to type next is quoted as a shell needs it."""
    path = written(tmp_path, Path(QLORA).read_text(encoding="utf-8"), "my config.yaml")
    _, out, _ = run(capsys, str(path), "--gpu", "4090")
    assert f"plan --config '{path}' --details" in " ".join(out.split())
