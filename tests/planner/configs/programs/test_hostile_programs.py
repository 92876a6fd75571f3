"""Programs written to hang, to fill the memory or to break the reader: a job, or one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InputFileError
from tests.planner.configs.programs.test_program import TRAINER, TRL, job, program, read

BEFORE = "trainer = T"
TWICE = "".join(f"def f{n}():\n    f{n + 1}(); f{n + 1}()\n" for n in range(40))
HANDED = "".join(f"def f{n}():\n    elsewhere(f{n + 1}, f{n + 1})\n" for n in range(40))
METHODS = "".join(
    f"    def m{n}(self):\n        {'; '.join(f'self.m{m}()' for m in range(14) if m != n)}\n"
    for n in range(14)
)
ROUND = "for a in [1, 2, 3, 4, 5, 6, 7, 8, 9]:\n"
LOOPS = "".join(f"{' ' * n}{ROUND}" for n in range(9)) + " " * 9 + "x = 1\n"


@pytest.mark.parametrize(
    "lines",
    [
        "x = ['a']\n" + "x = [x, x]\n" * 60 + "if x:\n    pass\n",
        "x = ['a']\n" + "x.extend(x)\n" * 60,
        "x = {}\n" + "x.update({'a': x, 'b': x})\n" * 60 + "if x:\n    pass\n",
        "x = 'a'\n" + "x = f'{x}{x}'\n" * 60,
        "x = 'a'\n" + "x = os.path.join(x, x)\n" * 60,
        f"x, y = {'a' * 9000!r}, {'b' * 9000!r}\n" + "x.replace('a', y)\n" * 300,
        "x = round(12345, -1000000000)\n",
        f"x = int({'F' * 9000!r}, 16)\ny = f'{{x}}'\n",
        "__file__ = 5\nfrom .other import name\n",
        "__global__ = 5\nx = 1\n",
    ],
)
def test_what_grows_or_breaks_beside_the_job_is_not_followed(lines: str, tmp_path: Path) -> None:
    """Texts, lists and tables that double with each line, numbers without end, names of the reader's own."""
    plain = job(program(tmp_path, TRAINER))
    assert job(program(tmp_path, TRAINER.replace(BEFORE, f"import os\n{lines}{BEFORE}"))) == plain


@pytest.mark.parametrize("lines", ["x = []\nx.append(x)\n", "x = {}\nx['a'] = x\n"])
def test_a_value_that_holds_itself_is_not_known(lines: str, tmp_path: Path) -> None:
    """As an argument of the trainer, too."""
    text = TRAINER.replace(BEFORE, f"{lines}args.report_to = x\n{BEFORE}")
    assert job(program(tmp_path, text)) == job(program(tmp_path, TRAINER))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (f"{TWICE}def f40():\n    print(model)\nif newest():\n    f0()\n", "without end"),
        (f"class A:\n{METHODS}a = A()\nif newest():\n    a.m0()\n", "without end"),
        (LOOPS, "without end"),
        ("x = [1]\n" + "x = [*x, *x]\n" * 60, "without end"),
        (HANDED + "elsewhere(f0)\n", "without end"),
        ("x = sys" + ".path" * 600 + "\n", "nested more deeply"),
        ("x = 0x" + "F" * 9000 + "\n", "thousands of digits"),
    ],
)
def test_what_goes_on_for_hours_is_refused(lines: str, said: str, tmp_path: Path) -> None:
    """Functions that call each other twice, loops in loops, names and numbers of thousands of signs."""
    with pytest.raises(InputFileError, match=said):
        read(program(tmp_path, TRAINER.replace(BEFORE, f"{lines}{BEFORE}")))


def test_a_length_that_trains_is_none(tmp_path: Path) -> None:
    """What cuts samples is asked after the training is found."""
    text = TRAINER.replace("max_length=512", "max_length=trainer.train()")
    assert "seq" in read(program(tmp_path, text)).needs


def test_files_that_import_each_other_end(tmp_path: Path) -> None:
    """Also the program under another name, a folder called as a file, and a link to itself."""
    (tmp_path / "first.py").write_text("from second import *\nimport train, again\n", encoding="utf-8")
    (tmp_path / "second.py").write_text("from first import *\nKERNEL = 'sdpa'\n", encoding="utf-8")
    (tmp_path / "again.py").symlink_to(tmp_path / "train.py")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "config.json").mkdir()
    lines = "import json, loop, folder, train\nfrom first import KERNEL\nx = json.load(open('config.json'))\n"
    assert job(program(tmp_path, f"{lines}{TRL}")) == job(program(tmp_path, TRL))
