"""Two ranks on the CPU with the real engines; each test asserts which engine class ran,
because libraries fall back silently.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from measure.run.assemble import MeasuredRecord
from planner.errors import NotModelledError
from planner.records import read_records
from planner.records.measured import RawReadings
from tests.extras import needs

ROOT = Path(__file__).resolve().parents[3]
TWO = {"gpu": "cpu", "gpus": 2, "method": "full", "optimizer": "adamw_torch", "batch": 1}
pytestmark = needs("deepspeed")


def raw(measured: MeasuredRecord) -> RawReadings:
    """The readings, through the border."""
    return RawReadings.model_validate(measured.attachments["raw"])


def check_ranks(done: MeasuredRecord) -> None:
    """One record with the readings of both ranks, started by torchrun; rates are those of the whole job."""
    assert done.record.outcome == "ok", raw(done).error
    assert [rank.rank for rank in raw(done).ranks] == [0, 1]
    assert all(rank.phases[-1].phase == "eval" for rank in raw(done).ranks)
    assert raw(done).how == "torchrun"
    assert done.record.samples_per_s == pytest.approx(2 / done.record.step_time_s)


@pytest.mark.parametrize(
    ("stage", "offload", "method"),
    [
        pytest.param(1, "none", "full", marks=pytest.mark.slow),
        pytest.param(2, "none", "lora", marks=pytest.mark.slow),
        pytest.param(2, "optimizer", "full", marks=pytest.mark.slow),
        pytest.param(3, "none", "full"),
        pytest.param(3, "optimizer", "full", marks=pytest.mark.slow),
        pytest.param(3, "none", "lora", marks=pytest.mark.slow),
    ],
)
def test_zero_runs_in_deepspeeds_engine(measure: Any, stage: int, offload: str, method: str) -> None:
    """The stage that was asked for runs, with its own optimizer class,
    and the record keeps the configuration.
    """
    done = measure(**{**TWO, "method": method}, sharding=f"zero{stage}", offload=offload)
    check_ranks(done)
    assert raw(done).engine_class == "deepspeed.runtime.engine.DeepSpeedEngine"
    zero = raw(done).configs["deepspeed"]["zero_optimization"]
    assert (zero["stage"], zero.get("offload_optimizer", {}).get("device")) == (
        stage,
        None if offload == "none" else "cpu",
    )
    stepping = "DeepSpeedZeroOptimizer_Stage3" if stage == 3 else "DeepSpeedZeroOptimizer"
    assert raw(done).configs["optimizer_class"] == stepping


@pytest.mark.parametrize(
    ("sharding", "method"), [("fsdp", "full"), pytest.param("fsdp-grad-op", "lora", marks=pytest.mark.slow)]
)
def test_fsdp2_runs(measure: Any, sharding: str, method: str) -> None:
    """``fully_shard`` turns the class of the model itself into a sharded one."""
    done = measure(**{**TWO, "method": method}, sharding=sharding)
    check_ranks(done)
    assert raw(done).engine_class.rpartition(".")[2].startswith("FSDP")
    assert raw(done).configs["fsdp"]["reshard_after_forward"] is (sharding == "fsdp")


@pytest.mark.slow
def test_ddp_runs(measure: Any) -> None:
    """Accumulated gradients are exchanged by the wrapper of PyTorch."""
    done = measure(**{**TWO, "method": "lora"}, sharding="ddp", grad_accum=2)
    assert done.record.outcome == "ok", raw(done).error
    assert raw(done).engine_class.endswith("DistributedDataParallel")


@pytest.mark.slow
def test_a_rank_that_is_killed_makes_the_job_run_once_more(measure: Any) -> None:
    """torchrun tells of a killed rank by its status alone, and the other rank says that it lost it:
    the case is not to blame.
    """
    killed: list[int] = []

    def kill_a_rank() -> None:
        end_s = time.monotonic() + 200
        while not killed and time.monotonic() < end_s:
            for each in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "measure.worker.worker" in each.cmdline():
                        each.kill()
                        killed.append(each.pid)
                        return
            time.sleep(0.2)

    killer = threading.Thread(target=kill_a_rank)
    killer.start()
    done = measure(**{**TWO, "method": "lora"}, sharding="ddp")
    killer.join()
    assert killed
    check_ranks(done)


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_job(measure: Any) -> None:
    """Memory that runs out on a rank is the outcome of the job,
    and nobody waits for the other until the timeout.
    """
    done = measure(**{**TWO, "batch": 131_072}, sharding="ddp", options={"memory_limit_bytes": 1_000_000_000})
    assert done.record.outcome == "host_oom", raw(done).error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sharding", "storage"),
    [("fsdp", "bf16"), ("fsdp", None), ("zero3", "bf16"), ("zero2", None)],
)
def test_four_bit_bases_run_under_every_engine(measure: Any, sharding: str, storage: str | None) -> None:
    """Bytes in bf16 are divided by FSDP2 and ZeRO-3;
    bytes as integers stay whole on each rank under FSDP2 and ZeRO-2.
    """
    said = {**TWO, "method": "qlora", "sharding": sharding} | ({"quant_storage": storage} if storage else {})
    done = measure(**said)
    check_ranks(done)
    assert raw(done).params > raw(done).trained_params > 0


@pytest.mark.slow
def test_a_checkpoint_is_divided_as_it_is_read(measure: Any, config: str, tmp_path: Path) -> None:
    """Real weights under ZeRO-3: the parameters are those of the file, and DeepSpeed holds them."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(str(Path(config).parent))
    )
    model.save_pretrained(tmp_path / "weights")
    done = measure(**TWO, sharding="zero3", options={"checkpoint": str(tmp_path / "weights")})
    check_ranks(done)
    assert raw(done).params == sum(tensor.numel() for tensor in model.parameters())
    assert raw(done).configs["optimizer_class"] == "DeepSpeedZeroOptimizer_Stage3"


@pytest.mark.slow
def test_the_trainer_runs_ddp(measure: Any) -> None:
    """The one kind of several ranks that the Trainer does on a CPU;
    ranks take the planned batches in turn and stop together.
    """
    done = measure(
        **{**TWO, "method": "lora", "batch": 2},
        sharding="ddp",
        padding="longest",
        options={"workload": "trainer", "lengths": (4, 10, 31), "steps": 3, "max_steps": 3},
    )
    assert done.record.outcome == "ok", raw(done).error
    assert raw(done).engine_class.endswith("DistributedDataParallel")
    assert [each.phase for each in raw(done).ranks[0].phases] == [
        each.phase for each in raw(done).ranks[1].phases
    ]
    assert raw(done).steps[0].padded_tokens == 62


@pytest.mark.slow
def test_two_nodes_meet_and_one_writes_the_record(config: str, tmp_path: Path) -> None:
    """The same command twice, as on two nodes: two ranks in one job, hsdp's copies,
    and one record between them.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = [
        "--model",
        config,
        "--method",
        "full",
        "--optimizer",
        "adamw_torch",
        "--seq",
        "32",
        "--gpu",
        "cpu",
        "--nodes",
        "2",
    ]
    how = [
        "--sharding",
        "hsdp",
        "--workload",
        "loop",
        "--steps",
        "2",
        "--max-steps",
        "2",
        "--rendezvous",
        f"127.0.0.1:{port}",
    ]
    command = [sys.executable, "-m", "measure", "run", *job, *how]
    nodes = [
        subprocess.Popen(
            [*command, "--out", str(tmp_path / str(number))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    said = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    (file,) = tmp_path.glob("*/*.jsonl")
    (record,) = read_records([file]).records
    assert (record.outcome, record.nodes, record.sharding) == ("ok", 2, "hsdp")
    assert record.samples_per_s == pytest.approx(2 / record.step_time_s)
    assert sum("the node with rank 0 has the record" in err for _, err in said) == 1


@pytest.mark.parametrize(
    ("values", "options", "says"),
    [
        ({"sharding": "zero2"}, {"workload": "trainer"}, "plain DDP"),
        ({"sharding": "fsdp1"}, {}, "fsdp1 runs in the Trainer on GPUs"),
        ({"sharding": "hsdp"}, {}, "say --nodes 2 or more"),
        ({"sharding": "zero3", "method": "qlora"}, {}, "quant-storage bf16"),
        ({"sharding": "fsdp", "precision": "fp16-mixed"}, {}, "GradScaler"),
        ({"sharding": "zero3", "offload": "optimizer-nvme"}, {}, "--nvme-path"),
        ({"sharding": "zero3", "offload": "optimizer-nvme"}, {"nvme_path": "/tmp"}, "needs a GPU"),
        ({"sharding": "ddp", "loss": "chunked"}, {}, "full loss"),
        ({"sharding": "none", "gpus": 1, "loss": "liger"}, {}, "GPU only"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_what_no_engine_runs_is_refused_in_a_sentence(
    measure: Any, values: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    """Before anything starts, with the reason and what to say instead."""
    with pytest.raises(NotModelledError, match=says):
        measure(**{**TWO, **values}, options=options)
