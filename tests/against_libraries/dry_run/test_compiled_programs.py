"""Programs that compile what they train: the buffers are those of Inductor's own code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from measure.cli.main import main
from tests.extras import needs
from tests.in_process import called

pytestmark = [
    pytest.mark.real,
    needs("torch", "triton"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]
ROWS, WIDTH = 8192, 1024
# Five elementwise operators between two products; COMPILE is empty or makes one kernel of them.
PROGRAM = f"""
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear({WIDTH}, {WIDTH}, bias=False)
        self.outer = nn.Linear({WIDTH}, {WIDTH}, bias=False)
    def forward(self, x):
        x = self.inner(x)
        return self.outer(x * torch.sigmoid(x * 2) * torch.tanh(x))
net = Net().cuda()
COMPILE
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    loss = net(torch.randn({ROWS}, {WIDTH}, device="cuda")).mean()
    loss.backward()
    assert loss.item() == 1
    optimizer.step()
    optimizer.zero_grad()
"""


def forward_bytes(folder: Path, compiles: str) -> tuple[int, list[str]]:
    """Bytes at the peak of the second forward pass, and what was assumed about compilation."""
    (folder / "train.py").write_text(PROGRAM.replace("COMPILE", compiles), encoding="utf-8")
    code, printed, said = called(main, ["trace", "--gpu", "4090", "--json", "--", "python", "train.py"])
    assert code == 0, said
    document = json.loads(printed)
    phases = {each["phase"]: each["allocated_bytes"] for each in document["phases"]}
    told = [each["value"] for each in document["assumptions"] if each["name"] == "torch.compile"]
    return phases["forward_2"], told


def test_fused_operators_keep_what_inductor_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the last product four tensors are there: the input, the first product, what one kernel makes of
    it, and the result.  Run operator by operator, each one's result is kept for the backward pass.
    """
    monkeypatch.chdir(tmp_path)
    one = ROWS * WIDTH * 4
    weights = 2 * WIDTH * WIDTH * 4
    eager, told = forward_bytes(tmp_path, "")
    assert not told
    compiled, told = forward_bytes(tmp_path, "net = torch.compile(net)")
    assert "compiled as 1 graphs, cut 0 times" in told
    assert eager - compiled > 2 * one
    # Beside them workspaces of cuBLAS.
    assert 0 <= compiled - weights - 4 * one < one


def test_odd_sides_are_not_padded_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor would measure which is faster."""
    monkeypatch.chdir(tmp_path)
    script = PROGRAM.replace("COMPILE", "net = torch.compile(net)").replace(str(WIDTH), "1023")
    Path("train.py").write_text(script, encoding="utf-8")
    code, printed, said = called(main, ["trace", "--gpu", "4090", "--", "python", "train.py"])
    assert code == 0, said
    assert "whether Inductor pads a product" in printed


@pytest.mark.parametrize("broken", ["compile_fx.compile_fx", "graph.GraphLowering.run"])
def test_a_program_that_goes_on_without_compiled_code_is_refused(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Unsloth does where a compilation fails, which on the card it may not."""
    monkeypatch.chdir(tmp_path)
    caught = f"""
import torch._inductor.compile_fx
torch._inductor.{broken} = len
try:
    torch.compile(lambda x: x + 1)(torch.ones(4, device="cuda"))
except torch._dynamo.exc.BackendCompilerFailed:
    pass
"""
    Path("train.py").write_text(PROGRAM.replace("COMPILE", caught), encoding="utf-8")
    code, printed, said = called(main, ["trace", "--gpu", "4090", "--", "python", "train.py"])
    assert (code, printed) == (6, "")
    assert "torch.compile failed here" in said.splitlines()[-1]


def test_no_process_is_started_to_compile_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor would start some, as often as the program says."""
    monkeypatch.chdir(tmp_path)
    compiles = """
from torch._inductor import async_compile
net = torch.compile(net, options={"compile_threads": 4})
net(torch.ones(8, 1024, device="cuda"))
assert async_compile.AsyncCompile._ready_future is None
"""
    Path("train.py").write_text(PROGRAM.replace("COMPILE", compiles), encoding="utf-8")
    code, _, said = called(main, ["trace", "--gpu", "4090", "--", "python", "train.py"])
    assert code == 0, said
