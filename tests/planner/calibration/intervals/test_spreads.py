"""Intervals from held-out residuals: asymmetric, coarser where there is little data,
and their coverage is measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.calibration.fit.calibrate import support_of
from planner.calibration.intervals.coverage import Held, held_out, measured_coverage
from planner.calibration.intervals.spreads import Residual, make_spreads
from planner.catalog.gpus import load_gpu
from planner.catalog.location import data_dir
from planner.domain.uncertainty.calibration import (
    Calibration,
    Support,
    formulas_version,
    lengths_are_unknown,
    lengths_of,
)
from planner.domain.uncertainty.coefficients import Coefficients
from planner.domain.uncertainty.interval import (
    NOMINAL_COVERAGE,
    Spread,
    SpreadKey,
    find_spread,
    interval_around,
)
from planner.domain.uncertainty.scale import (
    Doubt,
    machine_share,
    memory_scale,
    need_scale,
    time_scale,
    widened,
)
from planner.predicting import estimate, estimate_calibrated
from planner.records.calibration_file import DEFAULT_CALIBRATION, find_calibration
from planner.report.prediction.intervals import calibration_notes
from planner.units import MIB
from tests.jobs import resolved

KEY = SpreadKey("memory", "fixed")
NATURAL = SpreadKey("memory", "natural")


def residuals(groups: int, rows: int, spread: float = 0.1, key: SpreadKey = KEY) -> list[Residual]:
    """Log ratios with a long upper tail, the same law in every group."""
    generator = np.random.default_rng(3)
    draws = spread * generator.gumbel(size=(groups, rows))
    return [
        Residual(f"{g}-{i}", f"group-{g}", "driver", key, float(draws[g, i]))
        for g in range(groups)
        for i in range(rows)
    ]


def calibration(*, half_width: float = 0.1) -> Calibration:
    """Untouched coefficients with scores of memory and time within +- ``half_width``."""
    quantiles = (-2 * half_width, -half_width, 0.0, half_width, 2 * half_width)
    spreads = [
        Spread(SpreadKey(of), (0.01, 0.05, 0.5, 0.95, 0.99), quantiles, 50, 3)
        for of in ("memory", "need", "time")
    ]
    support = Support(("ada",), ("rtx4090",), ("hf-trainer",), ("qlora",), ("none",), ("nvidia",))
    return Calibration("test", "2026-01-01", formulas_version(), (), tuple(spreads), support)


job = partial(resolved, model="7b", method="qlora", gpu="4090", seq=1024)
"""A QLoRA job, changed by ``flags``."""


def test_coverage_is_near_the_nominal_one() -> None:
    """Where all groups follow one law, held-out coverage of the 90 % interval is 86 to 94 %."""
    share = measured_coverage(residuals(12, 40))["driver"]
    assert 0.86 <= share <= 0.94


def test_coverage_holds_at_every_scale() -> None:
    """Where errors grow with the scale of a prediction,
    narrow and wide intervals both hold 86 to 94 % of readings.
    """
    generator = np.random.default_rng(5)
    mixed = []
    for each in residuals(12, 60):
        scale = float(generator.choice([0.3, 1.3]))
        mixed.append(replace(each, log_ratio=each.log_ratio * scale, scale=scale))
    held = held_out(mixed)
    for scale in (0.3, 1.3):
        assert 0.86 <= float(np.mean([each.inside for each in held if each.residual.scale == scale])) <= 0.94
    narrow, wide = (median_width(held, scale) for scale in (0.3, 1.3))
    assert wide > 3 * narrow


def median_width(held: Sequence[Held], scale: float) -> float:
    """Median half-width of the intervals of one scale."""
    return float(np.median([each.half_width for each in held if each.residual.scale == scale]))


def test_an_interval_knows_nothing_of_its_own_group() -> None:
    """A document whose readings all lie far off is outside the intervals made from the others,
    however many rows it has.
    """
    odd = [Residual(f"odd-{i}", "odd", "driver", KEY, 3.0) for i in range(400)]
    held = held_out([*residuals(6, 20), *odd])
    assert not any(each.inside for each in held if each.residual.group == "odd")


def test_the_order_of_samples_is_part_of_an_interval() -> None:
    """A reading that the order of samples alone can reach lies inside,
    however narrow the other sources are.
    """
    lucky = Residual("lucky", "lucky", "reserved", KEY, 2.0)
    for reach, inside in (((0.0, 0.0), False), ((-0.1, 2.1), True)):
        held = held_out([*residuals(6, 20), replace(lucky, reach=reach)])
        assert held[-1].residual.group == "lucky"
        assert held[-1].inside is inside


def test_intervals_follow_the_longer_tail() -> None:
    """Measured values scatter further up than down, so the interval does, too."""
    spread = {each.key: each for each in make_spreads(residuals(6, 60))}[KEY]
    assert spread.quantile(0.95) - spread.quantile(0.5) > 1.3 * (spread.quantile(0.5) - spread.quantile(0.05))


def test_a_class_of_one_source_uses_the_whole() -> None:
    """One source makes no distribution of its own; the one of all lengths stands in,
    and another quantity never does.
    """
    lone = residuals(1, 30, key=NATURAL)
    spreads = {each.key: each for each in make_spreads([*residuals(4, 30), *lone])}
    found = find_spread(spreads, NATURAL)
    assert found is not None
    assert found.key == SpreadKey("memory")
    assert find_spread(spreads, SpreadKey("time")) is None


def test_one_source_alone_leans_on_the_stated_scatter() -> None:
    """Four readings of one source that all lie low do not say that nothing lies high;
    many sources that do, do.
    """
    low = [
        Residual(f"{i}", "only", "host_memory", SpreadKey("host_memory"), -0.1 - 0.01 * i) for i in range(4)
    ]
    several = [replace(each, group=f"g{g}") for each in low for g in range(12)]
    one, many = (make_spreads(each)[0] for each in (low, several))
    assert one.quantile(0.95) > 0.15
    assert many.quantile(0.95) < 0
    assert one.quantile(0.05) < many.quantile(0.05)
    assert (one.n_rows, one.n_groups) == (4, 1)


def test_a_class_of_few_sources_leans_on_the_whole() -> None:
    """Two sources with small errors are not trusted alone; ten are."""
    wild = residuals(6, 30, spread=0.3, key=NATURAL)

    def upper(groups: int) -> float:
        calm = [replace(each, group=f"calm-{each.group}") for each in residuals(groups, 30, spread=0.01)]
        found = find_spread({each.key: each for each in make_spreads([*wild, *calm])}, KEY)
        assert found is not None
        return found.quantile(0.95)

    assert upper(2) > 3 * upper(30)


def test_a_group_with_many_rows_does_not_decide_alone() -> None:
    """A table of 400 rows with small errors counts once beside five small ones with large errors,
    also for what must be held.
    """
    mixed = [
        *residuals(1, 400, spread=0.01),
        *[replace(each, group=f"x{each.group}") for each in residuals(5, 10, spread=0.2)],
    ]
    spreads = {each.key: each for each in make_spreads(mixed)}
    pooled = float(np.quantile([each.log_ratio for each in mixed], 0.95))
    for key in (KEY, SpreadKey("need")):
        assert spreads[key].quantile(0.95) > 1.5 * pooled
    more = [*mixed, *(replace(each, record_id=f"again-{each.record_id}") for each in mixed[:400])]
    again = {each.key: each for each in make_spreads(more)}
    assert again[KEY].quantile(0.95) == spreads[KEY].quantile(0.95)


def test_what_must_be_held_is_judged_without_cache() -> None:
    """Readings of what is reserved, and of natural lengths, say nothing of what must be held at once."""
    cached = [replace(each, of="reserved", log_ratio=each.log_ratio + 1.0) for each in residuals(4, 30)]
    spreads = {
        each.key: each for each in make_spreads([*residuals(4, 30), *cached, *residuals(4, 30, 0.5, NATURAL)])
    }
    assert spreads[SpreadKey("need")].quantile(0.95) < 0.5 < spreads[KEY].quantile(0.95)


def test_what_is_allocated_has_a_distribution_of_its_own() -> None:
    """Whatever the lengths, as it is counted operator by operator; what is reserved beside it scatters more,
    and the minimum memory reads what is allocated of fixed lengths.
    """
    keys = [SpreadKey.memory("allocated", lengths) for lengths in ("fixed", "natural")]
    counted = [replace(each, of="allocated") for key in keys for each in residuals(4, 30, 0.02, key)]
    cached = [replace(each, of="reserved", group=f"x{each.group}") for each in residuals(4, 30, 0.2, NATURAL)]
    spreads = {each.key: each for each in make_spreads([*counted, *cached])}
    own, natural, reserved = (find_spread(spreads, key) for key in (*keys, NATURAL))
    assert own is not None
    assert own is natural
    assert reserved is not None
    assert reserved.quantile(0.9) > 5 * own.quantile(0.9)
    assert spreads[SpreadKey("need")].quantile(0.9) < 0.1


def test_probability_to_fit_is_the_share_below_the_limit() -> None:
    """Far below the limit it is 1, far above 0, at the limit a half,
    and only in between the verdict is uncertain.
    """
    model = calibration()
    need = float(estimate(job()).memory.must_have_bytes)
    for ratio, probability, verdict in (
        (3.0, 1.0, "fits"),
        (1.0, 0.5, "uncertain"),
        (0.5, 0.0, "does_not_fit"),
    ):
        found = estimate_calibrated(job(gpu_memory=f"{need * ratio / MIB:.3f}MiB"), model)
        assert found.fits_probability == pytest.approx(probability, abs=0.02)
        assert found.verdict == verdict


def test_host_ram_that_is_short_decides_where_the_card_may_do() -> None:
    """Of two shortages the certain one is said:
    only a card that is surely too small comes before a host that lacks RAM.
    """
    model = calibration()
    offload = {"method": "full", "sharding": "zero3", "offload": "optimizer+params", "host_memory": "32GiB"}
    need = float(estimate(job(**offload)).memory.must_have_bytes)
    verdicts = {
        3.0: "host_memory_short",
        1.02: "host_memory_short",
        0.98: "host_memory_short",
        0.5: "does_not_fit",
    }
    for ratio, verdict in verdicts.items():
        found = estimate_calibrated(job(**offload, gpu_memory=f"{need * ratio / MIB:.3f}MiB"), model)
        assert found.verdict == verdict
        assert ("straddles" in found.reason) is (0.9 < ratio < 1.0)
        assert (verdict == "does_not_fit") is ("of host RAM" not in found.reason)


@given(st.lists(st.floats(0.3, 3.0), min_size=2, max_size=6))
@settings(max_examples=20)
def test_a_larger_card_never_fits_less(ratios: list[float]) -> None:
    """P(fits) does not fall as the card grows, with the calibration that ships."""
    model = find_calibration(DEFAULT_CALIBRATION, data_dir() / "calibration")
    need = float(estimate(job(), model.coefficients_for(job())).memory.must_have_bytes)
    found = [
        estimate_calibrated(job(gpu_memory=f"{need * ratio / MIB:.3f}MiB"), model) for ratio in sorted(ratios)
    ]
    chances = [each.fits_probability or 0.0 for each in found]
    assert chances == sorted(chances)


@given(
    st.sampled_from(("full", "lora", "qlora")),
    st.sampled_from(("4090", "h100-sxm", "t4")),
    st.integers(64, 4096),
)
@settings(max_examples=40)
def test_an_interval_contains_its_prediction(method: str, gpu: str, seq: int) -> None:
    """Every peak, the step and host RAM lie inside their intervals,
    also where the card caps what is shown.
    """
    model = find_calibration(DEFAULT_CALIBRATION, data_dir() / "calibration")
    found = estimate_calibrated(job(method=method, gpu=gpu, seq=seq, padding="longest"), model)
    assert found.uncertainty is not None
    assert found.time is not None
    assert found.uncertainty.step is not None
    for level, interval in found.uncertainty.memory:
        assert interval.low <= getattr(found.memory, f"{level}_peak_bytes") <= interval.high
    assert found.uncertainty.step.low <= found.time.step_s <= found.uncertainty.step.high
    assert found.uncertainty.host is not None
    assert found.uncertainty.host.low <= found.host.per_process_bytes <= found.uncertainty.host.high


def test_no_peak_above_the_card_is_expected_of_a_job_that_fits() -> None:
    """The cache of natural lengths grows until the card is full and no further."""
    model = find_calibration(DEFAULT_CALIBRATION, data_dir() / "calibration")
    found = estimate_calibrated(job(seq=4096, padding="longest"), model)
    assert found.uncertainty is not None
    assert found.memory.limit_bytes is not None
    assert (
        found.memory.driver_peak_bytes
        < dict(found.uncertainty.memory)["driver"].high
        <= found.memory.limit_bytes
    )


def test_intervals_stand_around_the_prediction() -> None:
    """Each level is the peak times its quantiles at its scale; a quantity without data has no interval."""
    found = estimate_calibrated(job(), calibration())
    assert found.uncertainty is not None
    for level, interval in found.uncertainty.memory:
        peak = float(getattr(found.memory, f"{level}_peak_bytes"))
        scale = float(memory_scale(found.memory, level, Doubt()))
        assert interval.low == pytest.approx(peak * np.exp(-0.1 * scale))
        assert interval.high == pytest.approx(peak * np.exp(0.1 * scale))
    assert found.uncertainty.host is None
    assert found.uncertainty.nominal == NOMINAL_COVERAGE


def test_coverage_is_said_or_why_there_is_none() -> None:
    """The line on the calibration gives the measured coverage;
    with one source there is no other to measure it on.
    """
    alone = calibration()
    several = replace(alone, coverage=(("driver", 0.87),))
    texts = [calibration_notes(estimate_calibrated(job(), each))[0].text for each in (alone, several)]
    assert texts[0].endswith("no second source to check its 90 % intervals on.")
    assert texts[1].endswith("90 % intervals contain: driver 87 %.")


def test_intervals_widen_with_distance() -> None:
    """Each thing that no calibrated record had makes every interval wider and the chance to fit less sure."""
    model, near = calibration(), job()
    supports = (
        model.support,
        replace(model.support, families=("other",)),
        Support(("hopper",), (), ("other",), (), ("none",)),
    )
    found = [estimate_calibrated(near, replace(model, support=support)) for support in supports]
    assert [replace(model, support=each).doubt(near).n_unseen for each in supports] == [0, 1, 3]
    for level in ("allocated", "reserved", "driver"):
        widths = [dict(each.uncertainty.memory)[level] for each in found if each.uncertainty]
        assert sorted(widths, key=lambda each: each.high - each.low) == widths
        assert widths[0].high < widths[1].high < widths[2].high
    steps = [each.uncertainty.step for each in found if each.uncertainty and each.uncertainty.step]
    assert steps[0].high < steps[1].high < steps[2].high


def test_what_no_record_had_is_a_scatter_of_its_own() -> None:
    """It adds as a square, so a prediction that is all counted widens by a larger share."""
    assert widened(0.7, 0) == pytest.approx(0.7)
    assert widened(0.15, 1) == pytest.approx(0.25)
    assert widened(0.2, 3) / 0.2 == pytest.approx(2.0)
    assert widened(2.0, 3) / 2.0 < 1.1


def test_what_is_counted_is_surer_than_what_is_transient() -> None:
    """The scale of a peak grows with the share of it that passes hold,
    from its floor to little more than 1.
    """
    short, long = (estimate(job(seq=seq, gradient_checkpointing=False)).memory for seq in (512, 4096))
    assert (
        0.3
        < float(memory_scale(short, "driver", Doubt()))
        < float(memory_scale(long, "driver", Doubt()))
        < 1.1
    )
    assert float(need_scale(short, Doubt())) < float(need_scale(long, Doubt()))


def test_a_small_peak_is_less_sure_in_its_own_size() -> None:
    """What the context and other processes add is bytes: half a peak of 3 GiB, a fiftieth of one of 80."""
    small, large = (estimate(job(model=name, seq=64)).memory for name in ("llama-3.2-1b", "llama-2-13b"))
    assert float(memory_scale(small, "driver", Doubt())) > 1.2 * float(memory_scale(large, "driver", Doubt()))


def test_a_peak_of_a_few_mib_scatters_by_bytes(tmp_path: Path) -> None:
    """The job of a toy model holds 8 MiB: no level is expected above a card that it could ever fill,
    nor known to a MiB.
    """
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "vocab_size": 1000,
    }
    config |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model = find_calibration(DEFAULT_CALIBRATION, data_dir() / "calibration")
    for memory in ("300MiB", "24GiB"):
        toy = job(model=str(tmp_path / "config.json"), method="full", seq=64, gpu_memory=memory)
        found = estimate_calibrated(toy, model)
        assert found.memory.allocated_peak_bytes < 20 * MIB
        assert found.uncertainty is not None
        for level, interval in found.uncertainty.memory:
            peak = float(getattr(found.memory, f"{level}_peak_bytes"))
            assert 0 <= interval.low <= peak
            least = 64 if level == "allocated" else 100
            assert least * MIB < interval.high - peak < 2048 * MIB


def test_what_lengths_pile_up_is_the_least_sure() -> None:
    """Cache of natural lengths widens what is reserved and shown,
    not what is allocated nor what must be held.
    """
    said = {"seq": 4096, "tokens_per_sample": 1200, "batch": 4, "gpu": "h200-sxm"}
    fixed, natural = (estimate(job(**said, padding=padding)).memory for padding in ("max_length", "longest"))
    scales = [
        [float(memory_scale(each, level, Doubt())) for level in ("allocated", "driver")]
        for each in (fixed, natural)
    ]
    assert scales[1][1] > 1.2 * scales[0][1]
    assert scales[1][0] == scales[0][0]
    assert float(need_scale(natural, Doubt())) == float(need_scale(fixed, Doubt()))


def test_unknown_lengths_widen_what_passes_hold() -> None:
    """Padded to the longest of samples of unknown lengths, what is reserved is less sure; what is allocated
    is that of the longest batch, and whether the job fits is asked for full samples.
    """
    said, unsaid = job(padding="longest", tokens_per_sample=600), job(padding="longest")
    assert [lengths_are_unknown(each) for each in (job(), said, unsaid)] == [False, False, True]
    memory, unknown = estimate(unsaid).memory, Doubt(lengths_unknown=True)
    assert float(memory_scale(memory, "driver", unknown)) > 1.5 * float(
        memory_scale(memory, "driver", Doubt())
    )
    assert memory_scale(memory, "allocated", unknown) == memory_scale(memory, "allocated", Doubt())
    assert float(need_scale(memory, unknown)) == float(need_scale(memory, Doubt()))


def test_jobs_that_gather_their_weights_are_less_sure() -> None:
    """ZeRO-3 and FSDP gather them, ZeRO-2 and one GPU do not."""
    shardings = {"zero3": True, "fsdp": True, "zero2": False, "none": False}
    jobs = {name: job(method="lora", gpus=1 if name == "none" else 2, sharding=name) for name in shardings}
    assert {name: calibration().doubt(each).gathers for name, each in jobs.items()} == shardings


def test_what_waits_for_the_host_is_less_sure() -> None:
    """A step that offloads is less sure than one that does not,
    and a host's name without records of it changes nothing.
    """
    times = [
        estimate(job(method=method, gpu="h100-sxm", gpus=4, sharding="zero3", offload=offload, batch=8)).time
        for method, offload in (("full", "optimizer+params"), ("lora", "none"))
    ]
    shares = [machine_share(time) for time in times if time]
    scales = [time_scale(time, Doubt()) for time in times if time]
    assert shares[0] > shares[1]
    assert scales[0] > scales[1] > 1.0
    named, unnamed = (calibration().doubt(job(**host)) for host in ({"host": "network-400g"}, {}))
    assert named == unnamed


def test_links_decide_what_the_update_sends_too() -> None:
    """Of a step that broadcasts its weights over many nodes, more is the machine's than of one that gathers
    them behind its kernels.
    """
    broadcast, gathered = (
        estimate(
            job(
                method="full", gpu="a100-80-sxm", gpus=8, nodes=64, stack="internevo", sharding="zero1",
                switches=f"zero1_update={how}",
            )
        ).time
        for how in ("broadcast", "gathered")
    )  # fmt: skip
    assert broadcast is not None
    assert gathered is not None
    sent = next(term.seconds for term in broadcast.terms if term.name == "update_collectives")
    exposed = (
        float(machine_share(broadcast)) * broadcast.step_s - float(machine_share(gathered)) * gathered.step_s
    )
    assert exposed > 0.9 * sent


def test_kernels_and_machine_err_independently() -> None:
    """A step that the machine hardly touches scatters by what kernels do."""
    time = estimate(job(method="full", gpu="a100-80-sxm", batch=8)).time
    assert time is not None
    assert 1 <= time_scale(time, Doubt()) < 1.05


def test_rates_of_no_source_are_less_sure_than_an_unseen_card() -> None:
    """Virtual and shared cards of one name differ by 3.75 times what kernels do.

    A card on which somebody measured products is not one of them, whoever says its peak.
    """
    time = estimate(job(method="full", batch=8)).time
    assert time is not None
    unsourced, unseen = Doubt(rates_unsourced=True), Doubt(n_unseen=1)
    assert float(time_scale(time, unsourced)) == pytest.approx((1 + 3.75**2) ** 0.5, abs=0.02)
    assert time_scale(time, unseen) < time_scale(time, unsourced)
    assert [load_gpu(gpu).rates_are_unsourced for gpu in ("vgpu-32gb", "a10g", "h100-sxm")] == [
        True,
        False,
        False,
    ]


def test_a_vendor_is_known_by_two_sources_or_by_ones_own_machine() -> None:
    """What its libraries reach of the rates of its cards is else as sure as rates of no source."""
    ours, other = job(gpu="h100-sxm"), job(gpu="mi300x", stack="torchtitan", method="full")
    readings = [("a", ours), ("b", ours), ("b", other), ("b", other)]
    assert support_of(readings).vendors == ("nvidia",)
    assert support_of([*readings, ("c", other)]).vendors == ("amd", "nvidia")
    assert support_of([("mine", other)], 1).vendors == ("amd",)
    model = replace(calibration(), support=support_of(readings))
    assert [model.doubt(each).rates_unsourced for each in (ours, other)] == [False, True]


def test_times_have_one_distribution_whatever_the_lengths() -> None:
    """Few sources of natural lengths scatter as others do; a class of their own would only be wider.
    What is not known of lengths is in the scale.
    """
    one, older = (SpreadKey("time", lengths) for lengths in ("", "natural"))
    drawn = [replace(each, of="time") for each in residuals(8, 20, 0.05, one)]
    wide = replace(make_spreads(drawn)[0], key=older, scores=(-9.0,) * 6 + (0.0,) + (9.0,) * 6)
    model = replace(calibration(), spreads=(*make_spreads(drawn), wide))
    ratios = []
    for told in ({}, {"tokens_per_sample": 600}, {"padding": "longest"}):
        found = estimate_calibrated(job(**told), model)
        assert found.uncertainty is not None
        assert found.uncertainty.step is not None
        ratios.append(found.uncertainty.step.high / found.uncertainty.step.low)
    assert ratios[1] < 1.2 * ratios[0]
    assert ratios[2] > 1.2 * ratios[1]


def test_an_unseen_gpu_or_stack_is_said() -> None:
    """The report names what no calibrated record had; nothing is named where all of it was seen."""
    model = calibration()
    assert model.extrapolates(job()) == ()
    assert model.extrapolates(job(gpu="h100-sxm")) == ("GPU generation hopper",)
    assert "method full" in model.extrapolates(job(method="full"))
    narrow = job(gpu="h100-sxm", method="full", fp8="te-delayed", gradient_checkpointing=False)
    assert "products of Transformer Engine in 8 bits" in model.extrapolates(narrow)
    assert model.extrapolates(job(gpu="4080")) == ("GPU rtx4080",)


def test_lengths_are_natural_where_that_is_said() -> None:
    """Padding to the longest with shorter samples changes shapes from step to step;
    packed and full samples do not.
    """
    assert lengths_of(job()) == "fixed"
    assert lengths_of(job(padding="packed")) == "fixed"
    assert lengths_of(job(padding="longest")) == "natural"
    assert lengths_of(job(tokens_per_sample=500)) == "natural"


def test_an_interval_is_in_the_unit_of_its_number() -> None:
    """Quantiles are of logarithms, the interval is not."""
    spread = Spread(KEY, (0.05, 0.95), (-0.2, 0.4), 10, 2)
    interval = interval_around(spread, 100.0, 0.5)
    assert (interval.low, interval.high) == (pytest.approx(90.48, abs=0.01), pytest.approx(122.14, abs=0.01))


def test_identity_coefficients_are_the_priors() -> None:
    """A calibration without offsets predicts what the priors predict."""
    assert replace(calibration().coefficients_for(job()), name="uncalibrated") == Coefficients()


def test_the_last_quantile_stands_for_all() -> None:
    """No score below the first quantile is known, and at the last one all are below."""
    spread = Spread(SpreadKey("time"), (0.05, 0.5, 0.95), (-0.1, 0.0, 0.2), 100, 10)
    assert [spread.share_below(score) for score in (-0.2, -0.1, 0.1, 0.2)] == pytest.approx(
        [0, 0.05, 0.725, 1]
    )
