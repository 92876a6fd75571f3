"""Stack files that are broken, and names that are none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.catalog import packages
from planner.catalog.location import data_dir
from planner.catalog.stacks import load_stack
from planner.errors import InputFileError, UnknownNameError

OWN_FACTS = """
[defaults]
lora_rank = { value = 16, settled_by = "source_code", source = "a test" }
precision = { value = "bf16-mixed", settled_by = "source_code", source = "a test" }
[switches]
fused_mlp = { value = true, settled_by = "source_code", source = "a test" }
loss_forward = { value = ["compute"], settled_by = "source_code", source = "a test" }
"""


def stack_file(folder: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]) -> Path:
    """A copy of a stack file with facts of its own and one text replaced, in a catalog of its own."""
    text = (data_dir() / "stacks" / "trl.toml").read_text(encoding="utf-8") + OWN_FACTS
    assert change[0] in text
    path = folder / "stacks" / "broken.toml"
    path.parent.mkdir()
    path.write_text(text.replace('id = "trl"', 'id = "broken"', 1).replace(*change, 1), encoding="utf-8")
    monkeypatch.setattr("planner.catalog.stacks.data_dir", lambda: folder)
    load_stack.cache_clear()
    return path


def test_facts_of_a_stack_lie_over_those_of_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file says itself wins, and a default also over what packages say of quantised bases."""
    said = 'adapter_dtype = { value = "fp16", settled_by = "assumed", source = "a test" }\nlora_rank = '
    stack_file(tmp_path, monkeypatch, ("lora_rank = ", said))
    stack = load_stack("broken")
    assert (stack.fused_mlp, stack.loss_forward, stack.defaults_over("nf4").adapter_dtype) == (
        True,
        ("compute",),
        "fp16",
    )
    assert ("fused_mlp", "source_code", "a test") in stack.settled


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("schema = 1", "schema = 2"), "key 'schema'"),
        (("lora_rank = ", "lora_rnk = "), "unknown key 'defaults.lora_rnk'"),
        (("fused_mlp = ", "fused_mpl = "), "unknown key 'switches.fused_mpl'"),
        (('settled_by = "source_code"', 'settled_by = "rumour"'), "settled_by"),
        (("precision = { ", "precision = { colour = 1, "), "unknown key 'defaults.precision.colour'"),
        (('"bf16-mixed"', '"bf17"'), "key 'defaults.precision.value' must be one of bf16, fp16"),
        (("value = 16,", "value = 0,"), "key 'defaults.lora_rank.value' must be from 1 to"),
        (("value = 16,", "value = true,"), "key 'defaults.lora_rank.value' must be a whole number"),
        (('value = ["compute"]', 'value = [1, "compute"]'), "must be a list of compute, float"),
    ],
)
def test_a_broken_stack_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], problem: str
) -> None:
    """A stack states known facts only, each with what settled it; the message names file and key."""
    path = stack_file(tmp_path, monkeypatch, change)
    with pytest.raises(InputFileError) as caught:
        load_stack("broken")
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("fact", "problem"),
    [
        ("frees_early = [{ value = true,", "unknown key 'switches.frees_early'"),
        ("pins_offload = [{ value = 1,", "key 'switches.pins_offload.value' must be true or false"),
    ],
)
def test_a_broken_fact_is_told_by_the_file_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fact: str, problem: str
) -> None:
    """Who adds a fact to a package and forgets the field of ``Stack`` is sent to the package's file."""
    stack_file(tmp_path, monkeypatch, ("schema", "schema"))
    path = tmp_path / "packages" / "engine.toml"
    path.parent.mkdir()
    path.write_text(
        'schema = 1\npackage = "engine"\nread = [["1.0", "1.0"]]\n[switches]\n'
        f'{fact} settled_by = "assumed", source = "a test" }}]\n'
    )
    text = 'schema = 1\nid = "engine"\ntitle = "Engine"\nversions = { engine = "1.0" }\n'
    (tmp_path / "stacks" / "engine.toml").write_text(text)
    monkeypatch.setattr(packages, "data_dir", lambda: tmp_path)
    for cached in (packages.package_names, packages.facts_of):
        cached.cache_clear()
    try:
        with pytest.raises(InputFileError) as caught:
            load_stack("engine")
    finally:
        for cached in (packages.package_names, packages.facts_of):
            cached.cache_clear()
    assert str(caught.value).startswith(f"{path}: {problem}")


def test_a_stack_without_a_switch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch that neither a package nor the stack settles is named: there is no silent default."""
    path = stack_file(tmp_path, monkeypatch, ("schema", "schema"))
    path.write_text(
        re.sub(r'flash-attn = "[0-9.]+", ', "", path.read_text(encoding="utf-8")), encoding="utf-8"
    )
    with pytest.raises(InputFileError, match=r"missing key 'switches.flash_generation'"):
        load_stack("broken")


@pytest.mark.parametrize("name", ["", " ", "../stacks/trl", "trl.toml", "x" * 5000, "hf-trainer@", "trl\0"])
def test_a_name_that_is_no_stack(name: str) -> None:
    """Paths, endless and empty names are unknown names, nothing more."""
    with pytest.raises(UnknownNameError, match="unknown stack"):
        load_stack(name)


@pytest.mark.parametrize(
    ("stack", "environment"), [("axolotl", "axolotl"), ("llama-factory", "llamafactory"), ("trl", "trl")]
)
def test_a_tool_of_today_runs_beside_the_packages_that_it_is_counted_with(
    stack: str, environment: str
) -> None:
    """Its own bounds decided what its environment has: DeepSpeed 0.19.3 keeps frozen weights whole."""
    pins = data_dir().parent / "tests/against_libraries/programs/environments" / f"{environment}.txt"
    pinned = dict(re.findall(r"^([\w-]+)==(\d+\.\d+)", pins.read_text(encoding="utf-8"), re.MULTILINE))
    versions = dict(load_stack(stack).versions)
    both = {name: ".".join(version.split(".")[:2]) for name, version in versions.items() if name in pinned}
    assert both == {name: pinned[name] for name in both}
    assert "deepspeed" in both
