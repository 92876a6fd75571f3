"""What cannot be used of a config file: one sentence that names the file, the key and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.read import read_config
from planner.configs.yaml_or_json import MAX_DOCUMENT_BYTES, read_document
from planner.errors import InputFileError, NotModelledError, PlannerError, UsageError
from planner.intake.given.config_file import read_config_file
from tests.files import read, written

LLAMA_FACTORY = "model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: lora\nbf16: true\n"
AXOLOTL = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\n"
TRL = "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_peft: true\n"


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("", "a.yaml", "empty: fill in the keys of the job, or ask without a file: plan --model"),
        ("# only a comment\n", "a.yaml", "empty"),
        ("", "a.json", "empty"),
        ("- a\n- b\n", "a.yaml", "at its top is a list"),
        ("[1, 2]", "a.json", "at its top is a list"),
        ("just words", "a.yaml", "at its top is text"),
        ("base_model: {{ model }}\n", "a.yaml", ":1: a key is a list or a table, as where a placeholder"),
        ("? [a, b]\n: 1\n", "a.yaml", ":1: a key is a list or a table"),
        ('{"a": {"b": 1, "b": 2}}', "a.json", ":1: not valid JSON: a name is given twice in one object"),
        ("a: &x [1]\nb: *x\n", "a.yaml", ":2: aliases"),
        ("a: {b: 1", "a.yaml", "not valid YAML"),
        ('{"a": ', "a.json", ":1: not valid JSON"),
        ("a: !!python/object/apply:os.system ['true']\n", "a.yaml", "not valid YAML"),
        ("1: 2\n", "a.yaml", "keys must be text"),
        ("[" * 5000, "a.yaml", "nested too deeply"),
        ("[" * 100_000, "a.json", "nested too deeply"),
        ("a: 2026-99-99\n", "a.yaml", "not valid YAML"),
        ("x: " + "y" * MAX_DOCUMENT_BYTES, "a.yaml", "larger than the limit"),
        ('{"text": "a"}\n{"text": "b"}\n', "a.jsonl", "a data set, not a job: plan ... --data"),
        ("import torch\n", "a.py", "measure trace --gpu NAME -- python"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_sentence(
    tmp_path: Path, text: str, name: str, sentence: str
) -> None:
    """Empty files, lists, placeholders, aliases, other objects, deep nesting and huge files,
    with the line where known.
    """
    with pytest.raises(InputFileError) as caught:
        read_document(written(tmp_path, text, name))
    assert sentence in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_or_not_files_are_refused(tmp_path: Path) -> None:
    """A missing file and a folder are named."""
    with pytest.raises(InputFileError, match="no such file"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(InputFileError, match="not a regular file"):
        read_document(tmp_path)


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        (LLAMA_FACTORY + "lora_rank: many\n", InputFileError, "lora_rank: lora_rank must be a whole number"),
        ("stage: sft\nmodel_name_or_path: ${M}\n", InputFileError, "fill it in first, or say --model"),
        (LLAMA_FACTORY + "selected_layers: [up]\n", UsageError, "unknown key, whose name ('selected')"),
        (LLAMA_FACTORY + "cutoff_len: 0\n", InputFileError, "cutoff_len: seq must be a whole number"),
        (LLAMA_FACTORY + "packing: 3\n", InputFileError, "key 'packing' must be true or false"),
        (LLAMA_FACTORY + "quantization_bit: 3\n", InputFileError, "key 'quantization_bit' must be 4 or 8"),
        (
            LLAMA_FACTORY + "quantization_bit: '\u00b2'\n",
            InputFileError,
            "key 'quantization_bit' must be a whole number",
        ),
        (
            LLAMA_FACTORY + "label_smoothing_factor: 0.1\n",
            NotModelledError,
            "label_smoothing_factor: the loss",
        ),
        (
            LLAMA_FACTORY + "deepspeed: auto\n",
            InputFileError,
            "which ends in none of .json, .yaml, .yml, .conf; say where it is: --deepspeed",
        ),
        (
            LLAMA_FACTORY + "use_badam: true\n",
            UsageError,
            "use_badam: does not go beside adapters",
        ),
        (LLAMA_FACTORY + "stage: ppo\n", NotModelledError, "stage: PPO is modelled of LLaMA-Factory 0.7"),
        (
            LLAMA_FACTORY + "stage: ppo\noverwrite_cache: true\n",
            UsageError,
            "reward_model is not given",
        ),
        (LLAMA_FACTORY.replace("lora", "vera"), NotModelledError, "finetuning_type: 'vera'"),
        (LLAMA_FACTORY + "optim: lomo\n", NotModelledError, "optim: optimizer 'lomo'"),
        (LLAMA_FACTORY + "fp16: true\n", UsageError, "are both true"),
        (LLAMA_FACTORY + "deepspeed: nowhere.json\n", InputFileError, "'deepspeed' names nowhere.json"),
        (
            LLAMA_FACTORY
            + "fsdp: full_shard\nfsdp_config: {version: 1, sharding_strategy: HYBRID_SHARD_ZERO2}\n",
            NotModelledError,
            "hybrid",
        ),
        (AXOLOTL + "tensor_parallel_size: 2\n", NotModelledError, "a tensor-parallel degree of 2"),
        (AXOLOTL + "context_parallel_size: two\n", InputFileError, "must be a whole number"),
        (AXOLOTL + "adapter: qlora\n", UsageError, "load_in_4bit"),
        (AXOLOTL + "load_in_8bit: true\n", UsageError, "through adapters only"),
        (AXOLOTL + "sage_attention: true\n", NotModelledError, "sage_attention"),
        (
            AXOLOTL + "plugins: [axolotl.integrations.spectrum.SpectrumPlugin]\n",
            NotModelledError,
            "what spectrum trains",
        ),
        (AXOLOTL + "rl: ebft\nebft: {mode: strided}\n", NotModelledError, "ebft.mode: strided"),
        (
            TRL + "lora_target_modules: [q_proj]\nlora_target_parameters: [22.mlp.experts.down_proj]\n",
            NotModelledError,
            "of one layer",
        ),
        (TRL + "load_in_4bit: true\nload_in_8bit: true\n", UsageError, "both true"),
        (TRL + "attn_implementation: sage\n", NotModelledError, "attention 'sage'"),
        (TRL + "dtype: int4\n", InputFileError, "key 'dtype' must be auto"),
        (TRL.replace("true", "false") + "load_in_4bit: true\n", UsageError, "say use_peft: true"),
    ],
)
def test_a_key_that_cannot_be_used_is_named(
    tmp_path: Path, text: str, error: type[PlannerError], sentence: str
) -> None:
    """Wrong types and ranges end with 2, what no formula covers with 6; both name file and key."""
    with pytest.raises(error) as caught:
        read(tmp_path, text)
    assert sentence in str(caught.value)
    assert "train.yaml" in str(caught.value)


@pytest.mark.parametrize("text", [LLAMA_FACTORY + "num_train_epochs: 2\n", AXOLOTL + "num_epochs: 2\n"])
def test_a_run_that_ends_by_steps_has_no_epochs(tmp_path: Path, text: str) -> None:
    """``max_steps`` wins over epochs in every tool, so none are taken over and a remark says so."""
    assert read(tmp_path, text).request.get("epochs") == 2
    config = read(tmp_path, text + "max_steps: 100\n")
    assert config.request.get("epochs") is None
    assert [remark.text for remark in config.remarks if remark.origin.endswith(":max_steps")] != []
    for unused in (0, -1):
        config = read(tmp_path, text + f"max_steps: {unused}\n")
        assert config.request.get("epochs") == 2


def test_an_unknown_key_is_reported_and_a_harmless_one_is_not(tmp_path: Path) -> None:
    """A key that says nothing of memory is ignored by name, in nested tables too;
    known ones without effect are left alone.
    """
    ds = written(tmp_path, '{"zero_optimization": {"stage": 2, "speed": 9}, "steps_per_print": 3}', "ds.json")
    config = read(tmp_path, LLAMA_FACTORY + "colour: 8\nseed: 7\ndeepspeed: ds.json\n")
    assert config.ignored == [f"{ds}:zero_optimization.speed", f"{tmp_path}/train.yaml:colour"]


def test_a_dtype_of_deepspeed_that_the_trainer_has_not_is_refused(tmp_path: Path) -> None:
    """Transformers compares both files' bf16;
    one that only DeepSpeed's says stops the job before it loads anything.
    """
    written(tmp_path, '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}', "ds.json")
    training = "per_device_train_batch_size: 2\ndeepspeed: ds.json\n"
    with pytest.raises(UsageError, match="has neither bf16 nor fp16 on"):
        read(tmp_path, training)
    assert read(tmp_path, training + "bf16: true\n").request.get("precision") == "bf16-mixed"


@pytest.mark.parametrize(("stage", "value", "remarked"), [(3, "false", 1), (3, "true", 0), (2, "false", 0)])
def test_torchs_own_linear_under_zero3_is_remarked_on(
    tmp_path: Path, stage: int, value: str, remarked: int
) -> None:
    """DeepSpeed's keeps every input, and is what is counted."""
    zero = f'{{"zero_optimization": {{"stage": {stage}, "memory_efficient_linear": {value}}}}}'
    written(tmp_path, zero, "ds.json")
    config = read(tmp_path, LLAMA_FACTORY + "deepspeed: ds.json\n")
    assert [each.origin.rpartition(".")[2] for each in config.remarks] == [
        "memory_efficient_linear"
    ] * remarked


def test_an_accelerate_file_beside_axolotls_own_fsdp_says_the_gpus(tmp_path: Path) -> None:
    """The counts of the launcher are read whatever shards."""
    accelerate = written(tmp_path, "distributed_type: MULTI_GPU\nnum_processes: 4\n", "accelerate.yaml")
    path = written(tmp_path, AXOLOTL + "fsdp_version: 2\nfsdp_config: {offload_params: true}\n")
    config = read_config_file(path, None, Beside(accelerate=accelerate))
    asked = [config.request.get(name) for name in ("gpus", "sharding", "offload")]
    assert asked == [4, "fsdp", "optimizer+params"]


@pytest.mark.parametrize(
    ("text", "evaluated"),
    [
        ("eval_strategy: steps\n", 8),
        ("eval_strategy: steps\nper_device_eval_batch_size: 2\n", 2),
        ("per_device_eval_batch_size: 2\n", None),
        ("eval_strategy: 'no'\n", None),
    ],
)
def test_the_batch_of_an_evaluation_counts_where_there_is_one(
    tmp_path: Path, text: str, evaluated: int | None
) -> None:
    """The Trainer evaluates 8 samples at once unless told otherwise,
    and nothing where no strategy says so.
    """
    config = read(tmp_path, LLAMA_FACTORY + text)
    assert config.request.get("eval_batch") == evaluated


def test_checkpointing_of_llama_factory_is_turned_off_by_its_own_key_only(tmp_path: Path) -> None:
    """The Trainer's key has no effect when it says false, and that is said; LLaMA-Factory's own key has."""
    config = read(tmp_path, LLAMA_FACTORY + "gradient_checkpointing: false\n")
    assert config.request.get("gradient_checkpointing") is None
    assert [remark.text for remark in config.remarks] == [
        "has no effect: only disable_gradient_checkpointing turns it off"
    ]
    config = read(tmp_path, LLAMA_FACTORY + "disable_gradient_checkpointing: true\n")
    assert config.request.get("gradient_checkpointing") is False


def test_plugins_of_axolotl_are_counted_or_refused(tmp_path: Path) -> None:
    """Cut cross entropy is a loss without full logits; what tracks is harmless;
    what nobody knows may change anything.
    """
    own = ", ".join(
        f"axolotl.integrations.{name}"
        for name in ("cut_cross_entropy.CutCrossEntropyPlugin", "lm_eval.LMEvalPlugin")
    )
    config = read(tmp_path, AXOLOTL + f"plugins: [{own}]\n")
    assert config.request.get("loss") == "liger"
    assert "cut_cross_entropy=true" in str(config.request.get("switches"))
    assert (config.ignored, config.remarks) == ([], [])
    for other, sentence in (
        ("mine.Plugin", "mine.Plugin is not known"),
        ("axolotl.integrations.grokfast.GrokfastPlugin", "grokfast"),
    ):
        with pytest.raises(NotModelledError, match=sentence):
            read(tmp_path, AXOLOTL + f"plugins: [{own}, {other}]\n")


@pytest.mark.parametrize(
    ("base", "half"), [(LLAMA_FACTORY.replace("bf16: true\n", ""), "bf16: true"), (AXOLOTL, "bf16: auto")]
)
def test_tf32_is_remarked_on_where_products_are_in_fp32(tmp_path: Path, base: str, half: str) -> None:
    """Beside 16-bit products it changes nothing, so nothing is said."""
    remarks = {
        text: [
            remark.text for remark in read_config(written(tmp_path, f"{base}{text}\ntf32: true\n")).remarks
        ]
        for text in (half, "")
    }
    assert not any("TF32" in text for text in remarks[half])
    assert any("TF32 on tensor cores is faster" in text for text in remarks[""])


@pytest.mark.parametrize("kind", ["accelerate", "deepspeed"])
def test_a_launch_file_of_another_program_is_refused(tmp_path: Path, kind: str) -> None:
    """With not one key that the tool knows, a file says nothing about the job:
    it is not counted as the tool's defaults.
    """
    other = written(tmp_path, '{"auths": {"example.com": 1}}', "other.json")
    with pytest.raises(InputFileError, match=r"other\.json: none of its keys is known"):
        read_config(written(tmp_path, TRL), beside=Beside(**{kind: other}))
    with pytest.raises(InputFileError, match=r"train\.yaml: none of its keys is known"):
        read_config(written(tmp_path, "token: abc\n"), "trl")


def test_a_home_folder_of_nobody_is_a_name_like_any_other(tmp_path: Path) -> None:
    """``~name`` stands for a folder only where there is such a user."""
    text = LLAMA_FACTORY + "deepspeed: ~no-such-user/zero.json\n"
    with pytest.raises(InputFileError, match=r"names ~no-such-user/zero\.json, which is neither"):
        read_config(written(tmp_path, text))
