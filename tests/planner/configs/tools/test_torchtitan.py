"""Files of torchtitan: what a key means there, what is refused, and how they differ from plan's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.catalog.stacks import load_stack
from planner.configs.said_by_file import Reading
from planner.errors import InputFileError, NotModelledError, UnreadCombinationError, UsageError
from planner.intake.given.config_file import read_config_file, with_flags
from planner.intake.given.request import from_flags
from tests.files import filled, reading_of, written

MODEL = '[model]\nname = "llama3"\nflavor = "8B"\n'
TRAINING = "[training]\nlocal_batch_size = 1\nseq_len = 8192\n"
BASE = MODEL + TRAINING
MIXTURE = '[model]\nname = "deepseek_v3"\nflavor = "16B"\n' + TRAINING
EXPERTS = "[parallelism]\nexpert_parallel_degree = 8\n"
PIPELINE = "[parallelism]\npipeline_parallel_degree = 2\n"


def read(folder: Path, text: str) -> Reading:
    """What such a file says."""
    return reading_of(folder, text, "train.toml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            BASE + "[parallelism]\ntensor_parallel_degree = 2\ndisable_loss_parallel = true\n",
            "a loss over whole logits",
        ),
        (
            BASE + "[parallelism]\ntensor_parallel_degree = 2\nenable_async_tensor_parallel = true\n",
            "send while they run",
        ),
        (
            BASE + PIPELINE + 'pipeline_parallel_schedule = "ZBVZeroBubble"\n',
            "'ZBVZeroBubble' is not modelled",
        ),
        (BASE + PIPELINE + "pipeline_parallel_layers_per_stage = 4\n", "stages of one's own"),
        (BASE + PIPELINE + "pipeline_parallel_last_stage_less_layers = 2\n", "count as one layer"),
        (BASE + PIPELINE + 'fsdp_reshard_after_forward = "always"\n', "for each micro-batch"),
        (BASE + "[experimental]\ncontext_parallel_degree = 2\n", "a context-parallel degree of 2"),
        (
            BASE
            + '[parallelism]\ndata_parallel_replicate_degree = 2\nfsdp_reshard_after_forward = "never"\n',
            "stay whole after forward",
        ),
        (BASE + 'fp8_linear = "dynamic"\n', "fp8 of torchtitan before"),
        (MODEL + 'converters = ["mx"]\n' + TRAINING, "mx is not modelled"),
        (MODEL + 'converters = ["float8"]\n' + TRAINING, "all matrices but the head"),
        (
            MODEL
            + 'converters = ["float8"]\n'
            + TRAINING
            + '[float8]\nfilter_fqns = ["output"]\nemulate = true\n',
            "only look like",
        ),
        (MODEL.replace("8B", "debugmodel_of_mine") + TRAINING, "llama3 debugmodel_of_mine is not modelled"),
        (MODEL + 'norm_type = "layernorm"\n' + TRAINING, "norms 'layernorm'"),
        (BASE + "[optimizer]\nearly_step_in_backward = true\n", "inside of the backward pass"),
        (BASE + '[optimizer]\nname = "Muon"\n', "optimizer 'Muon'"),
        (BASE + "[debug]\ndeterministic = true\n", "deterministic kernels"),
        (BASE + "deterministic = true\n", "deterministic kernels"),
        (BASE + '[optimizer]\nimplementation = "for-loop"\n', "'for-loop' is not modelled"),
        (BASE + '[activation_checkpoint]\nmode = "memory_budget"\n', "'memory_budget' is not modelled"),
        (MIXTURE + "[compile]\nenable = true\n", "that is compiled"),
        (MIXTURE + EXPERTS + "expert_tensor_parallel_degree = 2\n", "features are divided"),
        (MIXTURE + EXPERTS + 'expert_parallel_comm_backend = "deepep"\n', "'deepep' is not modelled"),
        (MIXTURE + "[experimental]\nexpert_parallel_degree = 2\n", "an expert-parallel degree of 2"),
        (BASE + "[fault_tolerance]\nenable = true\n", "tolerates faults"),
        (BASE + '[experimental]\ncustom_import = "mine"\n', "code of one's own"),
        (BASE + '[job]\ncustom_config_module = "mine"\n', "a configuration of one's own"),
        (BASE + "[parallelism]\nexpert_shard_degree = 2\n", "unknown key"),
        (BASE + "moe_capacity = 2\n", "unknown key"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    """Each by a sentence of its own."""
    with pytest.raises(NotModelledError, match=sentence):
        read(tmp_path, text)


def test_where_all_gpus_share_a_batch_nothing_is_cast(tmp_path: Path) -> None:
    """FSDP has the mixed precision; without it the model computes in the dtype of its weights."""
    path = written(tmp_path, BASE + "[parallelism]\ntensor_parallel_degree = 8\n", "train.toml")

    def precision(**flags: object) -> tuple[str, str]:
        found = filled(read_config_file(path), flags)
        return found.recipe.sharding.name, found.recipe.numerics.precision

    assert precision(gpu="h100-sxm:8") == ("none", "fp32")
    assert precision(gpu="h100-sxm:8", nodes=2) == ("fsdp", "bf16-mixed")
    with pytest.raises(UnreadCombinationError, match="say --precision fp32"):
        precision(gpu="h100-sxm:8", precision="bf16-mixed")


def test_a_key_of_2024_for_fp8_may_be_empty(tmp_path: Path) -> None:
    """An empty text is off."""
    assert read(tmp_path, BASE + 'fp8_linear = ""\n').value("fp8") is None


@pytest.mark.parametrize(
    ("name", "flavor", "added", "layers", "words"),
    [
        ("llama3", "debugmodel", 'fp8_linear = ""\nwarmup_steps = 2\n', 2, 2256),
        ("llama3", "debugmodel", "warmup_steps = 2\n", 8, 2256),
        ("llama3", "debugmodel_flex_attn", "", 6, 2256),
        ("deepseek_v3", "debugmodel", "compile = false\n", 3, 2048),
        ("deepseek_v3", "debugmodel", "", 6, 2048),
        ("qwen3", "debugmodel", "", 8, 2048),
        ("qwen3", "debugmodel_moe", "", 8, 2048),
    ],
)
def test_debug_models_have_the_shape_of_their_time(
    tmp_path: Path, name: str, flavor: str, added: str, layers: int, words: int
) -> None:
    """As other keys of the file tell it."""
    path = written(
        tmp_path, f'[model]\nname = "{name}"\nflavor = "{flavor}"\n{TRAINING}{added}', "train.toml"
    )
    model = filled(read_config_file(path), {"gpu": "h100-sxm"}).model
    assert (model.n_layers, model.vocab_size, model.hidden_size) == (layers, words, 256)


def test_weights_may_stay_whole_by_a_key_of_2025_02(tmp_path: Path) -> None:
    """It stood in the table of training then."""
    found = read(tmp_path, BASE + 'data_parallel_shard_degree = 4\nfsdp_reshard_after_forward = "never"\n')
    assert found.value("sharding") == "fsdp-grad-op"


def test_the_degree_of_tensor_parallelism_is_read(tmp_path: Path) -> None:
    """It is the degree of the job; FSDP2 is over the GPUs that are left."""
    reading = read(
        tmp_path, BASE + "[parallelism]\ntensor_parallel_degree = 4\nenable_async_tensor_parallel = false\n"
    )
    assert reading.value("tensor_parallel") == 4
    assert reading.several is not None
    assert reading.several[0] == "fsdp"


def test_values_that_cannot_be_used(tmp_path: Path) -> None:
    """A dtype and a way of checkpointing that torchtitan has not."""
    with pytest.raises(InputFileError, match="float32 or bfloat16"):
        read(tmp_path, BASE + 'dtype = "float16"\n')
    with pytest.raises(InputFileError, match="op, or a whole number"):
        read(tmp_path, BASE + '[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "all"\n')


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        ("", "torchtitan"),
        ("[compile]\nenable = false\n", "torchtitan"),
        ("[compile]\nenable = true\n", "torchtitan-compile"),
        ('[compile]\nenable = true\ncomponents = ["model"]\n', "torchtitan-compile@2024"),
    ],
)
def test_what_is_compiled_decides_the_stack(tmp_path: Path, text: str, stack: str) -> None:
    """A loss that is not compiled takes what it took in 2024."""
    found = read(tmp_path, BASE + text)
    assert (found.value("stack"), found.value("loss")) == (stack, "hf")


def test_a_compiled_loss_beside_a_model_that_is_not(tmp_path: Path) -> None:
    """Its tensors are those of the compiled loss, and layers stay as they are."""
    found = read(tmp_path, BASE + '[compile]\nenable = true\ncomponents = ["loss"]\n')
    assert found.value("stack") == "torchtitan"
    assert found.switches["loss_forward"][0] == "compute"
    compiled = load_stack("torchtitan-compile")
    assert {name: "+".join(getattr(compiled, name)) for name in ("loss_forward", "loss_backward")} == {
        name: found.switches[name][0] for name in ("loss_forward", "loss_backward")
    }


def test_experts_over_gpus(tmp_path: Path) -> None:
    """A mixture has the stack whose mixture was read, and the degree of the file."""
    found = read(tmp_path, MIXTURE + EXPERTS + "expert_tensor_parallel_degree = 1\n")
    assert found.value("model") == "deepseek-ai/DeepSeek-V2-Lite"
    assert (found.value("stack"), found.value("expert_parallel")) == ("torchtitan@2025", 8)
    assert read(tmp_path, MIXTURE).value("expert_parallel") is None


def test_a_model_without_experts_takes_no_notice(tmp_path: Path) -> None:
    """torchtitan says so of this key."""
    found = read(tmp_path, BASE + EXPERTS)
    assert found.value("expert_parallel") is None
    assert "takes no notice" in found.remarks[0].text


def test_compiled_parts_are_names(tmp_path: Path) -> None:
    """A list inside of the list was an internal error."""
    with pytest.raises(InputFileError, match=r"'compile\.components' must be a list of names"):
        read(tmp_path, BASE + '[compile]\nenable = true\ncomponents = [["model", "loss"]]\n')


def test_files_of_2024_have_their_own_names(tmp_path: Path) -> None:
    """``batch_size``, ``compile`` and the degrees in ``training``; its optimizer was the foreach one."""
    old = "[training]\nbatch_size = 2\nwarmup_steps = 200\ndata_parallel_shard_degree = 4\ncompile = false\n"
    found = read(tmp_path, MODEL + old)
    assert [found.value(name) for name in ("stack", "batch", "optimizer", "sharding", "seq")] == [
        "torchtitan@2024", 2, "adamw_torch", "fsdp", 2048,
    ]  # fmt: skip
    assert (
        read(tmp_path, MODEL + old + "[optimizer]\nfused = true\n").value("optimizer") == "adamw_torch_fused"
    )
    assert read(tmp_path, MODEL + old.replace("false", "true")).value("stack") == "torchtitan-compile@2024"


@pytest.mark.parametrize(
    ("text", "checkpointing", "policy", "every"),
    [
        ("", True, "full", 2),
        ('[activation_checkpoint]\nmode = "none"\n', False, None, None),
        ('[activation_checkpoint]\nmode = "full"\n', True, "full", None),
        ('[activation_checkpoint]\nselective_ac_option = "op"\n', True, "selective-op", None),
        ('[activation_checkpoint]\nselective_ac_option = "3"\n', True, "full", 3),
    ],
)
def test_checkpoints(
    tmp_path: Path, text: str, checkpointing: bool, policy: str | None, every: int | None
) -> None:
    """Without the table every second layer."""
    found = read(tmp_path, BASE + text)
    assert [found.value(name) for name in ("gradient_checkpointing", "checkpoint_policy",
        "checkpoint_every")] == [
        checkpointing, policy, every,
    ]  # fmt: skip


def test_how_state_is_divided(tmp_path: Path) -> None:
    """Over all GPUs where there are several; a degree of one with replicas is DDP."""
    read(tmp_path, BASE)
    config = read_config_file(tmp_path / "train.toml")
    assert with_flags(config, from_flags({"gpu": "h100-sxm"})).get("sharding") is None
    assert with_flags(config, from_flags({"gpu": "h100-sxm:8"})).get("sharding") == "fsdp"
    never = BASE + '[parallelism]\nfsdp_reshard_after_forward = "never"\ndata_parallel_shard_degree = 8\n'
    assert read(tmp_path, never).value("sharding") == "fsdp-grad-op"
    copies = "[parallelism]\ndata_parallel_replicate_degree = 8\ndata_parallel_shard_degree = 1\n"
    assert read(tmp_path, BASE + copies).value("sharding") == "ddp"


@pytest.mark.parametrize(
    ("text", "precision", "loads"),
    [
        ("", "bf16-mixed", "fp32"),
        ('mixed_precision_param = "float32"\n', "fp32", "fp32"),
        ('dtype = "bfloat16"\n', "bf16", "bf16"),
    ],
)
def test_dtypes(tmp_path: Path, text: str, precision: str, loads: str) -> None:
    """Weights in fp32 that FSDP2 or autocast narrows, or all in bf16."""
    found = read(tmp_path, BASE + text)
    assert (found.value("precision"), found.value("load_dtype")) == (precision, loads)


def test_a_file_of_plan_is_none_of_torchtitan(tmp_path: Path) -> None:
    """It has keys and no tables; --tool says otherwise."""
    own = written(tmp_path, 'model = "7b"\nmethod = "qlora"\n', "job.toml")
    assert read_config_file(own).tool_name == "plan"
    own.write_text(BASE, encoding="utf-8")
    assert read_config_file(own).tool_name == "torchtitan"
    yaml = written(tmp_path, "model: {name: qwen3}\ntraining: {steps: 3}\n", "mine.yaml")
    with pytest.raises(InputFileError, match="do not say which tool"):
        read_config_file(yaml)
    own.write_text("model = [", encoding="utf-8")
    with pytest.raises(InputFileError, match=r"job\.toml"):
        read_config_file(own)


@pytest.mark.parametrize(
    ("text", "fp8"),
    [
        ("", "tensorwise"),
        ("enable_fsdp_float8_all_gather = true\n", "tensorwise-gathered"),
        ('recipe_name = "rowwise"\n', "rowwise"),
    ],
)
def test_scaling_of_fp8_is_read(tmp_path: Path, text: str, fp8: str) -> None:
    """Where a converter asks for it; without one the table says nothing."""
    table = '[float8]\nfilter_fqns = ["output"]\n' + text
    assert read(tmp_path, BASE + table).value("fp8") is None
    assert read(tmp_path, MODEL + 'converters = ["float8"]\n' + TRAINING + table).value("fp8") == fp8


def test_fp8_of_2024_leaves_the_head_alone(tmp_path: Path) -> None:
    """It has one flag, and scales whole tensors."""
    assert read(tmp_path, BASE + "[float8]\nenable_float8_linear = true\n").value("fp8") == "tensorwise"


def test_replicas_of_shards_are_read(tmp_path: Path) -> None:
    """Two copies of what four of eight GPUs divide."""
    text = BASE + "[parallelism]\ndata_parallel_replicate_degree = 2\n"
    reading = read(tmp_path, text)
    assert (reading.value("sharding"), reading.value("replicas")) == ("hsdp", 2)


def test_a_pipeline_divides_the_batch_of_a_file(tmp_path: Path) -> None:
    """The file's batch is that of a round, of which each micro-batch has one sample unless it says more."""
    training = TRAINING.replace("local_batch_size = 1", "local_batch_size = 16\nglobal_batch_size = 128")
    text = MODEL + training + PIPELINE + 'pipeline_parallel_schedule = "Interleaved1F1B"\n'
    path = written(tmp_path, text + "pipeline_parallel_microbatch_size = 2\n", "train.toml")
    request = with_flags(read_config_file(path), from_flags({"gpu": "h100-sxm:8"}))
    values = {name: given.value for name, given in request.values.items()}
    assert (values["pipeline_parallel"], values["pipeline_schedule"]) == (2, "interleaved")
    # 128 samples over 4 batches at once are 32 of each: 16 micro-batches of two, in rounds of eight.
    assert (values["batch"], values["pipeline_microbatches"], values["grad_accum"]) == (2, 8, 16)
    assert "sharding" not in values
    plain = read(tmp_path, BASE.replace("local_batch_size = 1", "local_batch_size = 8") + PIPELINE)
    found = {name: said.value for name, said in plain.said.items()}
    assert (found["batch"], found["pipeline_microbatches"], found["grad_accum"]) == (1, 8, 8)


def test_degrees_ask_for_so_many_gpus(tmp_path: Path) -> None:
    """torchtitan stops on another number than their product."""
    degrees = "[parallelism]\ndata_parallel_shard_degree = 4\ntensor_parallel_degree = 2\n"
    path, nodes = tmp_path / "train.toml", {"gpu": "h100-sxm:8", "nodes": 2}
    read(tmp_path, BASE + degrees)
    with_flags(read_config_file(path), from_flags({"gpu": "h100-sxm:8"}))
    with pytest.raises(UsageError, match="ask for 8 GPUs, and the job has 16"):
        with_flags(read_config_file(path), from_flags(nodes))
    read(tmp_path, BASE + degrees + "data_parallel_replicate_degree = 2\n")
    with_flags(read_config_file(path), from_flags(nodes))
    with pytest.raises(UsageError, match="ask for 16 GPUs, and the job has 8"):
        with_flags(read_config_file(path), from_flags({"gpu": "h100-sxm:8"}))


@pytest.mark.parametrize(
    ("table", "batch"),
    [
        ("enable = false\n", None),
        ("enable = true\n", 2),  # 8 samples of 2,048 tokens, by default
        ("enable = true\nlocal_batch_size = 3\nseq_len = 8192\n", 3),
    ],
)
def test_batches_that_are_evaluated(tmp_path: Path, table: str, batch: int | None) -> None:
    """They have a size and a length of their own, counted in samples of training's 8,192 tokens."""
    assert read(tmp_path, BASE + "[validation]\n" + table).value("eval_batch") == batch
