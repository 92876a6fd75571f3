"""What cannot be used of a config file: one sentence that names the file, the key and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.read import read_config
from planner.configs.yaml_or_json import MAX_DOCUMENT_BYTES, read_document
from planner.errors import InputFileError, NotModelledError, PlannerError, UnknownNameError, UsageError
from planner.intake.given.config_file import read_config_file, with_flags
from planner.intake.given.request import from_flags

LLAMA_FACTORY = "model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: lora\nbf16: true\n"
AXOLOTL = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\n"
TRL = "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_peft: true\n"


def written(folder: Path, text: str, name: str = "train.yaml") -> Path:
    """A file with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("", "a.yaml", "empty"),
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
            "use_badam: LLaMA-Factory refuses it beside adapters",
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
        (AXOLOTL + "flex_attention: true\n", NotModelledError, "flex_attention"),
        (
            AXOLOTL + "plugins: [axolotl.integrations.spectrum.SpectrumPlugin]\n",
            NotModelledError,
            "what spectrum trains",
        ),
        (AXOLOTL + "rl: gdpo\n", NotModelledError, "rl: reinforcement"),
        (
            TRL + "lora_target_modules: [q_proj]\nlora_target_parameters: [22.mlp.experts.down_proj]\n",
            NotModelledError,
            "of one layer",
        ),
        (TRL + "load_in_4bit: true\nload_in_8bit: true\n", UsageError, "both true"),
        (TRL + "attn_implementation: flex_attention\n", NotModelledError, "attention 'flex_attention'"),
        (TRL + "dtype: int4\n", InputFileError, "key 'dtype' must be auto"),
        (TRL.replace("true", "false") + "load_in_4bit: true\n", UsageError, "say use_peft: true"),
    ],
)
def test_a_key_that_cannot_be_used_is_named(
    tmp_path: Path, text: str, error: type[PlannerError], sentence: str
) -> None:
    """Wrong types and ranges end with 2, what no formula covers with 6; both name file and key."""
    with pytest.raises(error) as caught:
        read_config_file(written(tmp_path, text))
    assert sentence in str(caught.value)
    assert "train.yaml" in str(caught.value)


@pytest.mark.parametrize("text", [LLAMA_FACTORY + "num_train_epochs: 2\n", AXOLOTL + "num_epochs: 2\n"])
def test_a_run_that_ends_by_steps_has_no_epochs(tmp_path: Path, text: str) -> None:
    """``max_steps`` wins over epochs in every tool, so none are taken over and a remark says so."""
    assert read_config_file(written(tmp_path, text)).request.get("epochs") == 2
    config = read_config_file(written(tmp_path, text + "max_steps: 100\n"))
    assert config.request.get("epochs") is None
    assert [remark.text for remark in config.remarks if remark.origin.endswith(":max_steps")] != []
    for unused in (0, -1):
        config = read_config_file(written(tmp_path, text + f"max_steps: {unused}\n"))
        assert config.request.get("epochs") == 2


def test_an_unknown_key_is_reported_and_a_harmless_one_is_not(tmp_path: Path) -> None:
    """A key that says nothing of memory is ignored by name, in nested tables too;
    known ones without effect are left alone.
    """
    ds = written(tmp_path, '{"zero_optimization": {"stage": 2, "speed": 9}, "steps_per_print": 3}', "ds.json")
    config = read_config_file(written(tmp_path, LLAMA_FACTORY + "colour: 8\nseed: 7\ndeepspeed: ds.json\n"))
    assert config.ignored == (f"{ds}:zero_optimization.speed", f"{tmp_path}/train.yaml:colour")


def test_the_tool_is_told_by_keys_or_asked_for(tmp_path: Path) -> None:
    """A file that could be of several tools, or of none, asks for --tool; an unknown tool lists the known."""
    with pytest.raises(
        InputFileError,
        match=r"do not say which tool it is for: say it with --tool, one of plan, llama-factory",
    ):
        read_config_file(written(tmp_path, "colour: red\n"))
    with pytest.raises(
        InputFileError, match=r"those of llama-factory and of axolotl: say which: --tool llama-factory"
    ):
        read_config_file(written(tmp_path, "adapter: lora\nstage: sft\n"))
    with pytest.raises(UnknownNameError, match="unknown tool 'axolotle'; nearest: axolotl"):
        read_config_file(written(tmp_path, AXOLOTL), "axolotle")
    assert read_config_file(written(tmp_path, "model_name_or_path: gpt2\n"), "trl").tool == "TRL 1.16.0"
    recipe = "model_name_or_path: gpt2\nper_device_train_batch_size: 2\nmax_seq_length: 512\n"
    assert read_config_file(written(tmp_path, recipe)).tool == "TRL 0.9 to 0.19"
    assert (
        read_config_file(written(tmp_path, "per_device_train_batch_size: 2\n")).tool == "Transformers 5.23.0"
    )


def test_what_a_file_leaves_open_is_asked_for(tmp_path: Path) -> None:
    """Without bf16 or fp16 LLaMA-Factory computes in the dtype of the weights: the flag is asked for,
    and is enough.
    """
    config = read_config_file(written(tmp_path, LLAMA_FACTORY.replace("bf16: true\n", "")))
    with pytest.raises(UsageError, match="--precision bf16"):
        with_flags(config, from_flags({"gpu": "4090"}))
    assert with_flags(config, from_flags({"gpu": "4090", "precision": "fp32"})).get("precision") == "fp32"


def test_sizes_of_deepspeed_that_contradict_the_trainer_are_refused(tmp_path: Path) -> None:
    """Transformers refuses a DeepSpeed file whose numbers differ from its own, and so does the check."""
    text = '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4}'
    written(tmp_path, text, "ds.json")
    with pytest.raises(UsageError, match='write "auto" in the DeepSpeed file'):
        read_config_file(
            written(tmp_path, LLAMA_FACTORY + "per_device_train_batch_size: 2\ndeepspeed: ds.json\n")
        )


def test_a_dtype_of_deepspeed_that_the_trainer_has_not_is_refused(tmp_path: Path) -> None:
    """Transformers compares both files' bf16;
    one that only DeepSpeed's says stops the job before it loads anything.
    """
    written(tmp_path, '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}', "ds.json")
    training = "per_device_train_batch_size: 2\ndeepspeed: ds.json\n"
    with pytest.raises(UsageError, match="has neither bf16 nor fp16 on"):
        read_config_file(written(tmp_path, training))
    assert (
        read_config_file(written(tmp_path, training + "bf16: true\n")).request.get("precision")
        == "bf16-mixed"
    )


def test_the_batch_over_all_gpus_decides_the_accumulation_or_is_checked(tmp_path: Path) -> None:
    """``train_batch_size`` is micro-batch x accumulation x GPUs;
    another product is refused with the way out.
    """
    sizes = '"train_micro_batch_size_per_gpu": 2, "train_batch_size": 32'
    text = f'{{"zero_optimization": {{"stage": 2}}, "bf16": {{"enabled": true}}, {sizes}}}'
    config = read_config_file(written(tmp_path, text, "ds.json"))
    flags = {"model": "7b", "method": "full", "seq": 512}
    assert with_flags(config, from_flags(flags | {"gpu": "a100-80-sxm:4"})).get("grad_accum") == 4
    with pytest.raises(UsageError, match="say how many GPUs"):
        with_flags(config, from_flags(flags | {"gpu": "a100-80-sxm:3"}))


@pytest.mark.parametrize(
    ("zero", "sentence"),
    [
        ('{"stage": 4}', "must be 0, 1, 2 or 3"),
        ('{"stage": 3, "zero_quantized_weights": true}', "ZeRO"),
        ('{"stage": 3, "mics_shard_size": 8}', "MiCS"),
        (
            '{"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme"}}',
            "parameters on nvme",
        ),
        ('{"stage": 3, "offload_optimizer": {"device": "moon"}}', "none, cpu or nvme"),
        ('{"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}', "a part of the optimizer"),
    ],
)
def test_what_deepspeed_does_beyond_the_formulas_is_refused(tmp_path: Path, zero: str, sentence: str) -> None:
    """Stages, devices and communication that no formula covers are named with the whole path of the key."""
    path = written(tmp_path, f'{{"zero_optimization": {zero}}}', "ds.json")
    with pytest.raises(PlannerError) as caught:
        read_config(path)
    assert sentence in str(caught.value)
    assert "zero_optimization" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("distributed_type: MEGATRON_LM\n", "MEGATRON_LM is not modelled"),
        ("distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 3\n", "cannot share alike"),
        (
            "distributed_type: MULTI_GPU\nmixed_precision: fp8\nfp8_config: {backend: TE}\n",
            "TE is not modelled",
        ),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 5}\n", "hybrid_shard_zero2"),
        (
            "distributed_type: MULTI_GPU\nparallelism_config: {parallelism_config_dp_replicate_size: 2}\n",
            "replicas beside sharding none",
        ),
        (
            "distributed_type: NO\nparallelism_config: {parallelism_config_sp_size: 2}\n",
            "sp_size: needs distributed_type DEEPSPEED, and it is NO",
        ),
    ],
)
def test_what_accelerate_does_beyond_the_formulas_is_refused(
    tmp_path: Path, text: str, sentence: str
) -> None:
    """Kinds of distribution, counts and dtypes that no formula covers are named."""
    beside = Beside(accelerate=written(tmp_path, text, "accelerate.yaml"))
    with pytest.raises(PlannerError, match=sentence):
        read_config(written(tmp_path, "per_device_train_batch_size: 2\n"), None, beside)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("distributed_type: MULTI_GPU\nmixed_precision: fp8\n", {"fp8": "tensorwise-gathered"}),
        (
            (
                "distributed_type: NO\nmixed_precision: fp8\n"
                "fp8_config: {backend: AO, enable_fsdp_float8_all_gather: false}\n"
            ),
            {"fp8": "tensorwise", "precision": "bf16-mixed"},
        ),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}\n",
            {"sharding": "hsdp1"},
        ),
        (
            (
                "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n"
                "parallelism_config: {parallelism_config_dp_replicate_size: 2}\n"
            ),
            {"sharding": "hsdp", "replicas": 2},
        ),
    ],
)
def test_fp8_and_copies_of_accelerate_are_read(tmp_path: Path, text: str, said: dict[str, object]) -> None:
    """Torchao computes where no library is named; copies belong to FSDP."""
    reading = read_config(written(tmp_path, text, "accelerate.yaml"))
    assert {name: reading.value(name) for name in said} == said


def test_degrees_of_accelerate_are_those_of_the_job(tmp_path: Path) -> None:
    """Whether its trainer has them is asked when the stack is known."""
    text = (
        "distributed_type: FSDP\nparallelism_config: {parallelism_config_tp_size: 2, "
        "parallelism_config_cp_size: 4}\n"
    )
    beside = Beside(accelerate=written(tmp_path, text, "accelerate.yaml"))
    reading = read_config(written(tmp_path, "per_device_train_batch_size: 2\n"), None, beside)
    assert (reading.value("tensor_parallel"), reading.value("context_parallel")) == (2, 4)
    text = "distributed_type: DEEPSPEED\nparallelism_config: {parallelism_config_sp_size: 8}\n"
    beside = Beside(accelerate=written(tmp_path, text, "sp.yaml"))
    reading = read_config(written(tmp_path, "per_device_train_batch_size: 1\n"), None, beside)
    assert reading.value("context_parallel") == 8


def test_a_model_beside_the_config_is_found_from_it(tmp_path: Path) -> None:
    """A folder with a ``config.json`` beside the config is meant, from whatever directory the check runs."""
    (tmp_path / "mine").mkdir()
    written(tmp_path / "mine", "{}", "config.json")
    config = read_config_file(written(tmp_path, LLAMA_FACTORY.replace("Qwen/Qwen2.5-0.5B", "./mine")))
    assert config.request.get("model") == str((tmp_path / "mine").resolve())


def test_switches_of_the_flags_win_one_by_one(tmp_path: Path) -> None:
    """A switch said on the command line replaces that of the file; the file's others stay."""
    written(
        tmp_path,
        '{"zero_optimization": {"stage": 2, "overlap_comm": true, "reduce_bucket_size": 2e8}}',
        "ds.json",
    )
    config = read_config_file(written(tmp_path, LLAMA_FACTORY + "deepspeed: ds.json\n"))
    assert config.request.get("switches") == ("zero12_bucket_elements=200000000", "zero12_overlap=true")
    request = with_flags(config, from_flags({"gpu": "4090", "switches": "zero12_overlap=false"}))
    assert request.get("switches") == ("zero12_bucket_elements=200000000", "zero12_overlap=false")


@pytest.mark.parametrize(("stage", "value", "remarked"), [(3, "false", 1), (3, "true", 0), (2, "false", 0)])
def test_torchs_own_linear_under_zero3_is_remarked_on(
    tmp_path: Path, stage: int, value: str, remarked: int
) -> None:
    """DeepSpeed's keeps every input, and is what is counted."""
    zero = f'{{"zero_optimization": {{"stage": {stage}, "memory_efficient_linear": {value}}}}}'
    written(tmp_path, zero, "ds.json")
    config = read_config_file(written(tmp_path, LLAMA_FACTORY + "deepspeed: ds.json\n"))
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
    config = read_config_file(written(tmp_path, LLAMA_FACTORY + text))
    assert config.request.get("eval_batch") == evaluated


def test_checkpointing_of_llama_factory_is_turned_off_by_its_own_key_only(tmp_path: Path) -> None:
    """The Trainer's key has no effect when it says false, and that is said; LLaMA-Factory's own key has."""
    config = read_config_file(written(tmp_path, LLAMA_FACTORY + "gradient_checkpointing: false\n"))
    assert config.request.get("gradient_checkpointing") is None
    assert [remark.text for remark in config.remarks] == [
        "has no effect: only disable_gradient_checkpointing turns it off"
    ]
    config = read_config_file(written(tmp_path, LLAMA_FACTORY + "disable_gradient_checkpointing: true\n"))
    assert config.request.get("gradient_checkpointing") is False


def test_a_length_of_null_has_no_default(tmp_path: Path) -> None:
    """TRL cuts nothing then, so the longest sample has to be said;
    without the key its default of 1,024 holds.
    """
    config = read_config_file(written(tmp_path, TRL + "max_length: null\n"))
    with pytest.raises(UsageError, match="say its length with --seq"):
        with_flags(config, from_flags({"gpu": "4090"}))
    assert read_config_file(written(tmp_path, TRL)).request.get("seq") == 1024


def test_plugins_of_axolotl_are_counted_or_refused(tmp_path: Path) -> None:
    """Cut cross entropy is a loss without full logits; what tracks is harmless;
    what nobody knows may change anything.
    """
    own = ", ".join(
        f"axolotl.integrations.{name}"
        for name in ("cut_cross_entropy.CutCrossEntropyPlugin", "lm_eval.LMEvalPlugin")
    )
    config = read_config_file(written(tmp_path, AXOLOTL + f"plugins: [{own}]\n"))
    assert config.request.get("loss") == "liger"
    assert (config.ignored, len(config.remarks)) == ((), 1)
    for other, sentence in (
        ("mine.Plugin", "mine.Plugin is not known"),
        ("axolotl.integrations.grokfast.GrokfastPlugin", "grokfast"),
    ):
        with pytest.raises(NotModelledError, match=sentence):
            read_config_file(written(tmp_path, AXOLOTL + f"plugins: [{own}, {other}]\n"))


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
