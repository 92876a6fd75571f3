"""Training files as their own tools run them: which command, which rows, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from measure.dry_run.tool_jobs import FOLDER, tool_job, tool_job_of_command
from planner.errors import NotModelledError, UsageError

LLAMA_FACTORY = (
    "model_name_or_path: m\nfinetuning_type: lora\ntemplate: llama3\ndataset: mine\ncutoff_len: 64\n"
)


def written(tmp_path: Path, name: str, text: str) -> Path:
    """A file of this content."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_are_as_long_as_the_file_lets_through(tmp_path: Path) -> None:
    """The file's own data set gives way; enough rows for the steps of a dry run; all else stays."""
    path = written(
        tmp_path,
        "a.yaml",
        f"{LLAMA_FACTORY}stage: sft\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 8\n",
    )
    job = tool_job(path)
    assert job.command == ("llamafactory-cli", "train", f"{FOLDER}/train.yaml")
    assert job.n_tokens == 64
    fields = yaml.safe_load(job.files[f"{FOLDER}/train.yaml"])
    assert fields["template"] == "llama3"
    assert (fields["dataset"], fields["dataset_dir"]) == ("rows", FOLDER)
    rows = [json.loads(line) for line in job.files[f"{FOLDER}/rows.jsonl"].splitlines()]
    assert (fields["gradient_accumulation_steps"], job.n_micro_steps) == (2, 8)
    assert len(rows) >= 2 * 4 * 2
    assert all(len(f"{row['prompt']} {row['completion']}".split()) == 64 for row in rows)


def test_another_length_moves_the_limit(tmp_path: Path) -> None:
    """Rows that are longer than the file's limit are wanted whole."""
    job = tool_job(written(tmp_path, "a.yaml", f"{LLAMA_FACTORY}stage: dpo\n"), 100)
    assert job.n_tokens == 100
    assert yaml.safe_load(job.files[f"{FOLDER}/train.yaml"])["cutoff_len"] == 100
    assert json.loads(job.files[f"{FOLDER}/dataset_info.json"])["rows"]["ranking"] is True


def test_the_name_of_a_file_says_the_trainer_of_trl(tmp_path: Path) -> None:
    """A file of TRL does not say whether it is for SFT or DPO; where its name does not either,
    that is asked.
    """
    text = "model_name_or_path: m\ndataset_name: d\nuse_peft: true\nlora_r: 8\nmax_length: 32\n"
    job = tool_job(written(tmp_path, "my_dpo.yaml", text))
    assert job.command[:2] == ("trl", "dpo")
    assert set(json.loads(job.files[f"{FOLDER}/rows/train.jsonl"].splitlines()[0])) == {
        "prompt",
        "chosen",
        "rejected",
    }
    with pytest.raises(UsageError, match="measure trace --gpu CARD -- trl sft --config"):
        tool_job(written(tmp_path, "train.yaml", text))


AXOLOTL = (
    "base_model: m\nsequence_len: 64\nadapter: lora\nmicro_batch_size: 2\ngradient_accumulation_steps: 3\n"
)


def test_axolotl_gets_rows_for_what_it_trains(tmp_path: Path) -> None:
    """Text in whole pieces, preferences with a short prompt; reports and places of data are left out,
    all else stays.
    """
    job = tool_job(
        written(tmp_path, "a.yaml", f"{AXOLOTL}datasets: [{{path: d, type: alpaca}}]\nwandb_project: p\n"),
        n_cards=4,
    )
    assert job.command == ("axolotl", "train", f"{FOLDER}/train.yaml")
    fields = yaml.safe_load(job.files[f"{FOLDER}/train.yaml"])
    assert [each["type"] for each in fields["datasets"]] == ["completion"]
    assert (fields["adapter"], fields["val_set_size"], "wandb_project" in fields) == ("lora", 0, False)
    assert len(job.files[f"{FOLDER}/rows.jsonl"].splitlines()) >= 2 * 2 * 2 * 4
    job = tool_job(written(tmp_path, "b.yaml", f"{AXOLOTL}rl: dpo\ndatasets: [{{path: d}}]\n"))
    row = json.loads(job.files[f"{FOLDER}/rows.jsonl"].splitlines()[0])
    assert {name: len(text.split()) for name, text in row.items()} == {
        "prompt": 8,
        "chosen": 56,
        "rejected": 56,
    }


@pytest.mark.parametrize(
    "text", [f"{AXOLOTL}rl: kto\ndatasets: [{{path: d}}]\n", f"{LLAMA_FACTORY}stage: kto\n"]
)
def test_all_samples_of_kto_are_good_ones(tmp_path: Path, text: str) -> None:
    """Then the copies of good samples' logits are as large as they can be, as the step program counts them:
    Axolotl's own run of SmolLM2 360M as LoRA needs 2.76 GiB so, and 2.67 GiB with every second one bad.
    """
    files = tool_job(written(tmp_path, "a.yaml", text)).files
    rows = next(text for name, text in files.items() if name.endswith("rows.jsonl")).splitlines()
    assert {json.loads(row)["label"] for row in rows} == {True}


def test_a_file_that_evaluates_does_so_after_the_second_step(tmp_path: Path) -> None:
    """On rows of its own, because an evaluation may set the peak, in a cache that steps left;
    a file that holds rows back and never looks does not.
    """
    job = tool_job(
        written(tmp_path, "a.yaml", f"{AXOLOTL}datasets: []\nval_set_size: 0.1\nevals_per_epoch: 4\n")
    )
    fields = yaml.safe_load(job.files[f"{FOLDER}/train.yaml"])
    assert (fields["eval_steps"], "evals_per_epoch" in fields, job.evaluates) == (2, False, True)
    assert fields["test_datasets"][0]["path"] == f"{FOLDER}/held_out.jsonl"
    job = tool_job(written(tmp_path, "b.yaml", f"{AXOLOTL}datasets: []\nval_set_size: 0.1\n"))
    assert "eval_steps" not in yaml.safe_load(job.files[f"{FOLDER}/train.yaml"])
    assert not job.evaluates
    job = tool_job(
        written(
            tmp_path,
            "c.yaml",
            f"{LLAMA_FACTORY}stage: sft\nval_size: 0.1\neval_strategy: steps\neval_steps: 500\n",
        )
    )
    fields = yaml.safe_load(job.files[f"{FOLDER}/train.yaml"])
    assert (fields["eval_dataset"], fields["eval_steps"], "val_size" in fields) == ("held_out", 2, False)
    job = tool_job(written(tmp_path, "d.yaml", f"{LLAMA_FACTORY}stage: sft\nval_size: 0.1\ndo_eval: true\n"))
    assert yaml.safe_load(job.files[f"{FOLDER}/train.yaml"])["eval_dataset"] == "held_out"


def test_a_file_with_images_gets_one_a_row(tmp_path: Path) -> None:
    """As large as the file lets through; rows of text would answer for less.
    Where there are none to lay, that is said.
    """
    job = tool_job(written(tmp_path, "a.yaml", f"{LLAMA_FACTORY}stage: sft\nimage_max_pixels: 4096\n"))
    assert job.files[f"{FOLDER}/picture.pbm"].splitlines()[:2] == ["P1", "64 64"]
    row = json.loads(job.files[f"{FOLDER}/rows.jsonl"].splitlines()[0])
    assert (row["images"], row["prompt"].count("<image>")) == (["picture.pbm"], 1)
    # As the prediction assumes them: by the template, or by the name of data that may be text as well.
    sides = {("llava", "mine"): 768, ("mistral_small", "mine"): 0, ("mistral_small", "mllm_demo"): 768}
    for (template, data), side in sides.items():
        text = f"{LLAMA_FACTORY}stage: sft\n".replace("llama3", template).replace("mine", data)
        job = tool_job(written(tmp_path, "c.yaml", text))
        picture = job.files.get(f"{FOLDER}/picture.pbm", "P1\n0 0").splitlines()[1]
        assert picture == f"{side} {side}", (template, data)
    with pytest.raises(NotModelledError, match="processor_type"):
        tool_job(written(tmp_path, "b.yaml", f"{AXOLOTL}processor_type: AutoProcessor\ndatasets: []\n"))


def test_an_evaluation_that_generates_text_is_left_out_and_said(tmp_path: Path) -> None:
    """What it would generate needs prompts; where nothing is evaluated, nothing is left out."""
    evaluates = "datasets: []\nval_set_size: 0.1\ndo_causal_lm_eval: true\n"
    job = tool_job(written(tmp_path, "a.yaml", f"{AXOLOTL}{evaluates}eval_steps: 9\n"))
    assert job.left_out == "do_causal_lm_eval"
    assert yaml.safe_load(job.files[f"{FOLDER}/train.yaml"])["do_causal_lm_eval"] is False
    assert tool_job(written(tmp_path, "b.yaml", f"{AXOLOTL}{evaluates}")).left_out == ""


def test_what_generates_text_is_refused(tmp_path: Path) -> None:
    """PPO and GRPO have no fixed rows, and tools that are not started by themselves are named."""
    with pytest.raises(NotModelledError, match="generates text"):
        tool_job(written(tmp_path, "a.yaml", f"{LLAMA_FACTORY}stage: ppo\n"))
    with pytest.raises(NotModelledError, match="has no rows"):
        tool_job(written(tmp_path, "b.yaml", f"{AXOLOTL}rl: grpo\ndatasets: []\n"))
    with pytest.raises(NotModelledError, match="torchtune"):
        tool_job(
            written(
                tmp_path, "c.yaml", "model:\n  _component_: torchtune.models.llama3.llama3_8b\nepochs: 1\n"
            )
        )


HANDBOOK = (
    "model_name_or_path: m\ndataset_mixer: {d: 1.0}\ndataset_splits: [train_prefs]\nlearning_rate: 5.0e-7\n"
    "max_length: 64\nmax_prompt_length: 24\nper_device_train_batch_size: 2\noptim: adamw_torch\n"
)


def test_files_of_the_handbook_run_by_its_own_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dialogues in place of its mixture, with prompts as long as they may be; small numbers stay numbers."""
    file = written(tmp_path, "dpo_full.yaml", HANDBOOK)
    with pytest.raises(UsageError, match="install its repository"):
        tool_job(file)
    for name in ("src/alignment/__init__.py", "scripts/run_dpo.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    monkeypatch.syspath_prepend(tmp_path / "src")
    job = tool_job(file)
    assert job.command == ("python", str(tmp_path / "scripts/run_dpo.py"), f"{FOLDER}/train.yaml")
    fields = yaml.safe_load(job.files[f"{FOLDER}/train.yaml"])
    assert (fields["learning_rate"], list(fields["dataset_mixer"])) == (5e-7, [f"{FOLDER}/rows"])
    assert (fields["dataset_splits"], fields["max_length"]) == (["train", "test"], 64)
    row = json.loads(job.files[f"{FOLDER}/rows/train.jsonl"].splitlines()[0])
    question, answer = row["chosen"]
    assert (question["role"], len(question["content"].split())) == ("user", 24)
    assert (answer["role"], len(answer["content"].split())) == ("assistant", 40)


@pytest.mark.parametrize(
    ("command", "starts"),
    [
        ("llamafactory-cli train a.yaml learning_rate=1e-5", "llamafactory-cli train"),
        ("accelerate launch -m axolotl.cli.train b.yaml", "accelerate launch -m axolotl.cli.train"),
        (
            "accelerate launch --num_processes 4 trl/scripts/dpo.py --model_name_or_path m --max_length 64",
            "accelerate launch --num_processes 4 trl/scripts/dpo.py --config",
        ),
    ],
)
def test_a_command_keeps_its_launcher_and_gets_rows(
    command: str, starts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its file gets them; arguments behind the file win over it."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "a.yaml", f"{LLAMA_FACTORY}stage: sft\nlearning_rate: 1.0\n")
    written(tmp_path, "b.yaml", f"{AXOLOTL}datasets: []\n")
    job = tool_job_of_command(command.split())
    assert " ".join(job.command) == f"{starts} {FOLDER}/train.yaml"
    assert job.n_tokens == 64
    fields = yaml.safe_load(job.files[f"{FOLDER}/train.yaml"])
    assert fields.get("learning_rate") != 1.0


def test_a_program_of_ones_own_has_no_known_rows() -> None:
    """What its data looks like, only its user knows."""
    with pytest.raises(UsageError, match="no command that starts a training"):
        tool_job_of_command(["python", "train.py"])
    with pytest.raises(NotModelledError, match="is not started by itself yet"):
        tool_job_of_command(["swift", "sft", "--model", "m", "--train_type", "lora", "--dataset", "d"])
