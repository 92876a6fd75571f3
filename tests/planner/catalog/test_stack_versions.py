"""Switches that follow from the version of a package, and the named amounts that each of them moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.calibration.score.rows import score_record
from planner.catalog import stack_versions
from planner.catalog.stack_versions import version_settings
from planner.catalog.stacks import load_stack
from planner.domain.coefficients import Coefficients
from planner.domain.prediction import Prediction
from planner.domain.run_record import RunRecord
from planner.errors import InputFileError, NotModelledError, UnknownNameError, UsageError
from planner.intake.request import from_flags, from_record
from planner.intake.resolve import resolve
from planner.prediction import estimate
from tests.extras import import_or_skip

OFFLOADED = {
    "model": "llama-2-7b",
    "method": "full",
    "gpu": "a100-80gb:2",
    "seq": 1024,
    "sharding": "zero2",
    "offload": "optimizer",
}
RECORD: dict[str, Any] = {
    "id": "r", "source": "s", "source_group": "g", "model": "7b", "gpu": "a100-80gb", "method": "full", "seq_len": 512,
    "micro_batch": 1, "outcome": "ok",
}  # fmt: skip
PARAMS = 6_738_415_616


def predicted(**flags: object) -> Prediction:
    """ZeRO-2 with an offloaded optimizer on two cards, under the stack that hands DeepSpeed nothing."""
    return estimate(resolve(from_flags({**OFFLOADED, "stack": "trl", **flags})))


def gpu_bytes(prediction: Prediction, label: str) -> float:
    """Bytes of the GPU term with this label."""
    return float(sum(float(term.n_bytes) for term in prediction.memory.terms if term.label == label))


def host_term(prediction: Prediction, name: str) -> tuple[float, bool]:
    """Bytes of a host term, and whether it is pinned; nothing of a term that the job does not have."""
    found = ((float(term.n_bytes), term.pinned) for term in prediction.host.terms if term.name == name)
    return next(found, (0.0, False))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.12.6", (False, "never", "cast_on_host")),
        ("0.14.0", (False, "never", "cast_on_host")),
        ("0.14.1", (False, "always", "fp32_on_gpu")),
        ("0.16.9", (False, "always", "fp32_on_gpu")),
        ("0.17.0", (False, "always", "buffer_on_host")),
        ("0.18.3+cu12", (False, "as_set", "buffer_on_host")),
        ("0.19.4", (False, "as_set", "buffer_on_host")),
        ("0.19.5", (True, "as_set", "buffer_on_host")),
        ("1.0", (True, "as_set", "buffer_on_host")),
    ],
)
def test_the_switches_of_each_version_of_deepspeed(version: str, expected: tuple[object, ...]) -> None:
    """Each change holds from its own version on, and the last one for newer versions too."""
    settings = version_settings("deepspeed", version)
    assert tuple(settings[name].value for name in ("pins_offload", "pins_masters", "zero12_upload")) == expected


@pytest.mark.parametrize("version", ["newest", "", "x.1", "-1"])
def test_what_is_no_version_is_refused(version: str) -> None:
    """Words and half versions are a usage error."""
    with pytest.raises(UsageError, match="is not a version of deepspeed"):
        version_settings("deepspeed", version)


def test_a_version_that_nobody_read_is_not_modelled() -> None:
    """Nothing is guessed about older versions; a record with one is left out with this reason."""
    with pytest.raises(NotModelledError, match=r"the oldest version that was read is 0\.12\.6"):
        version_settings("deepspeed", "0.12.5")
    score = score_record(RunRecord(**RECORD, versions=("deepspeed==0.9.5",)), Coefficients())
    assert "deepspeed 0.9.5 is not modelled" in score.not_modelled


def test_a_package_without_switches_is_refused_from_a_user_but_not_from_a_record() -> None:
    """A user must learn that the version changes nothing; a record states its environment whole."""
    with pytest.raises(UnknownNameError):
        version_settings("torch", "2.1")
    with pytest.raises(UsageError, match="no switch follows from the version of 'torch'"):
        resolve(from_flags({**OFFLOADED, "versions": "torch==2.1"}))
    with pytest.raises(UsageError, match="name==version"):
        resolve(from_flags({**OFFLOADED, "versions": "deepspeed 0.16.4"}))
    record = RunRecord(**RECORD, versions=("torch==2.1", "deepspeed==0.14.0"))
    assert resolve(from_record(record), force=True).stack.zero12_upload == "cast_on_host"


def test_a_template_of_the_stack_wins_over_the_version() -> None:
    """LLaMA-Factory's file says pin_memory true and overlap_comm false, whatever DeepSpeed would do by itself."""
    stack = load_stack("llama-factory", (("deepspeed", "0.16.4"),))
    assert stack.pins_offload
    assert not stack.zero12_overlap
    assert stack.zero12_upload == "fp32_on_gpu"
    assert dict(stack.versions)["deepspeed"] == "0.16.4"


def test_staging_on_the_gpu_is_a_term_of_the_step() -> None:
    """0.14.1 to 0.16.9 bring the fp32 partition to the GPU: 4 bytes per parameter over two processes; 0.19.8 does not."""
    old, new = predicted(versions="deepspeed==0.16.4"), predicted()
    assert gpu_bytes(old, "optimizer temporaries") == pytest.approx(4 * PARAMS / 2)
    assert gpu_bytes(new, "optimizer temporaries") == 0
    assert host_term(old, "upload_buffer")[0] == 0
    assert host_term(new, "upload_buffer")[0] >= 2 * PARAMS / 2


def test_pinning_rounds_host_buffers() -> None:
    """12.6 GiB of masters stay as they are in pageable memory and become 16 GiB when pinned; so does the largest gradient."""
    pinned, always, never = (predicted(versions=f"deepspeed=={version}") for version in ("0.19.8", "0.18.2", "0.14.0"))
    exact, rounded = 4 * PARAMS / 2, 2**34
    assert host_term(pinned, "offloaded_gradients") == (rounded + 2**28, True)
    assert host_term(always, "offloaded_gradients") == (exact + 2 * 32_000 * 4_096, False)
    assert [host_term(each, "offloaded_optimizer") for each in (pinned, always, never)] == [
        (rounded + 2 * exact, True),
        (rounded + 2 * exact, True),
        (3 * exact, False),
    ]
    assert host_term(never, "upload_buffer") == (2 * PARAMS / 2, False)


def test_without_overlap_there_is_one_bucket_and_nothing_hides() -> None:
    """Two buckets of 5e8 gradients where reduction overlaps backward, one where it does not; then collectives hide nothing."""
    flags = {"offload": "none", "gpu": "h200-sxm:8"}
    one, two = predicted(**flags), predicted(**flags, stack="hf-trainer@5")
    assert gpu_bytes(one, "ZeRO gradient buckets") == 5e8 * 2
    assert gpu_bytes(two, "ZeRO gradient buckets") == 5e8 * 2 * 2
    hidden = []
    for each in (one, two):
        assert each.time is not None
        hidden += [float(term.overlapped_s) for term in each.time.terms if term.name == "collectives"]
    assert hidden[0] == 0
    assert hidden[1] > 0


def test_older_versions_make_their_buckets_before_the_loss_runs_backward() -> None:
    """Up to 0.18.2 the bucket of 5e8 gradients lies beside the gradients of the logits; from 0.18.3 on it comes after them."""
    label = "ZeRO buckets beside the loss"
    early, late = (
        predicted(offload="none", gpu="h200-sxm:2", versions=f"deepspeed=={version}") for version in ("0.18.2", "0.18.3")
    )
    # The chunked loss of this stack has its peak in its backward, so both of the phase's terms are the whole bucket.
    assert gpu_bytes(early, label) == 2 * 5e8 * 2
    assert gpu_bytes(late, label) == 0


def test_offloaded_gradients_pass_through_one_tensor_on_the_gpu() -> None:
    """The largest tensor (the token table, 32,000 x 4,096) in 16 bits, only where gradients are offloaded."""
    label = "staging of offloaded gradients"
    assert gpu_bytes(predicted(), label) == 32_000 * 4_096 * 2
    assert gpu_bytes(predicted(offload="none"), label) == 0


def test_the_table_agrees_with_the_installed_deepspeed() -> None:
    """Defaults of pin_memory and overlap_comm, read from DeepSpeed's own configuration classes."""
    import_or_skip("deepspeed")
    from deepspeed import __version__
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig

    settings = version_settings("deepspeed", __version__)
    assert DeepSpeedZeroOffloadOptimizerConfig().pin_memory == settings["pins_offload"].value
    assert DeepSpeedZeroConfig(stage=2).overlap_comm == settings["zero12_overlap"].value


GOOD = '[[switches.pins_offload]]\nsince = "{}"\nvalue = false\nsettled_by = "assumed"\nsource = "a test"\n'


@pytest.mark.parametrize("since", [("2.0",), ("1.0", "3.0", "2.0"), ("1.0", "1.0")])
def test_a_table_out_of_order_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: tuple[str, ...]) -> None:
    """A list that starts after the oldest version, goes back or repeats one would give a wrong answer without a word."""
    folder = tmp_path / "stacks" / "versions"
    folder.mkdir(parents=True)
    text = 'schema = 1\npackage = "engine"\noldest = "1.0"\n' + "".join(GOOD.format(each) for each in since)
    (folder / "engine.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(stack_versions, "data_dir", lambda: tmp_path)
    stack_versions.versioned_packages.cache_clear()
    try:
        with pytest.raises(InputFileError, match="must run from the oldest version"):
            version_settings("engine", "1.5")
    finally:
        stack_versions.versioned_packages.cache_clear()
