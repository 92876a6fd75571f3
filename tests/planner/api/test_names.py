"""``import planner`` is light, its names are what they say, and no submodule takes their place."""

from __future__ import annotations

import doctest
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import planner
import planner.api.calls

ROOT = Path(planner.__file__).parents[1]
_HEAVY = {"numpy", "pydantic", "rich", "typer", "yaml", "torch", "transformers"}

_EVERY_MODULE = """
import importlib, pkgutil, random, sys
import planner
names = [each.name for each in pkgutil.walk_packages(planner.__path__, "planner.")]
random.Random(int(sys.argv[1])).shuffle(names)
assert len(names) > 200, names
for name in names:
    if name != "planner.integrations.transformers":
        importlib.import_module(name)
assert "torch" not in sys.modules and "transformers" not in sys.modules, "a framework was imported"
answer = planner.estimate(model="7b", method="qlora", gpu="4090", seq=1024)
checked = planner.check(sys.argv[2], gpu="4090")
found = planner.search(model="8b", method="qlora", gpu="4090", seq=1024, batch=1)

class TrainingArguments:
    def to_dict(self):
        return {"per_device_train_batch_size": 1, "bf16": True}

config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
          "vocab_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 512}
expected = planner.precheck(TrainingArguments(), model_config=config, gpu="4090", seq=128)
print(answer.verdict, checked.tool, found.n_fit > 0, expected.verdict)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_no_submodule_takes_the_place_of_a_function(seed: int) -> None:
    """Every submodule is imported in some order, and then all four functions answer, without a framework."""
    config = ROOT / "tests" / "planner" / "configs" / "examples" / "llama_factory_qlora.yaml"
    command = [sys.executable, "-c", _EVERY_MODULE, str(seed), str(config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[0] == "fits"
    assert words[-2:] == ["True", "fits"]


def test_importing_costs_nothing() -> None:
    """``import planner`` loads no library; the first use of a name does."""
    code = "import sys, json, planner; planner.PlannerError; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert not loaded & _HEAVY
    assert {name for name in loaded if name.startswith("planner")} == {
        "planner",
        "planner.errors",
        "planner.printing",
        "planner.version",
    }


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    """``__all__``, ``dir()`` and attributes agree, and each name has a docstring;
    an unknown one is an AttributeError.
    """
    needs_transformers = {"Measured", "PrecheckCallback"}
    here = importlib.util.find_spec("transformers") is not None
    for name in planner.__all__:
        assert name in dir(planner)
        if (here or name not in needs_transformers) and not name.startswith("__"):
            assert getattr(planner, name).__doc__, name
    with pytest.raises(AttributeError, match="estimat"):
        _ = planner.estimat  # type: ignore[attr-defined]


def test_the_package_says_that_it_is_typed() -> None:
    """Type checkers read a package's types only beside this file."""
    assert (Path(planner.__file__).parent / "py.typed").is_file()


def test_examples_in_docstrings_hold() -> None:
    """What the docstrings of the functions show is what they do."""
    done = doctest.testmod(planner.api.calls)
    assert done.attempted >= 4
    assert done.failed == 0
