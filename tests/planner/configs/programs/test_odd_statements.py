"""Statements that programs seldom have: each is followed as Python does it, or refused, never passed over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.errors import NotModelledError, UsageError
from tests.planner.configs.programs.test_known_statements import BEFORE, sized_of
from tests.planner.configs.programs.test_program import TRAINER, job, program, read, refusal

NAMED = TRAINER.replace("args = T", "import json, os\nsize = 4\n# here\nargs = T").replace(
    "batch_size=4", "batch_size=size"
)
WRAPS = """def wraps(made):
    def twice(*given, **named):
        return 2 * made(*given, **named)
    return twice
"""


def with_lines(lines: str) -> str:
    """The program with these lines between its batch and its arguments."""
    assert "# here" in NAMED
    return NAMED.replace("# here", lines)


@pytest.mark.parametrize(
    "lines",
    [
        "globals()['size'] = 8",
        "globals().update(size=8)",
        "vars()['size'] = 8",
        "size = globals()['size'] * 2",
        "ready = True\nready or (size := 1)\nready and (size := 8)",
        "def made(other, size=4):\n    return size\nsize = made(*(1, 8))",
        "def made(size=4):\n    return size\nsize = made(**{**{'size': 2}, 'size': 8})",
        "def made(size=8):\n    locals()['size'] = 4\n    return size\nsize = made()",
        "table = {'size': 4}\ntable |= {'size': 8}\nsize = table['size']",
        "kept = [4]\nother = kept\nother += [8]\nsize = kept[-1]",
        "kept = (1, 8)\nother = kept\nother += (4,)\nsize = kept[-1]",
        "size = [*[1, 2], 8][2]",
        f"{WRAPS}@wraps\ndef made(size, more=1):\n    return size * more\nsize = made(2, more=2)",
        "class Sizes:\n    def made(self):\n        return 8\nsize = Sizes.made(None)",
        "class Sizes:\n    def __init__(self):\n        super().__setattr__('size', 8)\nsize = Sizes().size",
        "class Sizes:\n    def __call__(self, start):\n        return start + 7\nsize = Sizes()(1)",
    ],
)  # fmt: skip
def test_what_sets_a_value_is_followed(lines: str, tmp_path: Path) -> None:
    """A batch of 8, by whatever way."""
    assert job(program(tmp_path, with_lines(lines))) == job(program(tmp_path, sized_of(8)))


@pytest.mark.parametrize(
    "lines",
    [
        "args.__dict__['per_device_train_batch_size'] = 8",
        "args.__dict__.update(per_device_train_batch_size=8)",
        "object.__setattr__(args, 'per_device_train_batch_size', 8)",
        "class Sets:\n    def done(a):\n        a.per_device_train_batch_size = 8\nSets.done(args)",
    ],
)
def test_what_sets_an_argument_is_followed(lines: str, tmp_path: Path) -> None:
    """As ``args.per_device_train_batch_size = 8``."""
    changed = TRAINER.replace(BEFORE, f"{lines}\n{BEFORE}")
    assert job(program(tmp_path, changed)) == job(program(tmp_path, sized_of(8)))


@pytest.mark.parametrize(
    "lines",
    [
        "class Sizes:\n    size = 4\n    if True:\n        size = 8\nsize = Sizes.size",
        "class Sizes:\n    size = 4\n    size *= 2\nsize = Sizes.size",
        "def made(size=4):\n    return size\nsize = made(**json.loads(text))",
        "def made(size=4):\n    return size\nsize = made(*given)",
        "class Sizes:\n    size: int = 4\nsize = Sizes(**json.loads(text)).size",
        "table = {'size': 4}\ntable.update(json.loads(text))\nsize = table['size']",
        "def made():\n    return 4\nif newest():\n    def made():\n        return 8\nsize = made()",
        "def made():\n    if newest():\n        return None\n    return 4\nsize = made()",
        "any((size := each) > 3 for each in [1, 8])",
        "match newest():\n    case {'size': size}:\n        pass",
        "def more():\n    global size\n    size = 8\nThread(target=more).start()",
        "def more():\n    global size\n    size = 8\nif newest():\n    more()",
    ],
)
def test_a_value_that_may_be_another_is_not_known(lines: str, tmp_path: Path) -> None:
    """It is asked for, where a wrong batch of 4 was taken."""
    with pytest.raises((UsageError, NotModelledError), match=r"placeholder|not known"):
        job(program(tmp_path, with_lines(lines)))


@pytest.mark.parametrize(
    "lines",
    [
        "def more():\n    args.per_device_train_batch_size = 8\nThread(target=more).start()",
        "def more(a):\n    a.per_device_train_batch_size = 8\npartial(more, args)()",
        "def more(a):\n    if newest():\n        return\n    a.per_device_train_batch_size = 8\nmore(args)",
        "class Sets:\n    args.per_device_train_batch_size = 8",
        "from elsewhere import tuned\ntuned(args)",
        "from elsewhere import update\nupdate(args)",
        "import elsewhere\nelsewhere.init(args)",
    ],
)
def test_an_argument_that_may_be_another_is_not_known(lines: str, tmp_path: Path) -> None:
    """A function that something else calls, or that may end before."""
    with pytest.raises((UsageError, NotModelledError), match=r"placeholder|not all arguments"):
        job(program(tmp_path, TRAINER.replace(BEFORE, f"{lines}\n{BEFORE}")))


@pytest.mark.parametrize(
    "lines",
    [
        "list(map(lambda p: p.requires_grad_(False), model.parameters()))",
        "def off(p):\n    p.requires_grad_(False)\nlist(map(off, model.parameters()))",
        "off = lambda: model.half()\noff()",
        "lambda: setattr(args, 'per_device_train_batch_size', 8)",
        "newest() and model.half()",
        "getattr(model, 'half')()",
        "settings = model.config\nsettings.output_hidden_states = True",
        "model.config.update({'output_hidden_states': True})",
        "model.config.update(more)",
        "inner = model.model\ninner.layers = inner.layers[:2]",
        "layers = model.model.layers\ndel layers[10:]",
        "layers = [each for each in model.modules() if each]\nlayers[0].half()",
        "weights = list(model.parameters())\nfor each in weights:\n    each.requires_grad = False",
        "elsewhere([model])",
        "elsewhere(*given, model)",
        "cast_dtype(model)",
        "model.to(dtype=chosen())",
        "model.to('cuda', chosen())",
        "class Halves:\n    model.half()",
        "def f(m):\n    if newest():\n        return\n    m.gradient_checkpointing_enable()\nf(model)",
        "eval('model.half()')",
        "globals()[chosen()] = 8",
        "globals().update(chosen())",
        "args.__setattr__()",
        "os.environ |= {'PYTORCH_CUDA_ALLOC_CONF': 'max_split_size_mb:32'}",
        "os.environ['PYTORCH_NO_CUDA_MEMORY_CACHING'] = '1'",
        "__import__('os').environ['ACCELERATE_USE_FSDP'] = 'true'",
    ],
)  # fmt: skip
def test_what_may_change_the_job_is_refused(lines: str, tmp_path: Path) -> None:
    """Parts of a model under other names, functions without one, what is done now and then."""
    assert "not known" in refusal(tmp_path, TRAINER.replace(BEFORE, f"import os\n{lines}\n{BEFORE}"))


@pytest.mark.parametrize(
    "lines",
    [
        "ready = False\nready and model.half()",
        "print(model.config, len(list(model.parameters())), next(model.parameters()).device)",
        "ps = [p for p in model.parameters() if p.requires_grad]\nprint(sum(p.numel() for p in ps))",
        "settings = model.config\nsettings.use_cache = False\nsettings.update({'pad_token_id': 0})",
        "elsewhere(model.config.hidden_size, model.config)",
        "import wandb\nwandb.init(config=args)\nlogger.info(args)",
        "metric = lambda model: {'accuracy': model.mean()}",
        "def joined(x, a):\n    return x\nrows.map(partial(joined, a=args))",
    ],
)
def test_what_only_looks_is_passed(lines: str, tmp_path: Path) -> None:
    """At a part of a model, at its config, at arguments."""
    changed = TRAINER.replace(BEFORE, f"{lines}\n{BEFORE}")
    assert job(program(tmp_path, changed)) == job(program(tmp_path, TRAINER))


@pytest.mark.parametrize(
    "lines",
    [
        "raise ValueError('too large')",
        "if size > 2:\n    raise ValueError('too large')",
        "assert size == 2",
        "import sys\nsys.exit('too large')",
        "exit()",
        "def asked():\n    raise SystemExit(2)\nasked()",
        "parser = argparse.ArgumentParser()\nparser.error('too large')",
    ],
)
def test_a_program_that_ends_before_it_trains_is_refused(lines: str, tmp_path: Path) -> None:
    """No job of it will run."""
    assert "stops here" in refusal(tmp_path, with_lines(f"import argparse\n{lines}"))


@pytest.mark.parametrize(
    "lines",
    [
        "if newest():\n    raise ValueError('too old')",
        "def asked(n):\n    if newest():\n        return 1\n    raise ValueError(n)\nasked(2)",
        "token = os.environ.get('TOKEN', '')\nif not token:\n    raise ValueError('no token')",
    ],
)
def test_an_end_that_only_a_run_knows_is_passed(lines: str, tmp_path: Path) -> None:
    """The job that trains did not take it."""
    assert job(program(tmp_path, with_lines(lines))) == job(program(tmp_path, TRAINER))


def test_a_program_that_stops_without_arguments_is_read_by_its_defaults(tmp_path: Path) -> None:
    """Who asks about the file alone has not said them yet."""
    lines = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--rows')\n"
        "given = parser.parse_args()\nassert given.rows is not None"
    )
    assert job(program(tmp_path, with_lines(lines))) == job(program(tmp_path, TRAINER))


def test_a_variable_that_a_cell_sets_counts(tmp_path: Path) -> None:
    """By a line that IPython takes, as by Python's own."""
    path = tmp_path / "train.ipynb"
    for line, grows in (
        ("%env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", True),
        ("%set_env PYTORCH_CUDA_ALLOC_CONF expandable_segments:True", True),
        ("%env PYTORCH_CUDA_ALLOC_CONF", False),
    ):
        cells = [{"cell_type": "code", "source": text} for text in (line, TRAINER)]
        path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
        assert (job(path) != job(program(tmp_path, TRAINER))) is grows
    cells[0]["source"] = "%env PYTORCH_ALLOC_CONF=large_segment_size_mb:32"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    with pytest.raises(NotModelledError, match=r"PYTORCH_ALLOC_CONF: .* is not modelled"):
        read(path)


def test_a_function_that_trains_may_be_wrapped(tmp_path: Path) -> None:
    """``functools.wraps`` gets what trains and does nothing with it; the wrapper calls it."""
    before, _, trained = TRAINER.partition("args = ")
    wraps = "import functools\ndef timed(made):\n    @functools.wraps(made)\n    def run(*given):\n"
    wraps += "        return made(*given)\n    return run\n"
    body = "".join(f"    {line}\n" for line in f"args = {trained}".splitlines())
    text = f"{before}{wraps}@timed\ndef main():\n{body}main()\n"
    assert job(program(tmp_path, text)) == job(program(tmp_path, TRAINER))
