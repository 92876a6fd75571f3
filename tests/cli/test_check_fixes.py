"""``plan check``: levers in a file's own keys, files written with them, launch lines,
launch files and what may pass.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from planner.cli.main import main
from planner.report.check.document import CheckDocument, CheckResultPart

COMMENT = "# as it ran in May"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one check."""
    code = main(["check", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def one(capsys: pytest.CaptureFixture[str], *arguments: str) -> CheckResultPart:
    """The only result of a check, as JSON has it."""
    (result,) = CheckDocument.model_validate_json(run(capsys, *arguments, "--json")[1]).results
    return result


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own, where file names are short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


LLAMA_FACTORY = f"""\
{COMMENT}
model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
finetuning_type: lora
quantization_bit: 4
template: llama3

### lengths
cutoff_len: 4096   # tokens
per_device_train_batch_size: 8
bf16: true
learning_rate: 1.0e-4
"""
AXOLOTL = f"""\
base_model: mistralai/Mistral-7B-v0.1   {COMMENT}
load_in_4bit: true
adapter: qlora
lora_r: 64
lora_alpha: 32
lora_target_linear: true
datasets:
  - path: my/notes
    type: alpaca
sequence_len: 8192
micro_batch_size: 4
sample_packing: true
gradient_checkpointing: true
bf16: auto
"""
TRL = f"""\
{COMMENT}
model_name_or_path: mistralai/Mistral-7B-v0.1
dtype: bfloat16
use_peft: true
load_in_4bit: true
lora_target_modules: [q_proj, k_proj, v_proj, o_proj]
dataset_name: my/notes
max_length: 4096
packing: true
per_device_train_batch_size: 16
"""
TRANSFORMERS = """\
{
    "output_dir": "out",  "learning_rate": 3e-5,
    "per_device_train_batch_size": 32, "optim": "adamw_torch_fused",
    "bf16": true
}
"""
DEEPSPEED = (
    '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}\n'
)
ACCELERATE = f"""\
{COMMENT}
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 4
deepspeed_config:
  zero_stage: 1
"""
OWN = f"""\
model = "llama-3.1-8b"   {COMMENT}
method = "qlora"
seq = 8_192
batch = 4
"""
FULL = ("--model", "7b", "--method", "full", "--seq", "512")
# Name, text, flags: jobs that do not fit as they are.
JOBS = [
    ("train.yaml", LLAMA_FACTORY, ("--gpu", "3090")),
    ("axolotl.yml", AXOLOTL, ("--gpu", "3060")),
    ("trl.yaml", TRL, ("--gpu", "3060")),
    ("args.json", TRANSFORMERS, ("--gpu", "a100-80-sxm", *FULL)),
    ("ds.json", DEEPSPEED, ("--gpu", "a100-40-sxm:4", *FULL, "--gradient-checkpointing")),
    ("launch.yaml", ACCELERATE, ("--gpu", "a100-40-sxm", *FULL, "--gradient-checkpointing")),
    ("job.toml", OWN, ("--gpu", "3090")),
]


@pytest.mark.every(2)
@pytest.mark.parametrize(("name", "text", "flags"), JOBS, ids=[job[0] for job in JOBS])
def test_the_written_file_fits_as_promised_and_keeps_the_rest(
    capsys: pytest.CaptureFixture[str], name: str, text: str, flags: tuple[str, ...]
) -> None:
    """For each tool: the keys of the remedy are in the new file, everything else is as it was,
    and the check of it is 0.
    """
    Path(name).write_text(text, encoding="utf-8")
    before = one(capsys, name, *flags)
    assert before.exit_code in (3, 4)
    assert before.remedy
    target = f"fixed{Path(name).suffix}"
    code, out, err = run(capsys, name, *flags, "--write", target)
    assert (code, err) == (0, "")
    assert Path(name).read_text(encoding="utf-8") == text
    after = one(capsys, target, *flags)
    promised, found = before.remedy[-1], after.answer
    assert found is not None
    assert (
        (found.verdict, found.fits_probability)
        == (promised.verdict, promised.fits_probability)
        == (
            "fits",
            promised.fits_probability,
        )
    )
    assert f"Written: {target}" in out
    assert after.launch is not None
    assert out.splitlines()[-1] == f"{_typed(target, flags)} && {after.launch}"
    edits = [edit for fix in before.remedy for edit in fix.edits]
    kept = [
        line
        for line in text.splitlines()
        if not any(f"{edit.key.rpartition('.')[2]}" in line for edit in edits)
    ]
    written = Path(target).read_text(encoding="utf-8")
    assert [line for line in kept if name.endswith(".json") or line in written.splitlines()] == kept
    if COMMENT in text:
        assert COMMENT in written


def _typed(config: str, flags: tuple[str, ...]) -> str:
    """The check as the report repeats it, whose flags stand in the order of the help."""
    order = ["--model", "--method", "--gpu", "--seq", "--gradient-checkpointing"]
    said = {
        flag: flags[at + 1] if flag != "--gradient-checkpointing" else ""
        for at, flag in enumerate(flags)
        if flag in order
    }
    return " ".join(
        ["plan check", config, *(f"{flag} {said[flag]}".strip() for flag in order if flag in said)]
    )


def test_json_keeps_its_own_layout(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the changed numbers and the new keys differ: not even ``3e-5`` is written otherwise."""
    Path("args.json").write_text(TRANSFORMERS, encoding="utf-8")
    assert run(capsys, "args.json", "--gpu", "a100-80-sxm", *FULL, "--write", "new.json")[0] == 0
    written = Path("new.json").read_text(encoding="utf-8")
    assert '"output_dir": "out",  "learning_rate": 3e-5,\n' in written
    assert json.loads(written).items() > json.loads(TRANSFORMERS).items() - {
        ("per_device_train_batch_size", 32)
    }


def test_the_fix_is_printed_in_the_files_own_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines to paste, then the command that writes them, and the verdict once more as the last line."""
    text = LLAMA_FACTORY.replace("batch_size: 8", "batch_size: 6") + "packing: true\n"
    Path("train.yaml").write_text(text, encoding="utf-8")
    code, out, _ = run(capsys, "train.yaml", "--gpu", "3090")
    lines = out.splitlines()
    assert code == 3
    assert "    enable_liger_kernel: true" in lines
    assert {"    per_device_train_batch_size: 1", "    gradient_accumulation_steps: 6"} <= set(lines)
    assert lines[-2] == "plan check train.yaml --gpu 3090 --write train-fits.yaml"
    assert lines[-1] == lines[0]
    assert lines[0].startswith("DOES NOT FIT")


def test_a_lever_of_the_deepspeed_file_is_printed_with_its_name_and_both_files_are_written(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """The new config names the new DeepSpeed file; both old files stay."""
    stage1 = '{"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}}\n'
    (folder / "ds").mkdir()
    Path("ds/z1.json").write_text(stage1, encoding="utf-8")
    text = (
        LLAMA_FACTORY.replace("lora\nquantization_bit: 4", "full").replace("8\n", "1\n")
        + "deepspeed: ds/z1.json\n"
    )
    text += "enable_liger_kernel: true\n"
    Path("train.yaml").write_text(text, encoding="utf-8")
    flags = ("--gpu", "a100-40-sxm:8")
    result = one(capsys, "train.yaml", *flags)
    edits = [edit for fix in result.remedy for edit in fix.edits]
    assert {edit.file for edit in edits} == {"ds/z1.json"}
    out = run(capsys, "train.yaml", *flags)[1]
    assert "    in ds/z1.json:" in out.splitlines()
    assert run(capsys, "train.yaml", *flags, "--write", "out.yaml")[0] == 0
    assert yaml.safe_load(Path("out.yaml").read_text(encoding="utf-8"))["deepspeed"] == "out_z1.json"
    assert json.loads(Path("out_z1.json").read_text(encoding="utf-8"))["zero_optimization"]["stage"] > 1
    assert Path("ds/z1.json").read_text(encoding="utf-8") == stage1


def test_a_lever_of_the_launch_file_is_written_and_launched_with(capsys: pytest.CaptureFixture[str]) -> None:
    """``accelerate launch``'s file is written beside the config, and the last line names it."""
    Path("launch.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 8\n", encoding="utf-8")
    Path("trl.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-7B\ndataset_name: my/notes\npacking: true\n", encoding="utf-8"
    )
    flags = ("trl.yaml", "--gpu", "a100-40-sxm", "--batch", "1", "--accelerate", "launch.yaml")
    result = one(capsys, *flags)
    assert result.answer is not None
    assert "sharding" not in [entry.setting for entry in result.answer.assumed]
    code, out, _ = run(capsys, *flags, "--write", "new.yaml")
    assert code == 0
    assert out.splitlines()[-1].endswith("&& trl sft --config new.yaml --accelerate_config new_launch.yaml")
    assert yaml.safe_load(Path("new_launch.yaml").read_text(encoding="utf-8"))["distributed_type"] in (
        "FSDP",
        "DEEPSPEED",
    )


def test_nothing_is_overwritten_but_the_config_by_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is there is refused before anything is written; the config may be changed in place."""
    Path("train.yaml").write_text(LLAMA_FACTORY, encoding="utf-8")
    Path("there.yaml").write_text("mine", encoding="utf-8")
    code, _, err = run(capsys, "train.yaml", "--gpu", "3090", "--write", "there.yaml")
    assert code == 2
    assert "there.yaml is there already" in err
    assert Path("there.yaml").read_text(encoding="utf-8") == "mine"
    assert sorted(path.name for path in Path().iterdir()) == ["there.yaml", "train.yaml"]
    code, out, _ = run(capsys, "train.yaml", "--gpu", "3090", "--write", "train.yaml")
    assert code == 0
    assert "Overwritten: train.yaml" in out


def test_what_cannot_be_mended_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    """No change of a 70B full fine-tune makes it fit on one small card with little RAM:
    exit code 3 and no file.
    """
    Path("job.toml").write_text('model = "llama-3.1-70b"\nmethod = "full"\nseq = 512\n', encoding="utf-8")
    code, out, _ = run(capsys, "job.toml", "--gpu", "3060", "--host-memory", "16GB", "--write", "new.toml")
    assert code == 3
    assert out.splitlines()[-1].startswith("DOES NOT FIT")
    assert "new.toml: not written, because no change that these files have a key for" in " ".join(out.split())
    assert not Path("new.toml").exists()


def test_changes_on_top_of_each_other_where_none_alone_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    """The remedy may be several changes; what it promises is what the written file gives."""
    text = LLAMA_FACTORY.replace("lora\nquantization_bit: 4", "full").replace("4096", "16384")
    Path("train.yaml").write_text(text, encoding="utf-8")
    flags = ("train.yaml", "--gpu", "a100-40-sxm:8", "--host-memory", "64GB")
    result = one(capsys, *flags)
    assert len({edit.key for fix in result.remedy for edit in fix.edits}) > 2
    assert "training" not in {fix.kind for fix in result.remedy}
    assert run(capsys, *flags, "--write", "new.yaml")[0] == 0


LAUNCHES = [
    ("train.yaml", LLAMA_FACTORY, "b200", "llamafactory-cli train train.yaml"),
    ("axolotl.yml", AXOLOTL, "b200", "axolotl train axolotl.yml"),
    ("trl.yaml", TRL, "b200", "trl sft --config trl.yaml"),
    ("args.json", TRANSFORMERS, "b200:2", "torchrun --nproc_per_node 2 YOUR_SCRIPT.py args.json"),
    ("ds.json", DEEPSPEED, "b200:4", "deepspeed --num_gpus 4 YOUR_SCRIPT.py --deepspeed ds.json"),
    ("launch.yaml", ACCELERATE, "b200", "accelerate launch --config_file launch.yaml YOUR_SCRIPT.py"),
]


@pytest.mark.parametrize(("name", "text", "gpu", "launch"), LAUNCHES, ids=[case[0] for case in LAUNCHES])
def test_a_fitting_check_ends_with_the_line_for_a_launch_script(
    capsys: pytest.CaptureFixture[str], name: str, text: str, gpu: str, launch: str
) -> None:
    """The same check, and what starts the job if it fits."""
    Path(name).write_text(text, encoding="utf-8")
    said = ("--model", "7b", "--method", "full", "--gpu", gpu, "--seq", "512", "--batch", "1")
    flags = said if name in ("args.json", "ds.json", "launch.yaml") else ("--gpu", gpu)
    code, out, _ = run(capsys, name, *flags)
    assert code == 0
    assert out.splitlines()[-1] == f"plan check {name} {' '.join(flags)} && {launch}"


def test_adapters_over_weights_in_32_bits_are_told_the_one_key_that_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """TRL loads fp32 where the file says no dtype: the fix is that key, before offload and sharding."""
    Path("trl.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-7B-Instruct\ndataset_name: x/y\nmax_length: 4096\nuse_peft: true\n"
        "lora_target_modules: all-linear\nper_device_train_batch_size: 1\nbf16: true\n",
        encoding="utf-8",
    )
    code, out, _ = run(capsys, "trl.yaml", "--gpu", "4090")
    assert code == 3
    first = out[out.index("What would make it fit") :].splitlines()
    assert first[1].startswith("Frozen weights loaded in bf16: saves ")
    assert "    dtype: bfloat16" in first[2:4]
    assert run(capsys, "trl.yaml", "--gpu", "4090", "--write", "fits.yaml")[0] == 0
    assert "dtype: bfloat16" in Path("fits.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("launcher", ["accelerate launch --num_processes 2", "torchrun --nproc_per_node 2"])
def test_the_fixes_of_a_launch_line_are_options_that_do_what_they_say(
    capsys: pytest.CaptureFixture[str], launcher: str
) -> None:
    """A command has no file of Accelerate: what stands there is pasted into the command, and then fits."""
    job = (
        "trl/scripts/sft.py --model_name_or_path Qwen/Qwen2.5-7B-Instruct --dataset_name x/y --bf16 "
        "--max_length 2048 --per_device_train_batch_size 2 --gradient_checkpointing --use_peft --lora_r 16"
    )
    Path("run.sh").write_text(f"{launcher} {job}\n", encoding="utf-8")
    code, out, _ = run(capsys, "run.sh", "--gpu", "4090:2")
    assert code == 3
    options = [line.strip() for line in out.splitlines() if line.startswith("    accelerate launch ")]
    assert "accelerate launch --use_deepspeed --zero_stage 2" in options
    assert any("--use_fsdp" in line for line in options)
    for line in options:
        Path("fixed.sh").write_text(f"{line} --num_processes 2 {job}\n", encoding="utf-8")
        assert run(capsys, "fixed.sh", "--gpu", "4090:2")[0] == 0, line
    # How to ask for more is one line that can be copied.
    assert out.splitlines()[out.splitlines().index("More:") + 1].startswith("plan --stack trl ")


def test_each_launch_file_is_an_answer_and_one_may_belong_to_one_config(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``--accelerate`` given twice asks twice; ``CONFIG=FILE`` is for that config alone,
    and must name one.
    """
    for name, stage in (("z2.yaml", 2), ("z3.yaml", 3)):
        Path(name).write_text(
            f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: {stage}\n", encoding="utf-8"
        )
    for name in ("a.yaml", "b.yaml"):
        Path(name).write_text(
            "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: my/notes\n", encoding="utf-8"
        )
    flags = ("--gpu", "a100-80-sxm:2", "--json")
    both = run(capsys, "a.yaml", "b.yaml", "--accelerate", "z2.yaml", "--accelerate", "z3.yaml", *flags)[1]
    results = CheckDocument.model_validate_json(both).results
    assert [(each.config, each.accelerate) for each in results] == [
        ("a.yaml", "z2.yaml"), ("a.yaml", "z3.yaml"), ("b.yaml", "z2.yaml"), ("b.yaml", "z3.yaml"),
    ]  # fmt: skip
    assert results[0].answer is not None
    assert results[1].answer is not None
    assert results[0].answer.needs_bytes != results[1].answer.needs_bytes
    own = run(
        capsys, "a.yaml", "b.yaml", "--accelerate", "z2.yaml", "--accelerate", "b.yaml=z3.yaml", *flags
    )[1]
    results = CheckDocument.model_validate_json(own).results
    assert [(each.config, each.accelerate) for each in results] == [
        ("a.yaml", "z2.yaml"),
        ("b.yaml", "z3.yaml"),
    ]
    code, _, err = run(capsys, "a.yaml", "--accelerate", "c.yaml=z3.yaml", *flags)
    assert (code, "'c.yaml' is none of the configs" in err) == (2, True)


def test_what_is_assumed_is_said_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Plain DDP and full lengths are in the human output until a flag or a file says them."""
    Path("train.yaml").write_text(LLAMA_FACTORY, encoding="utf-8")
    words = " ".join(run(capsys, "train.yaml", "--gpu", "b200:2")[1].split())
    assert "--accelerate FILE or --sharding NAME says otherwise" in words
    assert "--tokens-per-sample N says otherwise" in words
    said = run(capsys, "train.yaml", "--gpu", "b200:2", "--sharding", "ddp", "--tokens-per-sample", "900")[1]
    assert "says otherwise" not in said


def test_allowed_verdicts_pass_and_unknown_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """``--allow`` changes the exit code alone: a job that does not fit never passes."""
    Path("mca.yaml").write_text(LLAMA_FACTORY + "use_mca: true\n", encoding="utf-8")
    Path("train.yaml").write_text(f"{LLAMA_FACTORY}packing: true\n", encoding="utf-8")
    assert run(capsys, "mca.yaml", "--gpu", "b200")[0] == 6
    assert run(capsys, "mca.yaml", "--gpu", "b200", "--allow", "not-modelled")[0] == 0
    assert run(capsys, "mca.yaml", "--gpu", "b200", "--allow", "uncertain")[0] == 6
    assert run(capsys, "train.yaml", "--gpu", "3090", "--allow", "uncertain,not-modelled")[0] == 3
    code, _, err = run(capsys, "train.yaml", "--gpu", "3090", "--allow", "short")
    assert code == 2
    assert "uncertain, not-modelled" in err


def test_a_table_of_many_stays_within_80_columns(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """The folder that all files share is said once; no row is broken, and the last line counts."""
    deep = folder / "recipes" / "supervised" / "fine-tuning-of-language-models"
    deep.mkdir(parents=True)
    names = [f"experiment-{number}-with-a-long-name.yaml" for number in range(3)]
    for name in names:
        (deep / name).write_text(f"{LLAMA_FACTORY}packing: true\n", encoding="utf-8")
    code, out, _ = run(capsys, *[str((deep / name).relative_to(folder)) for name in names], "--gpu", "3090")
    lines = out.splitlines()
    assert code == 3
    assert [line.split()[-1] for line in lines[2:5]] == names
    assert all(len(line) <= 80 for line in lines)
    assert re.fullmatch(r"Of 3: does not fit: 3; exit code 3", lines[-1])


def test_ruamel_is_loaded_for_writing_alone() -> None:
    """The levers of a check are read without it."""
    import subprocess
    import sys

    Path("train.yaml").write_text(LLAMA_FACTORY, encoding="utf-8")
    code = (
        "import sys\nfrom planner.cli.main import main\nmain(['check', 'train.yaml', '--gpu', "
        "'3090'])\nassert 'ruamel.yaml' not in sys.modules\nmain(['check', 'train.yaml', '--gpu', '3090', "
        "'--write', 'new.yaml'])\nassert 'ruamel.yaml' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
