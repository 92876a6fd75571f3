"""The parts of the harness that need no framework: pace, lengths, quality, environment, protocol, machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from measure.run.case import RunCase, RunOptions, case_from_json, case_key
from measure.run.evidence import _filled_bytes, _throttled
from measure.run.lengths import plan_batches
from measure.run.options import checked_options, memory_limit_bytes
from measure.run.pace import Pace, interquartile_range, relative_spread
from measure.run.protocol import EventReader, Reporter
from measure.run.quality import Evidence, drift, is_censored, judge
from measure.run.readings.device_watch import DevicePeaks
from measure.run.readings.environment import cpu_name, differences, environment_key
from measure.run.readings.host import cgroup_bytes, cgroup_kills
from measure.run.readings.machine import Machine, catalog_id
from measure.run.readings.nvml import POWER_CAP, Gpu, throttle_names
from measure.run.solve import bisect
from planner.domain.recipe import Batch
from planner.domain.run_record import RunRecord
from planner.errors import UsageError
from planner.intake.request import from_record
from planner.intake.resolve import resolve
from planner.units import GIB, MIB

H200 = Gpu(0, "NVIDIA H200", "0" * 12, 143771 * MIB, "580.1", "13.0")


def batch(**changes: object) -> Batch:
    """Four rows of 1,000 tokens."""
    return replace(Batch(micro_batch=4, grad_accum=1, seq_len=1000, padding="longest", tokens_per_sample=1000), **changes)


def test_the_pace_stops_when_times_settle() -> None:
    """Warm-up is not counted; steady times stop at the least number of steps, spread ones go on to the limit."""
    options = RunOptions(warmup=2, steps=5, max_steps=20, budget_s=100.0)
    steady, spread = Pace(options), Pace(options)
    for number in range(30):
        if not steady.enough:
            steady.add(9.0 if number < 2 else 1.0)
        if not spread.enough:
            spread.add(1.0 + number % 2)
    assert steady.counted_s == [1.0] * 5
    assert len(spread.counted_s) == 20


def test_the_pace_keeps_to_its_budget() -> None:
    """Times that spread stop at the budget, yet not before the least number of steps."""
    pace = Pace(RunOptions(warmup=0, steps=5, max_steps=100, budget_s=3.0))
    while not pace.enough:
        pace.add(1.0 + len(pace.durations_s) % 2)
    assert len(pace.counted_s) == 5


def test_spread_is_that_of_the_quartiles() -> None:
    """Hand-computed: quartiles of 1..5 are 2 and 4; three values give their range."""
    assert interquartile_range([1, 2, 3, 4, 5]) == 2
    assert relative_spread([1, 2, 3, 4, 5]) == pytest.approx(2 / 3)
    assert interquartile_range([1.0, 5.0, 2.0]) == 4.0


def test_full_samples_need_one_micro_batch() -> None:
    """Samples as long as the cap, and packed ones, are all alike."""
    for same in (batch(), batch(padding="packed", tokens_per_sample=10)):
        (only,) = plan_batches(same, (), 0)
        assert (only.real_tokens, only.padded_tokens) == (4000, 4000)


def test_drawn_lengths_follow_their_quantiles() -> None:
    """Lengths stay within the law, the worst batch is first, and padding is to the longest or to the cap."""
    planned = plan_batches(batch(), (100, 300, 900), 0)
    lengths = [length for each in planned[1:] for length in each.lengths]
    assert planned[0].lengths == (900,) * 4
    assert min(lengths) >= 100
    assert max(lengths) <= 900
    assert 300 < sum(lengths) / len(lengths) < 500
    assert all(each.width_tokens == max(each.lengths) for each in planned)
    assert {each.width_tokens for each in plan_batches(batch(padding="max_length"), (100, 900), 0)} == {1000}
    assert planned == plan_batches(batch(), (100, 300, 900), 0)


def test_a_mean_is_drawn_around_itself() -> None:
    """Without quantiles the lengths spread evenly around the mean and never pass the cap."""
    planned = plan_batches(batch(tokens_per_sample=800), (), 0)
    lengths = [length for each in planned[1:] for length in each.lengths]
    assert min(lengths) >= 600
    assert max(lengths) <= 1000
    assert 750 < sum(lengths) / len(lengths) < 850


GOOD = Evidence(warmup_steps=3, counted_s=[1.0, 1.01, 0.99, 1.0, 1.0, 1.0], device_peak_bytes=50, device_bytes=100)


def test_a_clean_run_is_good() -> None:
    """Enough steady steps on a free, cool card."""
    assert judge(GOOD) == ("good", ())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"warmup_steps": 1}, "too few steps"),
        ({"counted_s": [1.0] * 4}, "too few steps"),
        ({"counted_s": [1.0, 1.0, 1.04, 1.04, 1.08, 1.08]}, "drift by +8 %"),
        ({"counted_s": [1.0, 1.5, 1.0, 1.5, 1.0, 1.5]}, "spread"),
        ({"retries": 2}, "2 times"),
        ({"throttled": ("hardware slowdown",)}, "throttled: hardware slowdown"),
        ({"other_processes": 1}, "1 other processes on the device"),
        ({"other_processes": 1, "held_before_bytes": 2 * GIB}, "1 other processes on the device; 2.00 GiB were in use"),
        ({"other_processes": None, "held_before_bytes": 2 * GIB}, "whom the driver does not name; 2.00 GiB were in use"),
        ({"driver_asked": False}, "the driver said nothing"),
        ({"device_peak_bytes": 94}, "nearly full"),
    ],
)
def test_each_doubt_is_named(change: dict[str, object], reason: str) -> None:
    """One defect, one reason."""
    verdict, reasons = judge(replace(GOOD, **change))
    assert verdict == "doubtful"
    assert len(reasons) == 1
    assert reason in reasons[0]


def test_memory_that_ran_out_is_a_finding() -> None:
    """An OOM has no steps to count and is a good record; a crash says nothing, and that is said."""
    without = replace(GOOD, warmup_steps=0, counted_s=[])
    assert judge(replace(without, outcome="oom")) == ("good", ())
    # The allocator always gives its cache back before it gives up, and the card is full then.
    assert judge(replace(without, outcome="oom", retries=1, device_peak_bytes=99)) == ("good", ())
    assert judge(replace(without, outcome="host_oom", throttled=("hardware slowdown",)))[0] == "doubtful"
    assert judge(replace(without, outcome="crash")) == (
        "doubtful",
        ("the run ended as crash: nothing follows about memory or speed",),
    )


def test_lengths_that_differ_are_no_spread() -> None:
    """Steps with different numbers of tokens may take different times."""
    assert judge(replace(GOOD, counted_s=[1.0, 2.0, 1.0, 2.0, 3.0], same_tokens=False))[0] == "good"


def test_censoring_needs_a_device() -> None:
    """Above 93 % of the card; unknown where there is none."""
    assert is_censored(GOOD) is False
    assert is_censored(replace(GOOD, device_bytes=None)) is None


def test_drift_compares_thirds() -> None:
    """Median of the last third over that of the first."""
    assert drift([1, 1, 5, 5, 2, 2]) == pytest.approx(1.0)


def test_environments_differ_by_what_moves_numbers() -> None:
    """Clocks of the moment do not make another environment; a driver does, and the difference is named."""
    one = {"cpu": "x", "gpu_state": [{"sm_clock_mhz": 300}], "libraries": {"torch": "2.13"}}
    assert environment_key(one) == environment_key({**one, "gpu_state": []})
    other = {**one, "libraries": {"torch": "2.11"}}
    assert environment_key(one) != environment_key(other)
    assert differences(one, other) == ["libraries: {'torch': '2.13'}, {'torch': '2.11'}"]


def test_control_group_files_of_both_versions(tmp_path: Path) -> None:
    """Version 2 and version 1 are read; 'max' and version 1's huge number mean no limit; no files, no figure."""
    assert cgroup_bytes("current", tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1048576\n")
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert (cgroup_bytes("max", tmp_path), cgroup_bytes("current", tmp_path), cgroup_kills(tmp_path)) == (None, MIB, 2)
    old = tmp_path / "old"
    (old / "memory").mkdir(parents=True)
    (old / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (old / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert (cgroup_bytes("max", old), cgroup_kills(old)) == (None, 1)


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    """From the first entry of the kernel's table."""
    source = tmp_path / "cpuinfo"
    source.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9B14\n")
    assert cpu_name(source) == "AMD EPYC 9B14"


def test_idle_clocks_are_no_throttling() -> None:
    """Bit 1 is idle; 4, 8 and the thermal ones are reasons."""
    assert throttle_names(0x1) == []
    assert throttle_names(0x4 | 0x40) == ["software power cap", "hardware thermal slowdown"]


@pytest.mark.parametrize(
    ("name", "gib", "expected"),
    [
        ("NVIDIA H200", 140.4, "h200-sxm"),
        ("NVIDIA A100-SXM4-80GB", 80, "a100-80-sxm"),
        ("NVIDIA A100-SXM4-40GB", 40, "a100-40-sxm"),
        ("NVIDIA A100 80GB PCIe", 80, "a100-80-pcie"),
        ("NVIDIA H100 80GB HBM3", 80, "h100-sxm"),
        ("NVIDIA GeForce RTX 4090", 24, "rtx4090"),
        ("NVIDIA GeForce RTX 3090", 24, "rtx3090"),
        ("Tesla T4", 15, "t4"),
        ("NVIDIA L4", 22.5, "l4"),
        ("NVIDIA A10G", 22.5, "a10g"),
        ("NVIDIA Thing 9000", 24, None),
    ],
)
def test_cards_are_known_by_their_drivers_name(name: str, gib: float, expected: str | None) -> None:
    """What the driver calls a card leads to its entry, and an unknown one to none."""
    assert catalog_id(replace(H200, name=name, memory_bytes=round(gib * GIB))) == expected


def test_a_job_is_placed_on_the_card_that_is_here() -> None:
    """Nothing said: the card; another card: refused with the way to ask about it; more than there are: refused."""
    machine = Machine(None, (H200,), "h200-sxm", {})
    assert machine.place({"seq": 1})["gpu"] == "h200-sxm"
    assert machine.place({"gpu": "cpu"})["gpu"] == "cpu"
    with pytest.raises(UsageError, match="--memory-limit 4090"):
        machine.place({"gpu": "4090"})
    with pytest.raises(UsageError, match="2 GPUs are asked for and 1"):
        machine.place({"gpus": 2})
    with pytest.raises(UsageError, match="name it with --gpu"):
        Machine(None, (H200,), None, {}).place({})


def test_events_are_read_as_they_come(tmp_path: Path) -> None:
    """Complete lines once each; an unfinished one when its end is there."""
    reporter, reader = Reporter(tmp_path / "events"), EventReader(tmp_path / "events")
    assert list(reader.new()) == []
    reporter.say("phase", phase="load")
    with (tmp_path / "events").open("a") as stream:
        stream.write('{"event": "st')
    assert [event["event"] for event in reader.new()] == ["phase"]
    with (tmp_path / "events").open("a") as stream:
        stream.write('ep"}\n')
    assert [event["event"] for event in reader.new()] == ["step"]
    assert reporter.phase == "load"


def test_a_case_survives_its_file_and_its_key_is_what_is_measured() -> None:
    """A default that is said makes the same case; a length or a memory limit makes another; patience does not."""
    values = {"model": "qwen2.5-0.5b", "method": "lora", "seq": 64, "gpu": "cpu", "lora_targets": ("q_proj",)}
    case = RunCase(values, RunOptions(lengths=(3, 9)))
    assert case_from_json(case.to_json()) == case
    key = case_key(case, case.scenario())
    same = RunCase({**values, "batch": 1}, RunOptions(lengths=(3, 9), timeout_s=1.0))
    other = RunCase(values, RunOptions(lengths=(3, 9), memory_limit_bytes=GIB))
    assert case_key(same, same.scenario()) == key
    assert case_key(other, other.scenario()) != key


def test_a_memory_limit_is_a_size_or_a_card() -> None:
    """Sizes as everywhere; a card stands for what it makes visible to CUDA."""
    assert memory_limit_bytes("24GiB") == 24 * GIB
    assert 23 * GIB < memory_limit_bytes("4090") < 24 * GIB
    with pytest.raises(UsageError):
        memory_limit_bytes("2409O")


def test_more_counted_steps_than_the_limit_raise_the_limit() -> None:
    """Who asks for 100 steps gets them."""
    assert checked_options({"steps": 100}).max_steps == 100
    with pytest.raises(UsageError, match="steps must be"):
        checked_options({"steps": 0})


@pytest.mark.parametrize("boundary", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("start", [1, 4, 64])
def test_bisection_finds_the_last_that_runs(boundary: int, start: int) -> None:
    """Wherever it starts, neighbours on both sides of the boundary are found, in few probes and none twice."""
    asked: list[int] = []

    def runs(value: int) -> bool:
        asked.append(value)
        return value <= boundary

    assert bisect(runs, start, 1, 65_536) == (boundary, boundary + 1)
    assert len(asked) == len(set(asked)) <= 16


def test_bisection_at_the_ends() -> None:
    """Nothing runs, or everything up to the limit does; lengths are told apart to their step."""
    assert bisect(lambda _: False, 8, 1, 100) == (None, 1)
    assert bisect(lambda _: True, 8, 1, 100) == (100, None)
    assert bisect(lambda value: value <= 1000, 64, 64, 4096) == (960, 1024)


def test_a_limit_reaches_the_planner_as_the_memory_of_the_card() -> None:
    """A run within 24 GiB of a larger card is judged against 24 GiB."""
    limited = RunRecord(
        id="r",
        source="s",
        source_group="g",
        model="7b",
        gpu="h200-sxm",
        method="lora",
        seq_len=64,
        outcome="oom",
        memory_limit_mib=24576.0,
    )
    assert resolve(from_record(limited)).hardware.gpu.visible_memory_bytes == 24 * GIB


@pytest.mark.parametrize(
    ("held_bytes", "limited", "filled_bytes"),
    [(100 * MIB, False, 20 * GIB - 400 * MIB), (None, False, 20 * GIB), (100 * MIB, True, 20 * GIB - 500 * MIB)],
)
def test_what_the_driver_keeps_fills_no_card(held_bytes: int | None, limited: bool, filled_bytes: int) -> None:
    """The card's size is what CUDA makes visible, without the driver's own part; a limit is about what a run adds."""
    device = DevicePeaks(0, 500 * MIB, 20 * GIB, held_bytes, None, None, ())
    assert _filled_bytes(device, limited=limited) == filled_bytes


def test_a_power_limit_is_that_of_its_own_card() -> None:
    """A card that keeps to the limit it was sold with is not slowed; states belong to devices by index, not place."""
    states = [
        {"index": index, "power_limit_mw": 700, "power_limit_default_mw": sold_mw}
        for index, sold_mw in ((0, 700), (1, 900), (2, 700))
    ]
    for watched, reasons in ((1, (POWER_CAP,)), (2, ())):
        device = DevicePeaks(watched, 0, 0, None, None, None, (POWER_CAP,))
        assert _throttled((device,), {"gpu_state": states}) == reasons
    assert _throttled((DevicePeaks(0, 0, 0, None, None, None, (POWER_CAP,)),), {}) == (POWER_CAP,)
