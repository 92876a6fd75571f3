"""``measure campaign`` as a user meets it, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from measure.cli.main import main
from tests.measure.campaign.cases import CASE, HEAD, written


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (["--partition", "gpu"], "--partition says nothing without Slurm"),
        (["--executor", "local", "--slurm", "account=lab"], "--slurm says nothing without Slurm"),
        (["--executor", "slurm", "--retry", "sadness"], "allowed: ok, oom"),
    ],
)
def test_what_no_job_would_heed_is_refused_before_one_is_submitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: list[str], reason: str
) -> None:
    """Slurm's options without Slurm and outcomes that do not exist: exit code 2 and a sentence,
    and nothing is started.
    """
    assert main(["campaign", str(written(tmp_path, HEAD + CASE)), "--out", str(tmp_path / "out"), *said]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
