"""The dry run of a training script against the traced step of the same job: request by request."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from measure.cli.main import main
from measure.dry_run.cuda.card import CardFacts
from measure.dry_run.cuda.compile import compiled_library
from measure.dry_run.messages import ProgramJob
from measure.dry_run.parent import dry_run
from planner.allocator.events import AllocEvent, read_jsonl
from planner.allocator.replay import replay
from planner.allocator.settings import rounded_bytes
from planner.units import KIB
from tests.extras import needs
from tests.in_process import called

pytestmark = [
    needs("torch", "transformers", "peft", "accelerate"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]
PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "step.py"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
QWEN = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": True}
REAL = {
    **LLAMA,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
FULL = ("--precision", "bf16")
MIXED = ("--precision", "bf16-mixed")
LATER = ("forward_2", "loss_2", "backward_2")
# Smaller ones are counts, scalars and masks, of which a script and our own step have not the same.
LEAST_BYTES = 32 * KIB


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    return called(main, arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def streams(
    config: dict[str, object], program: Sequence[str], job: Sequence[str]
) -> tuple[list[AllocEvent], list[AllocEvent]]:
    """Events of the script and of the traced step,
    up to the end of the micro-step after the first optimizer step.
    """
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(config), encoding="utf-8")
    # bitsandbytes multiplies up to 1,536 tokens without expanding the matrix on some cards,
    # which the traced step leaves out.
    seq = "1024" if "--method=qlora" in job else "128"
    size = ("--seq", seq, "--batch", "2", *(() if "--method=full" in job else ("--lora-rank", "8")))
    card = ("--gpu", "a100-80-sxm")
    program = (*program, "--seq", seq)
    code, _, err = run(
        "trace", *card, "--events", "dry.jsonl", "--", "python", str(PROGRAM), "--model", "model", *program
    )
    assert code == 0, err
    traced = (
        "--model",
        "model/config.json",
        "--optimizer",
        "adamw_torch",
        "--all-layers",
        "--events",
        "trace.jsonl",
    )
    code, _, err = run("trace", *card, *traced, *size, *job)
    assert code == 0, err
    return _one_step(read_jsonl("dry.jsonl")), _one_step(read_jsonl("trace.jsonl"))


def _one_step(events: list[AllocEvent]) -> list[AllocEvent]:
    last = max(number for number, event in enumerate(events) if event.phase == "backward_2")
    return events[: last + 1]


def requests(events: list[AllocEvent]) -> list[int]:
    """Sizes in order, in the micro-step that finds what all later ones find."""
    return [
        rounded_bytes(event.n_bytes)
        for event in events
        if event.action == "alloc" and event.phase in LATER and event.n_bytes >= LEAST_BYTES
    ]


def assert_alike(dry: list[AllocEvent], traced: list[AllocEvent]) -> None:
    """The same requests in the same order,
    and a peak within 0.01 % (or what small requests make up in a tiny model).
    """
    assert requests(dry) == requests(traced)
    one, other = _peak(dry), _peak(traced)
    assert abs(one - other) <= max(1e-4 * other, 64 * KIB)


def _peak(events: list[AllocEvent]) -> int:
    """Most bytes asked for at once.  Blocks also have what requests leave over of segments that loading took,
    and the two load differently.
    """
    live: dict[int, int] = {}
    held = peak = 0
    for event in events:
        if event.action == "alloc":
            live[event.block] = rounded_bytes(event.n_bytes)
            held += live[event.block]
            peak = max(peak, held if event.phase in LATER else 0)
        else:
            held -= live.pop(event.block, 0)
    return peak


JOBS = {
    "llama full": (LLAMA, (), ("--method=full", *FULL, "--no-gradient-checkpointing")),
    "qwen qlora checkpointed": (
        QWEN,
        ("--method=qlora", "--mixed", "--checkpointing=not"),
        ("--method=qlora", "--gradient-checkpointing"),
    ),
}
MORE_JOBS = {
    "llama lora checkpointed": (
        LLAMA,
        ("--method=lora", "--mixed", "--checkpointing=not"),
        ("--method=lora", *MIXED, "--load-dtype=bf16", "--gradient-checkpointing"),
    ),
    "qwen full": (QWEN, (), ("--method=full", *FULL, "--no-gradient-checkpointing")),
    "llama full mixed checkpointed": (
        LLAMA,
        ("--mixed", "--checkpointing=not"),
        ("--method=full", *MIXED, "--load-dtype=fp32", "--gradient-checkpointing"),
    ),
    "qwen lora": (
        QWEN,
        ("--method=lora", "--mixed"),
        ("--method=lora", *MIXED, "--load-dtype=bf16", "--no-gradient-checkpointing"),
    ),
    "llama lora reentrant": (
        LLAMA,
        ("--method=lora", "--mixed", "--checkpointing=reentrant"),
        ("--method=lora", *MIXED, "--load-dtype=bf16", "--gradient-checkpointing", "--checkpoint-reentrant"),
    ),
    "llama qlora": (LLAMA, ("--method=qlora", "--mixed"), ("--method=qlora", "--no-gradient-checkpointing")),
    "real full": (REAL, (), ("--method=full", *FULL, "--no-gradient-checkpointing")),
    "real full checkpointed": (
        REAL,
        ("--checkpointing=not",),
        ("--method=full", *FULL, "--gradient-checkpointing"),
    ),
    "real lora checkpointed": (
        REAL,
        ("--method=lora", "--mixed", "--checkpointing=not"),
        ("--method=lora", *MIXED, "--load-dtype=bf16", "--gradient-checkpointing"),
    ),
    "real qlora checkpointed": (
        REAL,
        ("--method=qlora", "--mixed", "--checkpointing=not"),
        ("--method=qlora", "--gradient-checkpointing"),
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_script_asks_for_what_the_traced_step_asks_for(name: str, folder: Path) -> None:
    """The same sizes in the same order."""
    assert_alike(*streams(*JOBS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_JOBS)
def test_more_scripts_ask_for_what_the_traced_step_asks_for(name: str, folder: Path) -> None:
    """The same for more methods, and for a real width."""
    assert_alike(*streams(*MORE_JOBS[name]))


@pytest.mark.slow
def test_int8_layers_ask_for_what_their_stand_ins_ask_for(folder: Path) -> None:
    """bitsandbytes' own code against the trace's stand-in: requests alone,
    because the stand-in keeps its last input longer.
    """
    program = ("--method=int8", "--mixed", "--checkpointing=not")
    dry, traced = streams(LLAMA, program, ("--method=int8", "--gradient-checkpointing"))
    assert requests(dry) == requests(traced)


def test_the_trainer_asks_for_what_the_traced_step_asks_for(folder: Path) -> None:
    """The Trainer with LoRA, which also evaluates, saves and has workers that load;
    nothing is written to the folder.
    """
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    script = str(PROGRAM.with_name("trainer.py"))
    code, out, err = run(
        "trace", "--gpu", "a100-80-sxm", "--events", "dry.jsonl", "--json", "--", "python", script, "model"
    )
    assert code == 0, err
    document = json.loads(out)
    assert "eval" in {each["phase"] for each in document["phases"]}
    assert {path.name for path in folder.iterdir()} == {"model", "dry.jsonl"}
    job = ("--method=lora", *MIXED, "--load-dtype=bf16", "--gradient-checkpointing", "--lora-rank", "8")
    size = (
        "--model",
        "model/config.json",
        "--optimizer",
        "adamw_torch",
        "--all-layers",
        "--seq",
        "128",
        "--batch",
        "2",
    )
    assert run("trace", "--gpu", "a100-80-sxm", "--events", "trace.jsonl", *size, *job)[0] == 0
    # What the first evaluation leaves in the cache is no part of our own step,
    # but its requests change none of a micro-step.
    assert requests(_one_step(read_jsonl("dry.jsonl"))) == requests(_one_step(read_jsonl("trace.jsonl")))


PLAIN = """
import copy, torch
model = torch.nn.Linear(1024, 1024).eval()
assert (2.0 * model.weight).shape == model.weight.shape
model.cuda()
host = torch.ones(64, 64, dtype=torch.bfloat16)
assert (host @ host)[0, 0] == 64
assert copy.deepcopy(torch.arange(4, device="cuda")).tolist() == [0, 1, 2, 3]
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.device(0).idx == 0 and torch.cuda.host_memory_stats() == {}
torch.cuda.default_generators[0].set_state(torch.cuda.get_rng_state(device="cuda"))
flat = torch.empty(4096, device="cuda")
assert flat.set_(flat[:1024].clone()).shape == (1024,)
assert flat.set_(torch.empty(512, device="cuda").untyped_storage()).shape == (512,)
assert flat.set_().untyped_storage().nbytes() == 0
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_what_loops_of_other_libraries_do(folder: Path) -> None:
    """Large tensors of the host times a number, products there by oneDNN, deep copies on the card with their
    values, cuBLAS' workspace given back, the number of a card, pinned memory that nobody counts, a state of
    random numbers that is set again (Megatron-Core), a tensor that becomes a view of another (so FSDP1 makes
    shards), and steps of a model that was never set to train.
    """
    (folder / "train.py").write_text(PLAIN, encoding="utf-8")
    code, out, err = run("trace", "--gpu", "a100-80-sxm", "--json", "--", "python", "train.py")
    assert code == 0, err
    document = json.loads(out)
    assert "backward_2" in {each["phase"] for each in document["phases"]}
    assert "workspaces of cuBLAS that the program gives back" in {
        each["name"] for each in document["assumptions"]
    }


EVALUATES = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(4):
    model(torch.randn(8, 256, device="cuda")).sum().backward()
    optimizer.step()
    if step == 1:
        model.eval()
        with torch.no_grad():
            model(torch.randn(4096, 256, device="cuda"))
        model.train()
"""


GAPS = """
import torch
model = torch.nn.Linear(512, 2048).cuda()
optimizer = torch.optim.SGD(model.parameters())
logits = model(torch.randn(4, 64, 512, device="cuda"))
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
logps = logits[:, :-1].log_softmax(-1)
cut = 4 * 63 * 2048 * 4
assert torch.cuda.memory_allocated() - before == cut
assert torch.cuda.max_memory_allocated() - before == 2 * cut
torch.cuda.reset_peak_memory_stats()
logps[:1, :8].log_softmax(-1)
assert torch.cuda.max_memory_allocated() - before - cut == 8 * 2048 * 4
logps.sum().backward()
optimizer.step()
"""


def test_a_log_softmax_reads_a_copy_of_what_has_gaps(folder: Path) -> None:
    """Rows that were cut by one position are copied for CUDA's kernel; those of one row are not."""
    (folder / "train.py").write_text(GAPS, encoding="utf-8")
    code, _, err = run("trace", "--gpu", "a100-80-sxm", "--steps", "1", "--", "python", "train.py")
    assert code == 0, err


OF_TWO = """
import torch
from torch.testing._internal.two_tensor import TwoTensor
model = torch.nn.Linear(1024, 1024, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters())
codes, scales = torch.zeros(2, 1024, 1024, device="cuda").clone(), torch.zeros(2, 1024, 1024, device="cuda")
optimizer.state[model.weight] = {"moment": TwoTensor(codes, scales)}
for _ in range(2):
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_a_state_that_wraps_tensors_is_all_of_them(folder: Path) -> None:
    """As the codes and scales of torchao's AdamW8bit, at which the dry run failed."""
    (folder / "train.py").write_text(OF_TWO, encoding="utf-8")
    code, _, err = run("trace", "--gpu", "a100-80-sxm", "--events", "dry.jsonl", "--", "python", "train.py")
    assert code == 0, err
    made = [each for each in read_jsonl("dry.jsonl") if each.action == "alloc"]
    states = [each.n_bytes for each in made if each.term == "optimizer_states"]
    assert states == [2 * 1024 * 1024 * 4] * 2


@pytest.mark.parametrize("evaluates", [False, True])
def test_an_evaluation_behind_the_last_step_is_waited_for(folder: Path, *, evaluates: bool) -> None:
    """Where the program has one; it stops before it trains again."""
    (folder / "train.py").write_text(EVALUATES, encoding="utf-8")
    facts = CardFacts("NVIDIA A100", (8, 0), 80 * 2**30, 108, 1)
    words = ("python", "train.py")
    job = ProgramJob(str(compiled_library()), "", words, facts, 2, 300.0, "", False, evaluates=evaluates)
    ran = dry_run(job)
    assert ran.steps == 2
    assert ("eval" in {each.phase for each in ran.cards[0]}) is evaluates


FSDP = {
    "fsdp_version": 2,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_reshard_after_forward": True,
}
ZERO: dict[str, object] = {
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "gradient_accumulation_steps": 1,
    "train_micro_batch_size_per_gpu": 2,
}
STAGE_2 = {"stage": 2, "overlap_comm": True, "contiguous_gradients": True}
STAGE_3 = {
    **STAGE_2,
    "stage": 3,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
}


def launch_file(sharding: str) -> dict[str, object]:
    """What Accelerate is told; DeepSpeed's own file is written beside."""
    common: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "num_machines": 1,
        "num_processes": 4,
    }
    if sharding == "ddp":
        return {**common, "distributed_type": "MULTI_GPU", "mixed_precision": "bf16"}
    if sharding == "fsdp":
        return {**common, "distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": FSDP}
    settings = {**ZERO, "zero_optimization": STAGE_2 if sharding == "zero2" else STAGE_3}
    Path("zero.json").write_text(json.dumps(settings), encoding="utf-8")
    engine = {"deepspeed_config_file": "zero.json", "zero3_init_flag": True}
    return {**common, "distributed_type": "DEEPSPEED", "deepspeed_config": engine}


def sharded_streams(sharding: str, last: int = 0) -> tuple[list[AllocEvent], list[AllocEvent]]:
    """Events of rank 0 of 4 by the engine's own code, and those of the trace;
    with only the ``last`` layers trained, where that is said.
    """
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    Path("launch.yaml").write_text(json.dumps(launch_file(sharding)), encoding="utf-8")
    card, program = ("--gpu", "h100-sxm:4"), str(PROGRAM.with_name("sharded.py"))
    launch = (
        "accelerate",
        "launch",
        "--config_file",
        "launch.yaml",
        program,
        "model",
        *[str(last)] * (last > 0),
    )
    code, _, err = run("trace", *card, "--events", "dry.jsonl", "--", *launch)
    assert code == 0, err
    job = (
        "--method=full",
        *MIXED,
        "--load-dtype=fp32",
        "--no-gradient-checkpointing",
        f"--sharding={sharding}",
        *[f"--train-layers=last:{last}"] * (last > 0),
    )
    size = (
        "--model",
        "model/config.json",
        "--optimizer",
        "adamw_torch",
        "--all-layers",
        "--seq",
        "128",
        "--batch",
        "2",
    )
    code, _, err = run("trace", *card, "--events", "trace.jsonl", *size, *job)
    assert code == 0, err
    return _one_step(read_jsonl("dry.jsonl")), _one_step(read_jsonl("trace.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sharding", "last"), [("ddp", 0), ("fsdp", 0), ("fsdp", 1), ("zero2", 0), ("zero3", 0)]
)
def test_a_rank_asks_for_what_the_sharded_trace_says(sharding: str, last: int, folder: Path) -> None:
    """The peak of a later micro-step within 2 %; under FSDP2 the same requests in the same order, also
    where layers below the last one are frozen.
    """
    dry, traced = sharded_streams(sharding, last)
    one, other = (
        max(each.allocated_bytes for each in replay(events).phases if each.phase in LATER)
        for events in (dry, traced)
    )
    assert one == pytest.approx(other, rel=0.02)
    if sharding == "fsdp":
        assert requests(dry) == requests(traced)
