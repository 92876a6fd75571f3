"""The way back: each rule's keys are read as the value that they stand for,
and texts keep all that is not changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.launchers.launch_lines import Launch, launch_line
from planner.configs.read import TOOLS, read_config
from planner.configs.writing.edits import REMOVED, Edit
from planner.configs.writing.sharding_keys import Files
from planner.configs.writing.text import trial_text, with_edits
from planner.configs.writing.tools import RULES
from planner.configs.writing.translate import edits_for
from planner.configs.yaml_or_json import Document, read_document
from planner.errors import InputFileError, UsageError
from planner.files.reading import reading_instead
from planner.intake.given.fields import REQUEST_FIELDS

BASES = {
    "llama-factory": "model_name_or_path: a/b\nstage: sft\nfinetuning_type: lora\nbf16: true\n",
    "axolotl": (
        "base_model: a/b\nadapter: lora\nlora_r: 8\nlora_target_linear: true\nsequence_len: "
        "64\nmicro_batch_size: 2\n"
    ),
    "trl": "model_name_or_path: a/b\nuse_peft: true\nlora_target_modules: [q_proj]\ndataset_name: c\n",
    "transformers": (
        '{"per_device_train_batch_size": 2, "num_train_epochs": 1, "bf16": true, '
        '"attn_implementation": "sdpa"}'
    ),
    "ms-swift": "model: a/b\ntuner_type: lora\nmax_length: 64\n",
    "deepspeed": '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}',
    "accelerate": "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\n",
}
# Values that a lever may set.
VALUES: dict[str, tuple[Any, ...]] = {
    "batch": (1, 4),
    "grad_accum": (8,),
    "seq": (128,),
    "lora_rank": (4,),
    "loss": ("liger", "chunked"),
    "attention": ("flash2", "sdpa", "eager"),
    "optimizer": ("adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"),
    "gradient_checkpointing": (True,),
    "checkpoint_reentrant": (False,),
    "precision": ("bf16-mixed",),
    "method": ("full", "lora", "qlora", "int8"),
    "sharding": ("zero2", "zero3", "fsdp"),
    "offload": ("activations",),
    "padding": ("packed",),
    "load_dtype": ("bf16",),
    "modules_to_save": (("lm_head",),),
}
CASES = [(tool, name, value) for tool in BASES for name, values in VALUES.items() for value in values]
QUANTIZED = {"qlora": "nf4", "int8": "int8"}


def read_with(tool: str, changes: dict[str, Any], tmp_path: Path) -> dict[str, Any] | None:
    """What is read of a tool's file after the edits for ``changes``,
    ``None`` where it has no keys for them.
    """
    path = tmp_path / ("file.json" if BASES[tool].startswith("{") else "file.yaml")
    path.write_text(BASES[tool], encoding="utf-8")
    document = read_document(path)
    edits = edits_for(Files(tool, document), changes)
    if edits is None:
        return None
    with reading_instead({path.resolve(): trial_text(document, BASES[tool], edits)}):
        reading = read_config(path, tool, Beside(look=False))
    assert reading.ignored == []
    return {name: said.value for name, said in reading.said.items()}


@pytest.mark.parametrize(
    ("tool", "name", "value"), CASES, ids=[f"{tool}-{name}-{value}" for tool, name, value in CASES]
)
def test_a_rule_is_the_inverse_of_the_reader(tool: str, name: str, value: Any, tmp_path: Path) -> None:
    """What a rule writes for a value is read as that value,
    and leaves no key that the reader does not know.
    """
    said = read_with(tool, {name: value}, tmp_path)
    if said is None:
        return
    if name == "method":
        assert said["method"] == ("full" if value == "full" else "lora")
        assert said.get("quantization") == QUANTIZED.get(value)
    else:
        assert REQUEST_FIELDS[name].parse(said[name]) == value


def test_each_tool_can_say_what_people_change_first() -> None:
    """The tables are not empty where it matters:
    micro-batch and accumulation of every tool that has rules.
    """
    for rules in RULES.values():
        assert {"batch", "grad_accum"} <= rules.keys()
    for tool in ("llama-factory", "axolotl", "trl", "transformers", "ms-swift"):
        assert {"loss", "gradient_checkpointing", "optimizer"} <= RULES[tool].keys()


def test_offload_goes_where_the_engine_is(tmp_path: Path) -> None:
    """In a table of the config, in a launch file of either engine, and nowhere where no engine runs."""
    both = {"sharding": "zero3", "offload": "optimizer+params"}
    for tool in ("llama-factory", "axolotl", "trl", "transformers", "ms-swift", "deepspeed", "accelerate"):
        said = read_with(tool, both, tmp_path)
        assert said is not None
        assert (said["sharding"], said["offload"]) == ("zero3", "optimizer+params")
        assert read_with(tool, {"offload": "optimizer+params-nvme"}, tmp_path) is None
    assert read_with("accelerate", {"sharding": "fsdp", "offload": "optimizer+params"}, tmp_path) is not None
    assert read_with("trl", {"offload": "optimizer"}, tmp_path) is None
    assert read_with("trl", {"gpu": "a100"}, tmp_path) is None


AXOLOTL_4BIT = "adapter: qlora\nload_in_4bit: true\n"
REFUSED = [
    ("axolotl", "", {"offload": "activations"}),
    ("axolotl", "", {"sharding": "fsdp", "optimizer": "adamw_8bit"}),
    ("axolotl", "fsdp_version: 2\nfsdp_config: {cpu_ram_efficient_loading: true}\n", {"method": "qlora"}),
    ("axolotl", "fsdp_config: {fsdp_offload_params: true}\n", {"optimizer": "paged_adamw_8bit"}),
    ("llama-factory", "deepspeed: {zero_optimization: {stage: 3}}\n", {"precision": "bf16"}),
    ("llama-factory", "pure_bf16: true\n", {"sharding": "zero3"}),
    ("llama-factory", "quantization_bit: 8\n", {"sharding": "fsdp"}),
    ("trl", "", {"loss": "liger"}),
]


@pytest.mark.parametrize(
    ("tool", "more", "changes"), REFUSED, ids=[f"{case[0]}-{i}" for i, case in enumerate(REFUSED)]
)
def test_what_a_tool_refuses_is_not_offered(
    tool: str, more: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Settings that the tool's own checks refuse together have no keys;
    other changes of the same file have.
    """
    path = tmp_path / "file.yaml"
    path.write_text(BASES[tool] + more, encoding="utf-8")
    files = Files(tool, read_document(path))
    assert edits_for(files, changes) is None
    assert edits_for(files, {"batch": 1}) is not None


def test_axolotl_shards_a_4_bit_base_with_a_loader_that_it_allows(tmp_path: Path) -> None:
    """Its FSDP2 refuses to load 4 bits on one rank and hand them out."""
    path = tmp_path / "file.yaml"
    for more, efficient in ((AXOLOTL_4BIT, False), ("adapter: lora\n", True)):
        path.write_text(BASES["axolotl"].replace("adapter: lora\n", more), encoding="utf-8")
        edits = edits_for(Files("axolotl", read_document(path)), {"sharding": "fsdp"})
        assert edits is not None
        assert (
            next(edit.value for edit in edits if edit.key == "fsdp_config")["cpu_ram_efficient_loading"]
            is efficient
        )


TAKES_IT_OUT = "liger_kernel_config: {fused_linear_cross_entropy: false}\n"


@pytest.mark.parametrize("also", ["", "loss_type: nll\n", TAKES_IT_OUT])
def test_trl_keeps_its_own_loss_beside_liger(tmp_path: Path, also: str) -> None:
    """use_liger_kernel brings its norms and feed-forward part, and no loss."""
    path = tmp_path / "file.yaml"
    path.write_text(BASES["trl"] + "use_liger_kernel: true\n" + also, encoding="utf-8")
    reading = read_config(path, "trl", Beside(look=False))
    assert reading.value("loss") == "chunked"
    assert reading.ignored == []
    assert not any("loss" in remark.text for remark in reading.remarks)


@pytest.mark.parametrize("also", ["", "desirable_weight: 1.0\n"])
def test_trl_fails_where_ligers_loss_is_asked_for(tmp_path: Path, also: str) -> None:
    """Trainers of answers and of preferences both: their head is fused with a loss of their own."""
    asked = TAKES_IT_OUT.replace("false", "true")
    path = tmp_path / "file.yaml"
    path.write_text(BASES["trl"] + "use_liger_kernel: true\n" + also + asked, encoding="utf-8")
    with pytest.raises(UsageError, match=r"fused_linear_cross_entropy: TRL 1\.16\.0 fails here"):
        read_config(path, "trl", Beside(look=False))


@pytest.mark.parametrize("sign", ["max_seq_length: 512\n", "torch_dtype: bfloat16\n"])
def test_older_trl_takes_ligers_loss(tmp_path: Path, sign: str) -> None:
    """Up to 1.9 no trainer looks at liger_kernel_config, and the loss of SFT is the model's."""
    asked = TAKES_IT_OUT.replace("false", "true")
    path = tmp_path / "file.yaml"
    path.write_text(BASES["trl"] + sign + "use_liger_kernel: true\n" + asked, encoding="utf-8")
    assert read_config(path, "trl", Beside(look=False)).value("loss") == "liger"


LINES = [
    ("llama-factory", Launch("a.yaml", gpus=8, engine=True), "llamafactory-cli train a.yaml"),
    ("llama-factory", Launch("a.yaml", engine=True), "FORCE_TORCHRUN=1 llamafactory-cli train a.yaml"),
    (
        "llama-factory",
        Launch("a.yaml", "b.yaml"),
        "accelerate launch --config_file b.yaml -m llamafactory.launcher a.yaml",
    ),
    ("llama-factory", Launch("a.json"), ""),
    ("ms-swift", Launch("a.yaml"), "swift sft a.yaml"),
    ("ms-swift", Launch("a.yaml", engine=True), "NPROC_PER_NODE=1 swift sft a.yaml"),
    (
        "ms-swift",
        Launch("a.yaml", deepspeed="z.json", gpus=2),
        "NPROC_PER_NODE=2 swift sft a.yaml --deepspeed z.json",
    ),
    ("ms-swift", Launch("a.yaml", "b.yaml", gpus=2), ""),
    ("axolotl", Launch("a.yml", engine=True), "axolotl train a.yml --launcher torchrun"),
    (
        "axolotl",
        Launch("a.yml", deepspeed="z.json", gpus=2, engine=True),
        "axolotl train a.yml --deepspeed z.json",
    ),
    ("trl", Launch("a.yaml", engine=True), "torchrun --nproc_per_node 1 -m trl.scripts.sft --config a.yaml"),
    ("trl", Launch("a.yaml", gpus=2, engine=True), "trl sft --config a.yaml"),
    ("trl", Launch("a.yaml", gpus=2, engine=True, task="dpo"), "trl dpo --config a.yaml"),
    ("trl", Launch("a.yaml", task="orpo"), ""),
    # TRL's commands stop at dataset_mixer.
    (
        "trl",
        Launch("a.yaml", "b.yaml", task="orpo", mixes=True),
        "accelerate launch --config_file b.yaml scripts/run_orpo.py a.yaml",
    ),
    ("trl", Launch("a.yaml", task="kto", mixes=True), ""),
    (
        "transformers",
        Launch("a.json", deepspeed="z.json", gpus=2, engine=True),
        (
            "accelerate launch --num_processes 2 --use_deepspeed --deepspeed_config_file z.json "
            "YOUR_SCRIPT.py a.json"
        ),
    ),
]


@pytest.mark.parametrize(
    ("tool", "launch", "line"), LINES, ids=[f"{case[0]}-{i}" for i, case in enumerate(LINES)]
)
def test_the_line_starts_what_was_judged(tool: str, launch: Launch, line: str) -> None:
    """An engine on one GPU gets a rank, and arguments stand where the tool reads them."""
    assert launch_line(tool, launch) == line


YAML = """\
# first
model_name_or_path: a/b   # the base

datasets:
    - path: 'x'
      type: "alpaca"   # quoted
nested: {a: 1, b: ~}

### the end
learning_rate: 1e-4
last: yes
"""


def test_yaml_keeps_comments_order_quotes_and_indentation() -> None:
    """Only the line of the changed key differs, and new keys follow at the end."""
    path = Path("x.yaml")
    edits = (Edit(path, ("learning_rate",), 3), Edit(path, ("new",), True), Edit(path, ("deep", "stage"), 3))
    written = with_edits(path, YAML, edits)
    old, new = YAML.splitlines(), written.splitlines()
    # An empty value is written in another way, which every reader reads alike.
    assert [line for line in old if line not in new] == ["nested: {a: 1, b: ~}", "learning_rate: 1e-4"]
    assert new[-4:] == ["last: yes", "new: true", "deep:", "  stage: 3"]
    assert with_edits(path, YAML, (Edit(path, ("last",), REMOVED),)).count("last") == 0
    windows = with_edits(path, YAML.replace("\n", "\r\n"), edits)
    assert windows.count("\r\n") == windows.count("\n")


def test_yaml_that_cannot_be_kept_is_refused() -> None:
    """A key given twice has no faithful text; a tag that asks for an object makes none."""
    path = Path("x.yaml")
    with pytest.raises(InputFileError, match="with its comments kept"):
        with_edits(path, "a: 1\na: 2\n", (Edit(path, ("a",), 3),))
    written = with_edits(path, "a: !!python/object/apply:os.getcwd []\nb: 1\n", (Edit(path, ("b",), 2),))
    assert "python/object" in written
    with pytest.raises(InputFileError, match="with its comments kept"):
        with_edits(path, "a: 1\n", (Edit(path, ("a", "b"), 3),))


@pytest.mark.parametrize(
    ("text", "place", "value", "wanted"),
    [
        ('{"a": 1}', ("a",), 2, '{"a": 2}'),
        (
            '{\n  "a": 1e5,\n  "b": {"c": [1, 2]}\n}\n',
            ("b", "c"),
            "x",
            '{\n  "a": 1e5,\n  "b": {"c": "x"}\n}\n',
        ),
        ('{\n  "a": 1\n}\n', ("b",), True, '{\n  "a": 1,\n  "b": true\n}\n'),
        ('{"a": {}}', ("a", "b", "c"), 1, '{"a": {"b": {"c": 1}}}'),
        ('{"a": "}", "b": 2, "c": 3}', ("b",), REMOVED, '{"a": "}", "c": 3}'),
        ('{"a": 1, "b": 2}', ("a",), REMOVED, '{"b": 2}'),
        ('{"a": 1}', ("a",), REMOVED, "{}"),
        ('{"a": 1}', ("z",), REMOVED, '{"a": 1}'),
        ("{}", ("a",), None, '{"a": null}'),
    ],
)
def test_json_changes_in_place(text: str, place: tuple[str, ...], value: object, wanted: str) -> None:
    """Everything but the value itself stays, to the blank."""
    path = Path("x.json")
    assert with_edits(path, text, (Edit(path, place, value),)) == wanted


@pytest.mark.parametrize(
    ("text", "key", "value", "wanted"),
    [
        ("batch = 8 # all\nseq = 1\n", "batch", 1, "batch = 1 # all\nseq = 1\n"),
        ('loss = "a#b"# why\n', "loss", "liger", 'loss = "liger"# why\n'),
        ("seq = 1", "loss", "liger", 'seq = 1\nloss = "liger"\n'),
        ("seq = 1\nmodules-to-save = ['x']\n", "modules_to_save", REMOVED, "seq = 1\n"),
    ],
)
def test_toml_changes_in_place(text: str, key: str, value: object, wanted: str) -> None:
    """The comment behind a value stays."""
    path = Path("x.toml")
    assert with_edits(path, text, (Edit(path, (key,), value),)) == wanted


def test_toml_over_several_lines_is_refused() -> None:
    """Better no change than half of one."""
    path = Path("x.toml")
    with pytest.raises(InputFileError, match="several lines"):
        with_edits(path, "lora_targets = [\n 'a',\n]\n", (Edit(path, ("lora_targets",), ["b"]),))


def test_a_table_is_printed_as_its_keys(tmp_path: Path) -> None:
    """What is left to the trainer is counted, not listed."""
    document = Document(tmp_path / "a.yaml", {"base_model": "x"})
    edits = edits_for(Files("axolotl", document), {"sharding": "zero2"})
    assert edits is not None
    lines = edits[0].lines
    assert "deepspeed.zero_optimization.stage: 2" in lines
    assert lines[-1].startswith("and ")


def test_a_change_is_not_written_for_a_tool_without_rules(tmp_path: Path) -> None:
    """A tool whose reader is new has none: its file is judged, and what would make it fit stays a flag."""
    assert set(RULES) < set(TOOLS)
    files = Files("torchtitan", Document(tmp_path / "train.toml", {"training": {}}), None, None)
    assert edits_for(files, {"batch": 2}) is None
