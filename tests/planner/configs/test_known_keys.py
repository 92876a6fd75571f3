"""Every key that an installed library knows is known here too: read, refused with a reason,
or harmless by name.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.read import TOOLS
from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from tests.extras import needs


def fields_of(package: str, module: str, owner: str) -> list[str]:
    """Names of a configuration class's fields, read from its source without importing the library."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / module).read_text(encoding="utf-8"))
    (found,) = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == owner]
    return [
        each.target.id
        for each in found.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]


@needs("transformers")
@pytest.mark.parametrize("tool", ["transformers", "trl", "llama-factory"])
def test_every_training_argument_is_known(tool: str) -> None:
    """A field of TrainingArguments that no reader knows would be reported to people as a slip."""
    names = fields_of("transformers", "training_args.py", "TrainingArguments")
    assert len(names) > 80
    keys = Keys(Path("a.yaml"), dict.fromkeys(names))
    TOOLS[tool].read(keys, Reading(Path("a.yaml"), tool), Beside())
    assert keys.left_over() == ()


@needs("accelerate")
def test_every_key_of_accelerate_is_known() -> None:
    """The fields of a cluster's configuration."""
    names = fields_of("accelerate", "commands/config/config_args.py", "ClusterConfig")
    names += fields_of("accelerate", "commands/config/config_args.py", "BaseConfig")
    keys = Keys(Path("a.yaml"), dict.fromkeys(names))
    TOOLS["accelerate"].read(keys, Reading(Path("a.yaml"), "accelerate"), Beside())
    assert [name for name in keys.left_over() if not name.startswith("tpu_")] == []


@needs("deepspeed")
def test_every_key_of_zero_is_known() -> None:
    """The fields of ZeRO's configuration, by the names that files write: most of stage 3 with its prefix."""
    names = set(fields_of("deepspeed", "runtime/zero/config.py", "DeepSpeedZeroConfig"))
    stage_3 = {
        "prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold",
        "max_live_parameters",
        "max_reuse_distance", "gather_16bit_weights_on_model_save", "module_granularity_threshold",
        "use_all_reduce_for_fetch_params", "allgather_sequential",
    }  # fmt: skip
    table: dict[str, object] = dict.fromkeys(
        {f"stage3_{name}" if name in stage_3 else name for name in names}
    )
    keys = Keys(Path("ds.json"), {"zero_optimization": table | {"stage": 3}})
    TOOLS["deepspeed"].read(keys, Reading(Path("ds.json"), "deepspeed"), Beside())
    assert keys.left_over() == ()
