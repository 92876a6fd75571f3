"""The step program of DBRX, whose experts run one after the other, against the dry run of a script."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.against_libraries.dry_run.test_dry_run import PROGRAM, run
from tests.against_libraries.dry_run.test_vision_dry_run import program_peak
from tests.extras import needs

pytestmark = [
    needs("torch", "transformers", "peft", "accelerate"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
    pytest.mark.slow,
]
DBRX = {
    "model_type": "dbrx", "architectures": ["DbrxForCausalLM"], "torch_dtype": "bfloat16", "d_model": 512,
    "n_heads": 8, "n_layers": 3, "vocab_size": 4096,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 5e5},
    "ffn_config": {"ffn_hidden_size": 1024, "moe_num_experts": 8, "moe_top_k": 2, "moe_jitter_eps": 0},
}  # fmt: skip


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize(("batch", "seq"), [(2, 256), (2, 1024), (1, 2048)])
def test_allocated_is_that_of_the_dry_run(
    method: str, batch: int, seq: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 2 %."""
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(DBRX), encoding="utf-8")
    words = ["--model", str(tmp_path), "--method", method, "--batch", str(batch), "--seq", str(seq)]
    code, out, err = run("trace", "--gpu", "a100-80-sxm", "--json", "--", "python", str(PROGRAM), *words)
    assert code == 0, err
    flags: dict[str, object] = {
        "model": "config.json", "method": method, "gpu": "a100-80-sxm", "seq": seq, "batch": batch,
        "optimizer": "adamw_torch", "precision": "bf16", "load_dtype": "bf16",
        "gradient_checkpointing": False,
    }  # fmt: skip
    flags |= {"lora_rank": 8, "lora_dropout": 0, "lora_targets": "all-linear"} if method == "lora" else {}
    allocated = json.loads(out)["allocated_peak_bytes"]
    assert program_peak(flags) == pytest.approx(allocated, rel=0.02)
