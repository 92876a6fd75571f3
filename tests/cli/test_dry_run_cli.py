"""``measure trace -- PROGRAM``: what a program sees, how it ends, and what it may not do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from measure.cli.main import main
from measure.dry_run.invented_rows import Lacking
from measure.dry_run.messages import ProgramJob
from measure.dry_run.parent import DataNotHereError, DryRun, RowsLackError
from measure.trace.assumed import Assumed
from planner.allocator.events import AllocEvent
from tests.extras import needs
from tests.in_process import called

pytestmark = [
    pytest.mark.real,
    needs("torch"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]
# One step of a small net.  BEFORE and AFTER are lines of a test.
LOOP = """
import torch
from torch import nn
{before}
net = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(4)], nn.LayerNorm(1024)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(100):
    x = torch.randn(4096, 1024, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = net(x).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
{after}
"""


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    return called(main, arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def program(before: str = "", after: str = "") -> str:
    """A script with these lines before and inside of its loop."""
    inside = textwrap.indent(textwrap.dedent(after), "    ")
    Path("train.py").write_text(LOOP.format(before=textwrap.dedent(before), after=inside), encoding="utf-8")
    return "train.py"


def test_a_program_believes_in_the_card(folder: Path) -> None:
    """Name, size, counters and values of small tensors are those of a real card; large ones have none."""
    asked = """
        card = torch.cuda.get_device_properties(0)
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and "4090" in card.name
        assert torch.cuda.get_device_capability() == (8, 9) and torch.cuda.is_bf16_supported()
        before = torch.cuda.memory_allocated()
        big = torch.empty(3 << 20, device="cuda")
        assert torch.cuda.memory_allocated() - before == 12 << 20
        assert big.is_cuda and big.device.type == "cuda"
        del big
        assert torch.cuda.memory_allocated() == before
        assert torch.cuda.max_memory_allocated() == before + (12 << 20)
        free, total = torch.cuda.mem_get_info()
        assert total == card.total_memory and total - free == torch.cuda.memory_reserved() > 0
        mask = torch.tensor([[1, 1, 0], [1, 0, 0]], device="cuda")
        assert mask.sum(1).tolist() == [2, 1] and mask.nonzero().shape == (3, 2) and not mask.bool().all()
        assert torch.arange(8, device="cuda")[mask.flatten().nonzero().flatten()].tolist() == [0, 1, 3]
        large = torch.randn(2048, 512, device="cuda")
        rows = torch.arange(2048, device="cuda") < 100
        assert large[rows].shape == (100, 512)
        assert large.masked_select(rows[:, None]).shape == (51200,)
        assert large.index_select(0, rows.nonzero().flatten()).shape == (100, 512)
        strange = large.isnan().logical_or(large.isinf())
        assert not strange.any() and strange.float().max().item() == 0
        assert strange.sum().item() == 0 and large.max().item() == 1
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            assert torch.cuda.current_stream() == side
        assert torch.cuda.current_stream() != side
        try:
            torch.ones(3, 4, device="cuda") @ torch.ones(5, 6, device="cuda")
        except RuntimeError as error:
            assert "cannot be multiplied" in str(error)
        else:
            raise AssertionError("shapes were not checked")
        chosen = torch.randn(4096, 40, device="cuda").topk(8, dim=1).indices
        marks = torch.zeros(4096, 40, device="cuda", dtype=torch.bfloat16).scatter(1, chosen, 1)
        assert sum(marks.long().sum(0).tolist()) == 8 * 4096
        half = [torch.zeros(1, n, 64, 64, device="cuda", dtype=torch.bfloat16) for n in (4, 2, 2)]
        assert torch._fused_sdp_choice(*half, is_causal=True, enable_gqa=True) == 1
        from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention
        grouped = SDPAParams(*half, None, 0.0, True, True)
        assert can_use_flash_attention(grouped) and not can_use_efficient_attention(grouped, False)
        assert torch.compile(len, disable=True) is len
        import os
        os.environ["TORCH_COMPILE_DISABLE"] = "1"
        assert torch.compile(len)([1]) == 1
        del os.environ["TORCH_COMPILE_DISABLE"]
        kept = torch.load("kept.pt", map_location="cuda")
        assert kept["n"].is_cuda and kept["n"].tolist() == [0, 1, 2] and kept["a"].shape == (300, 300)
        torch.save({"a": large, "n": 3}, "a.pt")
        back = torch.load("a.pt", map_location="cuda")
        assert back["a"].shape == large.shape and back["a"].is_cuda and back["n"] == 3
        frames = torch.randn(50, 4, 32, device="cuda", requires_grad=True)
        words = torch.ones(4, 10, dtype=torch.long, device="cuda")
        many, few = torch.full((4,), 50), torch.full((4,), 10)
        nn.functional.ctc_loss(frames.log_softmax(-1), words, many, few).backward()
        assert frames.grad.shape == frames.shape
        small = nn.Linear(8, 8, bias=False).cuda()
        of_row = lambda w, x: torch.func.functional_call(small, {"weight": w}, (x,)).sum()
        rows_of = torch.func.vmap(torch.func.grad(of_row), in_dims=(None, 0))
        assert rows_of(small.weight, torch.ones(2, 8, device="cuda")).shape == (2, 8, 8)
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        parts = torch.linalg.svd(torch.randn(1024, 2048, device="cuda"), full_matrices=False)
        # A matrix of 8 MiB and its copy, beside factors of 4 and 8 MiB and one row.
        assert torch.cuda.max_memory_allocated() - held == (8 + 8 + 4 + 8 << 20) + 4096
        del parts
        assert torch.linalg.solve(torch.randn(9, 64, 64, device="cuda"), large[:64, :3]).is_cuda
        gone = nn.Linear(1024, 1024, bias=False).cuda()
        gone(torch.ones(1, 1024, device="cuda")).sum().item()
        import gc
        gc.collect()
        held = torch.cuda.memory_allocated()
        del gone
        assert torch.cuda.memory_allocated() == held - 4 * 1024**2
        assert torch.cuda.HalfTensor(3, 4).shape == (3, 4) and torch.cuda.LongTensor([7]).tolist() == [7]
        assert isinstance(large, torch.cuda.FloatTensor) and large.type() == "torch.cuda.FloatTensor"
        assert large.cpu().type(torch.cuda.BFloat16Tensor).is_cuda
        for kind in (torch.cuda.BFloat16Tensor, "torch.cuda.HalfTensor"):
            torch.set_default_tensor_type(kind)
            made = nn.Linear(2, 2).weight
            assert made.is_cuda and made.dtype == torch.get_default_dtype() != torch.float32
        torch.set_default_tensor_type(torch.FloatTensor)
        assert torch.empty(2).device.type == "cpu" and torch.empty(2).dtype == torch.float32
        from torch._prims.rng_prims import run_dtensor_rng_op
        drawn = run_dtensor_rng_op(0, 4, torch.ops.aten.normal_.default, large)
        assert drawn is large
        # Megatron-Core sets the state by the generator itself.
        torch.cuda.default_generators[0].set_state(torch.cuda.get_rng_state(device="cuda"))
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        blocks = torch.compile(create_block_mask)(lambda b, h, q, k: q >= k, None, None, 1024, 1024)
        heads = [torch.zeros(1, n, 1024, 64, device="cuda", requires_grad=True) for n in (4, 2, 2)]
        before = torch.cuda.memory_allocated()
        seen = torch.compile(flex_attention)(*heads, block_mask=blocks, enable_gqa=True)
        # The output, and one number for each of its rows.
        assert torch.cuda.memory_allocated() - before == 4 * 1024 * (64 + 1) * 4
        seen.sum().backward()
        assert [each.grad.shape for each in heads] == [each.shape for each in heads]
    """
    import torch

    torch.save({"n": torch.arange(3), "a": torch.ones(300, 300)}, "kept.pt")
    code, out, err = run("trace", "--gpu", "4090", "--", "python", program(before=asked))
    assert code == 0, err
    assert "2 optimizer steps" in out
    assert "torch.compile at len: left out" in out


@pytest.mark.slow
def test_a_checkpoint_without_weights_is_read_by_its_own_libraries(folder: Path) -> None:
    """Configuration, tokenizer and weights are found by their file names, and copied to the card whole."""
    does = """
        import json
        from safetensors.torch import load_file
        assert json.load(open("a/b/config.json"))["hidden_size"] == 896
        assert "original" in __import__("os").listdir("a/b")
        held = load_file("a/b/model.safetensors", device="cuda")
        assert sum(each.nbytes for each in held.values()) == 988_065_536
        assert torch.cuda.memory_allocated() > 988_065_536
    """
    named = ("--checkpoint", "a/b=Qwen/Qwen2.5-0.5B")
    code, _, err = run("trace", "--gpu", "4090", *named, "--", "python", program(before=does))
    assert code == 0, err
    assert not Path("a").exists()
    named = ("--checkpoint", "a/b=nobody/nothing-of-this-name")
    code, _, err = run("trace", "--gpu", "4090", *named, "--", "python", program())
    assert code == 6
    assert "neither in the Hub's cache nor in the catalog" in err


def test_the_peak_is_counted_by_hand(folder: Path) -> None:
    """Weights, gradients and two states of four fp32 matrices; JSON lists each value that nobody has,
    with its line.
    """
    code, out, err = run(
        "trace", "--gpu", "4090", "--json", "--", "python", program(after="print(loss.item())")
    )
    assert code == 0, err
    document = json.loads(out)
    terms = {
        phase["phase"]: {each["name"]: each["bytes"] for each in phase["at_peak"]["terms"]}
        for phase in document["phases"]
    }
    matrices = 4 * 1024 * 1024 * 4
    norm = 2 * 4096
    assert terms["forward_2"]["weights"] == matrices + norm
    assert terms["forward_2"]["optimizer_states"] == 2 * (matrices + norm)
    assert terms["optimizer_step"]["gradients"] == matrices + norm
    asked = [each for each in document["assumptions"] if each["name"] == "a value"]
    assert [each["origin"] for each in asked] == ["train.py:14 (<module>)"]
    assert {phase["phase"] for phase in document["phases"]} >= {
        "load",
        "forward",
        "backward",
        "optimizer_step",
        "forward_2",
    }


def test_a_card_that_is_too_small_ends_with_exit_code_3(folder: Path) -> None:
    """The verdict names the phase."""
    code, out, _ = run("trace", "--gpu", "4090", "--fits", "100MiB", "--", "python", program())
    assert code == 3
    assert "DOES NOT FIT in 100.0 MiB" in out or "DOES NOT FIT" in out


def test_the_report_begins_a_line_behind_a_progress_bar(folder: Path) -> None:
    """A bar ends without a line break."""
    shown = program(after="    print('a bar', end='')")
    code, out, err = run("trace", "--gpu", "4090", "--", "python", shown)
    assert code == 0, err
    assert out.startswith("FITS")
    assert err.endswith("a bar\n")


def test_a_program_that_fails_shows_its_own_error(folder: Path) -> None:
    """Exit code 1, its traceback without ours, and one sentence."""
    code, out, err = run("trace", "--gpu", "4090", "--", "python", program(after="raise KeyError('mine')"))
    assert (code, out) == (1, "")
    assert "KeyError: 'mine'" in err
    assert 'File "train.py", line 14' in err
    assert "measure/dry_run" not in err
    assert err.splitlines()[-1].startswith("measure: the program itself failed")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            "net = torch.compile(lambda x: x, mode='max-autotune')",
            "try:\n    __import__('torch').compile(len, mode='max-autotune')(x)\nexcept Exception:\n    pass",
            "(TORCH_COMPILE_DISABLE=1 before the command",
        ),
        ("", "torch.sparse_coo_tensor(torch.zeros(1, 1).long(), x[:1], device=x.device)", "of SparseCUDA"),
        ("", "torch.nn.LSTM(1024, 8, device=x.device)(x)", "recurrent layer is one kernel of cuDNN"),
        ("", "torch.nn.GRU(1024, 8, device=x.device)(x)", "recurrent layer is one kernel of cuDNN"),
        ("import ctypes", "ctypes.memset(x.data_ptr(), 0, 8)", "read or wrote memory, at train.py:14"),
    ],
    ids=["compiled", "sparse", "lstm", "gru", "foreign kernel"],
)
def test_what_cannot_be_pretended_ends_with_exit_code_6(
    before: str, after: str, says: str, folder: Path
) -> None:
    """With its place, even where the program itself goes on without."""
    code, out, err = run("trace", "--gpu", "4090", "--", "python", program(before, after))
    assert (code, out) == (6, "")
    assert says in err.splitlines()[-1]


def test_a_program_beside_this_folder_finds_what_it_is_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths that lead out of this folder, as words and behind a flag."""
    script = program(
        before="import sys; assert open(sys.argv[1].partition('=')[2]).read() == open(sys.argv[2]).read()"
    )
    Path("rows.txt").write_text("rows", encoding="utf-8")
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    words = (f"../{script}", "--rows=../rows.txt", "../below/../rows.txt")
    code, _, err = run("trace", "--gpu", "4090", "--", "python", *words)
    assert code == 0, err


@pytest.mark.parametrize("mark", [".git", ""])
def test_a_program_finds_what_lies_beside_its_folder(
    mark: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ``..``, in a repository and out of one, and what it makes there is gone."""
    (folder / "trainer").mkdir()
    (folder / "data").mkdir()
    (folder / "data" / "rows.txt").write_text("rows", encoding="utf-8")
    (folder / "sizes.py").write_text("WIDTH = 3\n", encoding="utf-8")
    if mark:
        (folder / mark).mkdir()
    monkeypatch.chdir(folder / "trainer")
    does = """
        import os, sys
        sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..")))
        from sizes import WIDTH
        assert WIDTH == 3 and open("../data/rows.txt").read() == "rows"
        os.makedirs("../out")
        open("../out/log.txt", "w").write("step")
    """
    code, _, err = run("trace", "--gpu", "4090", "--", "python", program(before=does))
    assert code == 0, err
    assert sorted(each.name for each in folder.iterdir() if each.name != mark) == [
        "data",
        "sizes.py",
        "trainer",
    ]


def test_an_emptied_cache_counts_in_the_answer(folder: Path) -> None:
    """A GiB that the program gives back before its first step is not reserved later."""
    taken = """
        big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        del big
        {}
    """
    reserved = []
    for line in ("torch.cuda.empty_cache()", ""):
        code, out, err = run("trace", "--gpu", "4090", "--json", "--", "python", program(taken.format(line)))
        assert code == 0, err
        phases = {each["phase"]: each["reserved_bytes"] for each in json.loads(out)["phases"]}
        reserved.append(phases["backward"])
    assert reserved[0] < 1 << 30 <= reserved[1]


@pytest.mark.parametrize(
    ("variables", "mib"),
    [
        ({}, 20),
        ({"PYTORCH_ALLOC_CONF": 64}, 64),
        ({"PYTORCH_CUDA_ALLOC_CONF": 64, "PYTORCH_ALLOC_CONF": 128}, 64),
    ],
)
def test_a_program_that_asks_is_told_what_its_own_allocator_reserves(
    variables: dict[str, int], mib: int, folder: Path
) -> None:
    """Segments as its variables say, and the same in the answer."""
    says = [f'os.environ["{name}"] = "large_segment_size_mb:{size}"' for name, size in variables.items()]
    asks = [
        'first = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")',
        f"assert torch.cuda.max_memory_reserved() == {mib} << 20",
    ]
    code, out, err = run(
        "trace", "--gpu", "4090", "--json", "--", "python", program("\n".join(["import os", *says, *asks]))
    )
    assert code == 0, err
    document = json.loads(out)
    assert document["phases"][0]["reserved_bytes"] >= mib << 20
    told = [each["value"] for each in document["assumptions"] if "torch's allocator" in each["name"]]
    assert told == ([f"large_segment_size_mb:{mib}"] if variables else [])


LATE = """
side, event = torch.cuda.Stream(), torch.cuda.Event()
before = torch.cuda.memory_reserved()
with torch.cuda.stream(side):
    first = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
first.record_stream(torch.cuda.current_stream())
{early}
del first
{late}
with torch.cuda.stream(side):
    second = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
assert (torch.cuda.memory_reserved() - before) >> 26 == {mib} >> 6
"""


@pytest.mark.parametrize(
    ("early", "late", "mib"),
    [
        ("", "", 128),
        ("event.record()", "event.synchronize()", 128),
        ("", "event.record(); event.synchronize()", 64),
        ("", "event.record(); event.query()", 128),
        ("", "event.record()\nwhile not event.query(): pass", 64),
        ("", "torch.cuda.synchronize()", 64),
        ("", "side.wait_stream(torch.cuda.current_stream())", 128),
        ("one = torch.ones(1, device='cuda')", "one.item()", 64),
        ("one = torch.ones(1)", "one.to('cuda', non_blocking=True)", 128),
        ("one = torch.ones(1)", "one.to('cuda')", 64),
    ],
)
@pytest.mark.every(3)
def test_what_another_stream_uses_comes_back_when_the_host_has_waited(
    early: str, late: str, mib: int, folder: Path
) -> None:
    """For an event behind its end, or for all that the card was given; streams that wait say nothing."""
    before = LATE.format(early=early, late=late, mib=mib)
    code, _, err = run("trace", "--gpu", "4090", "--", "python", program(before=before))
    assert code == 0, err


# Names that torch's own Python code calls in its library, on its ways for CUDA.
PARTS = """
import re
from pathlib import Path
import torch, torch.distributed as dist
root = Path(torch.__file__).parent
files = [*(root / "cuda").glob("*.py"), *(root / "backends/cuda").glob("*.py"), root / "nn/parallel/comm.py"]
used = {name for file in files for name in re.findall(r"torch\\._C\\.(_(?:cuda|nccl)\\w+)", file.read_text())}
assert len(used) > 50 and not [name for name in used if not hasattr(torch._C, name)]
assert torch.cuda.nccl.version() >= (2, 10) and torch.cuda.get_arch_list() == ["sm_89"]
assert torch.cuda.get_allocator_backend() == "native" and torch.cuda.get_sync_debug_mode() == 0
torch.cuda.memory._record_memory_history(max_entries=10)
torch.cuda.profiler.start()
assert torch.cuda.cudart().cudaHostRegister(0, 8, 0) == 0
assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
torch.accelerator.empty_cache()
options = dist.ProcessGroupNCCL.Options()
options.config.cta_policy = dist.ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO
dist.init_process_group("nccl", rank=0, world_size=1, pg_options=options)
out = torch.zeros(2, device="cuda")
dist.all_gather_into_tensor(out, torch.ones(1, 2, device="cuda"))
assert out.tolist() == [1, 1]
dist.barrier()
dist.destroy_process_group()
"""


def test_every_part_of_cuda_that_torch_asks_for_is_there(folder: Path) -> None:
    """Versions, profilers, counters and options of NCCL answer; torch itself names no part that is not."""
    code, _, err = run("trace", "--gpu", "4090", "--", "python", program(before=PARTS))
    assert code == 0, err


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("torch.cuda.memory.memory_snapshot()", "torch._C._cuda_memorySnapshot"),
        ("torch.cuda.MemPool()", "torch._C._MemPool"),
        ("torch.cuda.caching_allocator_alloc(8)", "torch._C._cuda_cudaCachingAllocator_raw_alloc"),
    ],
)
@pytest.mark.every(3)
def test_a_part_of_cuda_without_a_stand_in_is_refused_by_name(line: str, name: str, folder: Path) -> None:
    """With the place in the program, and never as an error of the program itself."""
    code, out, err = run("trace", "--gpu", "4090", "--", "python", program(after=line))
    assert (code, out) == (6, "")
    assert name in err.splitlines()[-1]
    assert "train.py:14" in err.splitlines()[-1]


@needs("transformers")
def test_a_model_that_nobody_has_here_is_asked_for(folder: Path) -> None:
    """There is no network: the refusal names the file that is missing, and what to do."""
    before = "import transformers\ntransformers.AutoConfig.from_pretrained('nobody/no-such-model')"
    code, out, err = run("trace", "--gpu", "4090", "--", "python", program(before=before))
    assert (code, out) == (6, "")
    assert "config.json of nobody/no-such-model is neither in the Hub's cache" in err.splitlines()[-1]


# Takes the place of a launcher: it gives variables and starts Python.
LAUNCHER = """
import os, subprocess, sys
log = open("log.txt", "w")
words = [sys.executable, "-u", "train.py", "--said"]
done = subprocess.run(words, env={**os.environ, "SAID": "yes"}, check=True, stdout=STREAM, stderr=STREAM)
raise AssertionError("the steps that were asked for have run")
"""


@pytest.mark.parametrize("stream", ["subprocess.PIPE", "log"])
def test_what_a_launcher_starts_runs_in_the_dry_run(stream: str, folder: Path) -> None:
    """With the variables that it would give, and told as assumed; both streams may be one file."""
    program(before="import os, sys\nassert os.environ['SAID'] == 'yes' and sys.argv[1:] == ['--said']")
    Path("launch.py").write_text(LAUNCHER.replace("STREAM", stream), encoding="utf-8")
    code, out, err = run("trace", "--gpu", "4090", "--", "python", "launch.py")
    assert code == 0, err
    assert "a process that the program would start at python -u train.py" in out


SEEING = """
from transformers import AutoConfig, AutoTokenizer
name = "Qwen/Qwen2.5-VL-3B-Instruct"
words = AutoTokenizer.from_pretrained(name, model_max_length=3)
assert words("w1 w2 w3 w4", truncation=True)["input_ids"] == [5, 6, 7]
picture = AutoConfig.from_pretrained(name).image_token_id
assert words("w1<|image_pad|><|image_pad|>w2")["input_ids"] == [5, picture, picture, 6]
"""


@needs("transformers")
@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-VL-3B-Instruct", "meta-llama/Llama-3.2-1B"])
def test_a_missing_processor_may_have_a_stand_in(name: str, folder: Path) -> None:
    """Without leave for one, the refusal says how to give it; of a model of words it is the tokenizer."""
    asked = f"from transformers import AutoProcessor\nAutoProcessor.from_pretrained('{name}')"
    code, out, err = run("trace", "--gpu", "4090", "--", "python", program(before=asked))
    assert (code, out) == (6, "")
    assert f"the processor of {name} cannot be loaded here" in err.splitlines()[-1]
    assert err.endswith("--data FILE or --lengths TOKENS\n")


@needs("transformers")
def test_a_tokenizer_that_stands_in_knows_the_tokens_of_images(folder: Path) -> None:
    """By the numbers of the model's configuration; and the length that the program gives it."""
    Path("rows.jsonl").write_text('{"text": "w1"}\n', encoding="utf-8")
    command = ("trace", "--gpu", "4090", "--data", "rows.jsonl", "--", "python")
    code, _, err = run(*command, program(before=SEEING))
    assert code == 0, err


# Replaces itself, and hands the very variables on that it has.
REPLACING = """
import os, sys
os.environ["SAID"] = "yes"
os.execvpe(sys.executable, [sys.executable, "train.py"], os.environ)
"""


def test_a_launcher_that_hands_its_own_variables_on_keeps_them(folder: Path) -> None:
    """The program has the home folder of the dry run, and not none at all."""
    program(
        before="import os\nassert os.environ['SAID'] == 'yes' and 'measure-dry-run' in os.environ['HOME']"
    )
    Path("launch.py").write_text(REPLACING, encoding="utf-8")
    code, _, err = run("trace", "--gpu", "4090", "--", "python", "launch.py")
    assert code == 0, err


OF_SOURCE = """
double = torch.cuda._compile_kernel("__global__ void twice(float* x) {}", "twice", compute_capability="90")
double.set_shared_memory_config(65536)
values = torch.zeros(4, device="cuda")
double((1, 1, 1), (32, 1, 1), (values, 4))
assert values.tolist() == [1.0] * 4
"""


def test_a_kernel_of_source_is_not_started(folder: Path) -> None:
    """The report names it; what it is given has no values behind it."""
    code, out, err = run("trace", "--gpu", "4090", "--json", "--", "python", program(before=OF_SOURCE))
    assert code == 0, err
    assumed = {each["name"]: each["origin"] for each in json.loads(out)["assumptions"]}
    assert assumed["a kernel of CUDA's source"] == "twice"


SHARDED = """
import os, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
assert torch.cuda.device_count() == int(os.environ["WORLD_SIZE"]) == 4
dist.init_process_group("nccl")
assert dist.get_rank() == 0 and dist.get_world_size() == 4 and dist.get_backend() == "nccl"
gathered = [torch.zeros(2, device="cuda") for _ in range(4)]
dist.all_gather(gathered, torch.full((2,), 7.0, device="cuda"))
assert [each.tolist() for each in gathered] == [[7.0, 7.0]] * 4
import torch.distributed.checkpoint as parts
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
divided = distribute_tensor(torch.ones(8, 8, device="cuda"), init_device_mesh("cuda", (4,)), [Shard(0)])
parts.save({"a": divided}, checkpoint_id="saved")
assert parts.async_save({"a": divided}, checkpoint_id="saved").result() is None
assert os.path.isdir("saved")
"""


def test_the_first_of_four_ranks_holds_a_quarter(folder: Path) -> None:
    """FSDP2's own code in a group without partners; a launcher for another number of cards is refused."""
    script = program(before=SHARDED)
    text = Path(script).read_text(encoding="utf-8").replace("optimizer =", "fully_shard(net)\noptimizer =")
    Path(script).write_text(text, encoding="utf-8")
    code, out, err = run(
        "trace", "--gpu", "h100-sxm:4", "--json", "--", "torchrun", "--nproc_per_node", "4", script
    )
    assert code == 0, err
    document = json.loads(out)
    terms = {
        each["name"]: each["bytes"] for phase in document["phases"] for each in phase["at_peak"]["terms"]
    }
    assert "like this one, rank 0 of 4" in {each["value"] for each in document["assumptions"]}
    assert terms["optimizer_states"] == 2 * (4 * 1024 * 1024 * 4 + 2 * 4096) // 4
    code, _, err = run("trace", "--gpu", "h100-sxm:2", "--", "torchrun", "--nproc_per_node", "4", script)
    assert code == 6
    assert "starts 4 processes, but --gpu names 2 cards" in err.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_dry_run_that_is_ended_leaves_nothing(number: int, folder: Path) -> None:
    """The program goes with it, whether it was asked or not; where it was asked, so does the folder."""
    Path("waits.py").write_text(
        "import os, time\nprint('at', os.getpid(), flush=True)\ntime.sleep(60)\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "measure", "trace", "--gpu", "4090", "--", "python", "waits.py"]
    variables = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stderr is not None
        child = next(int(line.split()[1]) for line in started.stderr if line.startswith("at "))
        started.send_signal(number)
        started.wait(30)
    for _ in range(100):
        if not Path(f"/proc/{child}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{child}").exists()
    if number == signal.SIGTERM:
        assert not list(folder.glob("measure-dry-run-*"))


def test_a_tool_without_its_data_runs_on_rows_of_full_length(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which tokenizer or data is missing is said; a program of one's own is asked for --data instead."""
    ran: list[ProgramJob] = []

    def dry_run(job: ProgramJob) -> DryRun:
        ran.append(job)
        if not job.stands_in:
            raise DataNotHereError("the tokenizer of m cannot be loaded here")
        return DryRun({0: [AllocEvent("alloc", 0, 512, phase="load")]}, (), job.n_steps, 1, (1, 64), "")

    monkeypatch.setattr("measure.dry_run.parent.dry_run", dry_run)
    monkeypatch.setattr("measure.dry_run.run_program.check_program", lambda _: None)
    Path("a.yaml").write_text("base_model: m\nsequence_len: 64\nadapter: lora\ndatasets: []\n", "utf-8")
    code, printed, said = run("trace", "--gpu", "4090", "--", "axolotl", "train", "a.yaml")
    assert code == 0, said
    assert "the tokenizer of m cannot be loaded here; it runs again on rows of 64 tokens" in said
    assert "data sets at the command: rows of 64 tokens" in printed
    assert [bool(each.files) for each in ran] == [False, True]
    code, _, said = run("trace", "--gpu", "4090", "--", "python", program())
    assert (code, len(ran)) == (6, 3)
    assert "runs again" not in said


def test_rows_are_invented_with_the_columns_that_a_program_asks_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs again for each one that was missing; without --lengths it is asked for, and with --data, too,
    refused.
    """
    ran: list[ProgramJob] = []
    missing = iter([Lacking(column="label"), Lacking(column="text"), Lacking(n_rows=2000)])

    def dry_run(job: ProgramJob) -> DryRun:
        ran.append(job)
        if (lacking := next(missing, None)) is not None:
            raise RowsLackError(lacking)
        stood_in = (Assumed("data set", "the rows", "imdb", "once"),)
        return DryRun({0: [AllocEvent("alloc", 0, 512, phase="load")]}, stood_in, job.n_steps, 1, (1, 64), "")

    monkeypatch.setattr("measure.dry_run.parent.dry_run", dry_run)
    script = program()
    code, printed, said = run("trace", "--gpu", "4090", "--lengths", "64", "--", "python", script)
    assert code == 0, said
    assert "asks for a column label" in said
    assert "asks for 2,000 rows" in said
    assert "2,000 rows of label, text (labels of 2 classes), each text of 64 words" in printed
    assert [each.invented for each in ran] == [("text",), ("label",), *[("label", "text")] * 2]
    first = json.loads(ran[-1].files["invented-rows.jsonl"].splitlines()[0])
    assert (len(first["text"].split()), first["label"]) == (64, 0)
    code, _, said = run("trace", "--lengths", "64", "--data", "a.jsonl", "--", "python", script)
    assert code == 2
    assert "leave one of them out" in said


def test_a_program_that_trains_on_the_host_is_told_so(folder: Path) -> None:
    """Nothing of it is on the card, so that there is no peak."""
    on_host = LOOP.format(before="", after="").replace(".cuda()", "").replace('device="cuda"', "")
    Path("host.py").write_text(on_host.replace("4096, 1024, ", "4, 1024"), encoding="utf-8")
    code, _, err = run("trace", "--gpu", "4090", "--", "python", "host.py")
    assert code == 6
    assert "it trained on the host" in err


def test_a_program_writes_beside_its_own_file(folder: Path) -> None:
    """The place that the file itself names is the copy, whatever it was a link to."""
    does = """
        from pathlib import Path
        (Path(__file__).resolve().parent / "out").mkdir()
    """
    code, _, err = run("trace", "--gpu", "4090", "--", "python", program(before=does))
    assert code == 0, err
    assert not Path("out").exists()


def test_a_program_without_a_step_has_no_answer(folder: Path) -> None:
    """Exit code 6 for a script that ends, 1 with the place for one that does not."""
    Path("none.py").write_text("print('nothing')\n", encoding="utf-8")
    code, _, err = run("trace", "--gpu", "4090", "--", "python", "none.py")
    assert code == 6
    assert "without an optimizer step" in err
    Path("hangs.py").write_text(
        "import time\ndef wait():\n    while True:\n        time.sleep(0.1)\nwait()\n", encoding="utf-8"
    )
    code, _, err = run("trace", "--gpu", "4090", "--timeout", "8", "--", "python", "hangs.py")
    assert code == 1
    assert "hangs.py:4 (wait)" in err.splitlines()[-1]


def test_nothing_is_left_behind(folder: Path) -> None:
    """Files that are there can be read, and written in a copy; new ones are gone;
    other places are refused.
    """
    Path("data").mkdir()
    Path("data/old.txt").write_text("old", encoding="utf-8")
    elsewhere = folder.parent / "elsewhere.txt"
    does = f"""
        from pathlib import Path
        assert Path("data/old.txt").read_text() == "old"
        Path("data/old.txt").write_text("new")
        assert Path("data/old.txt").read_text() == "new"
        Path("data/more").mkdir()
        torch.save(nn.Linear(2, 2).state_dict(), "data/more/out.pt")
        try:
            Path({str(elsewhere)!r}).write_text("no")
        except PermissionError as error:
            assert "relative output folder" in str(error)
        else:
            raise AssertionError("it was written")
        import socket
        try:
            socket.create_connection(("192.0.2.1", 80), timeout=1)
        except ConnectionRefusedError:
            pass
    """
    before = sorted(folder.rglob("*"))
    script = program(before=does)
    code, _, err = run("trace", "--gpu", "4090", "--", "python", script)
    assert code == 0, err
    assert sorted(folder.rglob("*")) == sorted([*before, folder / script])
    assert Path("data/old.txt").read_text(encoding="utf-8") == "old"
    assert not elsewhere.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            ["--gpu", "4090", "--model", "7b", "--", "python", "train.py"],
            2,
            "--model cannot be joined with a program",
        ),
        (["--gpu-memory", "8GB", "--", "python", "train.py"], 2, "by --gpu, and --fits SIZE"),
        (["--gpu", "4090", "--", "python", "missing.py"], 2, "there is no script 'missing.py'"),
        (["--gpu", "4090", "--", "no-such-command"], 2, "there is no program 'no-such-command'"),
        (["--gpu", "4090", "--", "no-such-command"], 2, "install measure in the one that has it"),
        (["--gpu", "4090", "--", "env", "python", "train.py"], 2, "'env' is no Python program"),
        (["--gpu", "4090", "--check", "a.yaml", "--", "python", "train.py"], 2, "no program can follow"),
        (["--gpu", "4090", "--lengths", "8"], 2, "--check FILE"),
        (["--gpu", "4090", "--checkpoint", "m=qwen2.5-0.5b"], 2, "--checkpoint makes a folder"),
        (["--gpu", "4090", "--checkpoint", "m", "--", "python", "train.py"], 2, "FOLDER=MODEL"),
        (
            ["--gpu", "4090", "--checkpoint", "/m=7b", "--", "python", "train.py"],
            2,
            "a folder below this one",
        ),
        (["--gpu", "m3-max", "--", "python", "train.py"], 2, "no CUDA card"),
    ],
)
def test_wrong_use_is_one_sentence(arguments: list[str], code: int, says: str, folder: Path) -> None:
    """Found before anything is started."""
    program()
    found, out, err = run("trace", *arguments)
    assert (found, out) == (code, "")
    assert says in err
    assert err.count("\n") == 1


def test_without_a_compiler_there_is_a_refusal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names what to install."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, _, err = run("trace", "--gpu", "4090", "--", "python", program())
    assert code == 2
    assert "C++ compiler" in err


def test_a_trainer_that_evaluates_is_seen_evaluating(folder: Path) -> None:
    """Its batches are ten times as large, and the card keeps what the model returns: the peak is there."""
    pytest.importorskip("transformers")
    Path("train.py").write_text(
        textwrap.dedent(
            """
            import torch
            from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

            class Rows(torch.utils.data.Dataset):
                def __len__(self):
                    return 400
                def __getitem__(self, index):
                    return {"input_ids": torch.arange(64), "labels": index % 2}

            model = BertForSequenceClassification(
                BertConfig(vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=2)
            )
            args = TrainingArguments(
                "out", per_device_train_batch_size=1, per_device_eval_batch_size=40, report_to=[],
                eval_strategy="epoch",
            )
            right = lambda found: {"accuracy": (found.predictions.argmax(-1) == found.label_ids).mean()}
            Trainer(model, args, train_dataset=Rows(), eval_dataset=Rows(), compute_metrics=right).train()
            """
        ),
        encoding="utf-8",
    )
    code, out, _ = run("trace", "--gpu", "4090", "--json", "--", "python", "train.py")
    report = json.loads(out)
    assert code == 0
    assert report["peak"]["phase"] == "eval"
