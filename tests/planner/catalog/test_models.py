"""The model catalog and the four ways to name a model;
files and answers that cannot be used end in one sentence.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planner.catalog import models
from planner.catalog.architectures import reader_for, supported_architectures
from planner.catalog.hf_config import model_from_config
from planner.catalog.index import INDEX_NAME, build_index, format_index
from planner.catalog.location import data_dir
from planner.catalog.models import load_model, model_entry, model_ids, model_sizes
from planner.errors import (
    ExitCode,
    InputFileError,
    NotModelledError,
    PlannerError,
    UnknownArchitectureError,
    UnknownNameError,
    UsageError,
)

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TINY |= {"vocab_size": 100, "torch_dtype": "bfloat16"}
TINY_PARAMS = 2 * 100 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64


def _config_file(folder: Path, content: bytes | str | dict[str, Any]) -> Path:
    file = folder / "config.json"
    raw = json.dumps(content) if isinstance(content, dict) else content
    file.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    return file


# --- the entries --------------------------------------------------------------------------------------------


def test_index_is_what_the_entries_say() -> None:
    """The stored index of names is up to date; `python -m planner.catalog.index` rewrites it."""
    folder = data_dir() / "models"
    assert (folder / INDEX_NAME).read_text(encoding="utf-8") == format_index(build_index(folder))


@pytest.mark.parametrize("model_id", model_ids())
def test_every_entry_loads_and_says_where_it_comes_from(model_id: str) -> None:
    """Each file passes the schema, its architecture has a reader, and its numbers have sources."""
    entry, resolved = model_entry(model_id), load_model(model_id)
    assert resolved.how == "catalog"
    assert (resolved.spec.id, resolved.spec.hub_id) == (model_id, entry.hub_id)
    assert resolved.spec.published_params == entry.published_params
    assert entry.params_source.strip()
    # Without a place on the Hub the shapes come from the code of the project that trained the model.
    assert entry.config_source.startswith(
        "https://huggingface.co/" if entry.hub_id else "https://github.com/"
    )
    published = load_model(entry.hub_id or model_id).spec
    assert published == resolved.spec or (
        published.stored is not None and published.stored.quantization == "fp8"
    )


def test_a_model_that_sees_or_hears_has_all_its_sections() -> None:
    """Else the dry run would build a tower of the sizes that a class of Transformers has by default."""
    configs = {model_id: model_entry(model_id).config_fields() for model_id in model_ids()}
    assert not [
        model_id
        for model_id, fields in configs.items()
        if "text_config" in fields and not fields.keys() & {"vision_config", "audio_config"}
    ]


def test_at_least_seventy_percent_of_counts_are_exact() -> None:
    """Most entries agree exactly with a published integer, published bytes or Transformers' own module."""
    origins = [model_entry(model_id).params_origin for model_id in model_ids()]
    assert sum(origin != "published-rounded" for origin in origins) >= 0.7 * len(origins)


def test_every_architecture_in_the_table_has_a_reader() -> None:
    """The table that chooses the module for a model_type names only readers that exist."""
    assert all(callable(reader_for(name)) for name in supported_architectures())
    assert reader_for("no-such-architecture") is None


# --- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "model_id"), [
    ("llama-2-7b", "llama-2-7b"),
    ("LLAMA-2-7B", "llama-2-7b"),
    ("Llama 2 7B", "llama-2-7b"),
    ("llama2_7b", "llama-2-7b"),
    ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
    ("META-LLAMA/llama-2-7B-Chat-HF", "llama-2-7b"),
    ("qwen2.5-14b-instruct", "qwen2.5-14b"),
    ("Qwen/Qwen2.5-14B-Instruct", "qwen2.5-14b"),
    ("Qwen2.5-14B-Instruct", "qwen2.5-14b"),
    ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
    ("mistral-7b", "mistral-7b-v0.1"),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-2507"),
    ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b-2507"),
    ("ibm/PowerLM-3b", "powerlm-3b"),
    ("google/gemma-3-4b-it", "gemma-3-4b"),
    ("mistralai/Ministral-3-14B-Reasoning-2512", "ministral-3-14b"),
    ("mistralai/Magistral-Small-2507", "mistral-small-24b"),
    ("mistralai/Magistral-Small-2509", "mistral-small-3.1-24b"),
    ("NousResearch/Hermes-4-14B", "qwen3-14b"),
    ("NousResearch/Hermes-4.3-36B", "seed-oss-36b"),
    ("meta-llama/Llama-Guard-3-1B", "llama-3.2-1b"),
    ("google/medgemma-27b-it", "gemma-3-27b"),
    ("OpenGVLab/InternVL3_5-8B", "internvl3.5-8b"),
    ("unsloth/Ministral-3-3B-Instruct-2512", "ministral-3-3b"),
    ("unsloth/Phi-4", "phi-4-unsloth"),
    ("microsoft/phi-4", "phi-4"),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16", "nemotron-3-nano-30b-a3b"),
    ("google/paligemma2-3b-ft-docci-448", "paligemma2-3b-448"),
    ("Nexusflow/Starling-LM-7B-beta", "openchat-3.5-7b"),
    ("deepseek-ai/deepseek-coder-7b-instruct-v1.5", "deepseek-llm-7b"),
])  # fmt: skip
def test_names_in_any_spelling(name: str, model_id: str) -> None:
    """Ids, aliases and Hub ids are found whatever their case and separators."""
    resolved = load_model(name)
    assert (resolved.spec.id, resolved.how) == (model_id, "catalog")


@pytest.mark.parametrize("model", [
    *("baichuan-7b", "baichuan2-7b", "chatglm3-6b", "bloom-3b", "llama-2-7b", "qwen2.5-14b-instruct"),
    *("qwen-1.8b", "qwen-7b", "qwen-14b", "qwen-72b"),
])  # fmt: skip
def test_models_of_the_published_rows_are_known(model: str) -> None:
    """Every model that a published row names is in the catalog."""
    assert load_model(model).how == "catalog"


def test_a_fine_tune_that_is_stored_otherwise_is_an_entry_of_its_own() -> None:
    """DeepCoder has the shape of Qwen2.5 14B, and four bytes a parameter."""
    tuned, base = load_model("agentica-org/DeepCoder-14B-Preview").spec, load_model("qwen2.5-14b").spec
    assert (tuned.groups, tuned.param_count) == (base.groups, base.param_count)
    assert (tuned.checkpoint_dtype, base.checkpoint_dtype) == ("fp32", "bf16")


def test_lookup_reads_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding one model opens its file and the index, not the other entries."""
    opened: list[str] = []
    original = models.read_toml
    monkeypatch.setattr(models, "read_toml", lambda path: opened.append(path.name) or original(path))
    load_model("Qwen/Qwen2.5-7B-Instruct")
    assert opened == ["qwen2.5-7b.toml"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("lama-2-7b", "llama-2-7b"),
        ("qwen2.5-14", "qwen2.5-14b"),
        ("gema-2-9b", "gemma-2-9b"),
        ("llama3", "llama-3-8b"),
        ("qwen3-7b", "qwen3-8b"),
        ("Qwen3-8B-Instruct", "qwen3-8b"),
        ("deepseek-r1-distill-8b", "DeepSeek-R1-Distill-Llama-8B"),
        ("zephyr-7b", "zephyr-7b-beta"),
    ],
)
def test_unknown_names_say_the_nearest(name: str, nearest: str) -> None:
    """A name that nothing knows is refused with what could have been meant."""
    with pytest.raises(UnknownNameError) as caught:
        load_model(name)
    assert any(candidate.startswith(nearest) for candidate in caught.value.nearest)
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(("hub_id", "said"), [
    ("Qwen/Qwen3-7B", "Qwen/Qwen3-8B"),
    ("mistralai/Mistral-7B-Instruct-v3", "mistralai/Mistral-7B-Instruct-v0.3"),
    ("openai/gpt-oss-20", "openai/gpt-oss-20b"),
    ("someone/Qwen3-8B-FP8", "or give Qwen/Qwen3-8B, the model that was packed"),
])  # fmt: skip
def test_unread_hub_ids_say_what_could_be_given(
    hub_id: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A typing error in a Hub id is met with the nearest known ids,
    a packed checkpoint with the model behind it.
    """
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=re.escape(said)):
        load_model(hub_id)


@pytest.mark.parametrize("hub_id", ["Qwen/Qwen3-ASR-0.6B", "someone/quokka-7b", "Qwen/Qwen2.5-Math-PRM-7B"])
def test_other_models_are_no_typing_errors(
    hub_id: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No known model is offered for one that hears or has another head, or has no known family."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        load_model(hub_id)
    assert "nearest" not in str(caught.value)


def test_only_names_of_the_same_family_are_suggested() -> None:
    """Nothing is suggested where no family is spelled alike."""
    for name, families in {
        "kimi-k9": {"kimi"},
        "gema-2-9b": {"gemma"},
        "quokka-7b": set(),
        "7bb": {"7b"},
    }.items():
        with pytest.raises(UnknownNameError) as caught:
            load_model(name)
        assert {each.partition("-")[0] for each in caught.value.nearest} >= families
        assert bool(caught.value.nearest) == bool(families)


@pytest.mark.parametrize(
    "name", ["", "   ", "\0", "~no-such-user/x", "7bb", "x" * 10_000, "a b", "owner/../config"]
)
def test_strange_names_are_refused_in_one_sentence(name: str) -> None:
    """Empty, endless and malformed names are a usage error, never a traceback, and are not echoed whole."""
    with pytest.raises(UsageError) as caught:
        load_model(name)
    assert len(str(caught.value)) < 600


def test_omitted_parts_are_said() -> None:
    """A multimodal checkpoint without what describes its tower is its text decoder, and the note says so."""
    fields = {
        name: value
        for name, value in model_entry("gemma-3-4b").config_fields().items()
        if name != "vision_config"
    }
    assert "vision tower" in model_from_config(fields, "config.json").omits
    assert load_model("gemma-3-4b").note == ""
    assert load_model("llama-2-7b").note == ""


# --- sizes --------------------------------------------------------------------------------------------------


def test_seven_b_means_llama_2_and_says_so() -> None:
    """A bare size stands for a documented model, and the note names it."""
    resolved = load_model("7B")
    assert (resolved.spec.id, resolved.how) == ("llama-2-7b", "size")
    assert resolved.note == "7B means Llama 2 7B (data/models/sizes.toml)"
    assert resolved.spec.param_count == 6_738_415_616


@pytest.mark.parametrize("size", sorted(model_sizes()))
def test_sizes_mean_models_of_that_size(size: str) -> None:
    """Each size names an entry within a tenth of it, or one that its own authors call by that size."""
    resolved = load_model(size)
    assert model_sizes()[size].reason
    assert model_sizes()[size].model in model_ids()
    billions = resolved.spec.param_count / 1e9
    assert (
        float(size.removesuffix("b")) == pytest.approx(billions, rel=0.1)
        or size in resolved.spec.id
        or size in {"1b", "2b"}
    )


# --- config files -------------------------------------------------------------------------------------------


def test_config_file_and_folder(tmp_path: Path) -> None:
    """The path of a config.json and that of its folder mean the same model, named after the folder."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    file = _config_file(folder, TINY)
    by_file, by_folder = load_model(str(file)), load_model(str(folder))
    assert by_file.spec.id == by_folder.spec.id == "my-model"
    assert by_file.how == by_folder.how == "file"
    assert by_file.spec.param_count == TINY_PARAMS
    assert str(file) in by_file.note
    assert by_file.spec.checkpoint_dtype == "bf16"
    assert by_file.spec.params_origin == "config-only"


def test_what_holds_no_base_model_says_what_to_give(tmp_path: Path) -> None:
    """A file of another kind, and a folder of adapters alone; a merged one is a model."""
    with pytest.raises(UsageError, match="GGUF is not read: give the model that it was made of"):
        load_model(str(tmp_path / "model.Q4_K_M.GGUF"))
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(InputFileError, match="adapters: give their base model"):
        load_model(str(tmp_path))
    _config_file(tmp_path, TINY)
    assert load_model(str(tmp_path)).how == "file"


def test_the_address_of_a_page_is_its_hub_id() -> None:
    """As it is copied from a browser."""
    assert load_model("https://huggingface.co/meta-llama/Llama-3.1-8B").spec.id == "llama-3.1-8b"


def test_other_json_name_is_the_id(tmp_path: Path) -> None:
    """A file called otherwise than config.json names the model."""
    file = _config_file(tmp_path, TINY).rename(tmp_path / "small-llama.json")
    assert load_model(str(file)).spec.id == "small-llama"


def test_local_folder_comes_before_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a config.json wins over a catalog name; a folder without one does not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama-2-7b").mkdir()
    assert load_model("llama-2-7b").how == "catalog"
    _config_file(tmp_path / "llama-2-7b", TINY)
    resolved = load_model("llama-2-7b")
    assert (resolved.how, resolved.spec.param_count) == ("file", TINY_PARAMS)


def test_a_bound_that_is_infinite_is_read(tmp_path: Path) -> None:
    """Transformers writes Infinity into the config.json of models with Mamba layers."""
    file = _config_file(tmp_path, TINY | {"time_step_limit": [0.0, float("inf")]})
    assert "Infinity" in file.read_text(encoding="utf-8")
    assert load_model(str(file)).spec.param_count == TINY_PARAMS


def test_unmodelled_architecture_has_no_verdict(tmp_path: Path) -> None:
    """An architecture without a program ends with exit code 6, and says what can answer."""
    file = _config_file(tmp_path, TINY | {"model_type": "xlstm"})
    with pytest.raises(NotModelledError, match="'xlstm' is not modelled; plan") as caught:
        load_model(str(file))
    assert caught.value.exit_code == ExitCode.NOT_MODELLED


def test_what_transformers_lacks_as_well_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list of architectures is read as text, so torch is not imported to say no."""
    names = tmp_path / "models" / "auto" / "auto_mappings.py"
    names.parent.mkdir(parents=True)
    names.write_text('CONFIG_MAPPING_NAMES = OrderedDict([("xlstm", "xLSTMConfig")])', encoding="utf-8")
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("planner.catalog.hf_config.find_spec", lambda name: found)
    monkeypatch.setattr("planner.catalog.hf_config.version", lambda name: "5.0.0")
    for name in ("known", "unknown"):
        (tmp_path / name).mkdir()
    known = _config_file(tmp_path / "known", TINY | {"model_type": "xlstm"})
    with pytest.raises(UnknownArchitectureError):
        load_model(str(known))
    file = _config_file(tmp_path / "unknown", TINY | {"model_type": "nosuch"})
    with pytest.raises(
        NotModelledError, match=r"'nosuch' is neither modelled nor in Transformers 5\.0\.0"
    ) as no:
        load_model(str(file))
    assert not isinstance(no.value, UnknownArchitectureError)


DEEP = 100_000
HOSTILE: dict[str, bytes | str] = {
    "empty": "",
    "truncated": json.dumps(TINY)[:40],
    "not json": "model_type: llama",
    "not text": b"\xff\xfe\x00\x01",
    "a list": "[1, 2]",
    "a number": "7",
    "no model_type": "{}",
    "model_type is a number": '{"model_type": 5}',
    "ten megabytes": b'{"model_type": "llama", "x": "' + b"a" * 10_000_000 + b'"}',
    "NaN": json.dumps(TINY | {"hidden_size": float("nan")}),
    "infinity": json.dumps(TINY | {"vocab_size": float("inf")}),
    "overflowing float": json.dumps(TINY).replace("100", "1e999"),
    "negative": json.dumps(TINY | {"hidden_size": -64}),
    "zero": json.dumps(TINY | {"num_hidden_layers": 0}),
    "fraction": json.dumps(TINY | {"hidden_size": 64.5}),
    "huge": json.dumps(TINY | {"vocab_size": 10**30}),
    "endless digits": json.dumps(TINY).replace("100", "9" * 5000),
    "endless layers": json.dumps(TINY | {"num_hidden_layers": 2**31 - 1}),
    "text": json.dumps(TINY | {"hidden_size": "64"}),
    "boolean": json.dumps(TINY | {"hidden_size": True}),
    "object": json.dumps(TINY | {"hidden_size": {"a": 1}}),
    "flag as text": json.dumps(TINY | {"attention_bias": "yes"}),
    "activation as list": json.dumps(TINY | {"hidden_act": ["silu"]}),
    "missing sizes": '{"model_type": "llama"}',
    "does not divide": json.dumps(TINY | {"hidden_size": 66}),
    "deeply nested": '{"model_type": "llama", "x": ' + "[" * DEEP + "]" * DEEP + "}",
    "deep value": json.dumps(TINY).replace("100", "[" * 900 + "]" * 900),
    "layer types that are no list": json.dumps(TINY | {"model_type": "qwen2", "layer_types": "full"}),
    "layer types that are no text": json.dumps(
        TINY | {"model_type": "qwen2", "num_key_value_heads": 4, "layer_types": [1, 2]}
    ),
    "experts as text": json.dumps(
        TINY | {"model_type": "mixtral", "num_key_value_heads": 4, "num_local_experts": "8"}
    ),
    "text_config is a list": json.dumps(TINY | {"model_type": "gemma3", "text_config": []}),
    "text_config is a number": json.dumps({"model_type": "voxtral", "text_config": 1e300}),
    "rope_parameters is a number": json.dumps(TINY | {"model_type": "glm4", "rope_parameters": 3}),
    "rope_parameters is text": json.dumps(TINY | {"model_type": "glm4v_text", "rope_parameters": "x"}),
    "latent rank is a list": json.dumps(TINY | {"model_type": "deepseek_v2", "q_lora_rank": [1]}),
}


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_hostile_config_files_end_in_one_sentence(kind: str, tmp_path: Path) -> None:
    """Whatever the file holds, the answer is a message that names the file; never a traceback,
    never a number.
    """
    file = _config_file(tmp_path, HOSTILE[kind])
    with pytest.raises(InputFileError) as caught:
        load_model(str(file))
    assert caught.value.exit_code == ExitCode.USAGE
    assert str(caught.value).startswith(str(file))
    assert len(str(caught.value)) < len(str(file)) + 300


@pytest.mark.parametrize(
    "name",
    ["./missing/config.json", "missing.json", "/no/such/folder", "a/b/c", "..", "~/no-such-folder-here"],
)
def test_missing_files_are_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something written like a path is looked for as a file only."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputFileError, match=r"no such file; say --model with a catalog name"):
        load_model(name)


def test_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """A named pipe would wait for a writer for ever; it is not opened."""
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputFileError, match="not a regular file"):
        load_model(str(tmp_path / "config.json"))


# --- entries that break the schema --------------------------------------------------------------------------


GOOD_ENTRY = (data_dir() / "models" / "tinyllama-1.1b.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(("change", "said"), [
    (('id = "tinyllama-1.1b"', 'id = "other"'), "must be the file name"),
    (("schema = 1", "schema = 2"), "schema"),
    (("published_params = 1100048384", 'published_params = "many"'), "published_params"),
    (("published_params = 1100048384", "published_params = 0"), "published_params"),
    (('params_origin = "published-exact"', 'params_origin = "guessed"'), "params_origin"),
    (("schema = 1", 'schema = 1\nsurprise = "x"'), "unknown key 'surprise'"),
    (("hidden_size = 2048", "hidden_size = -1"), "hidden_size"),
])  # fmt: skip
def test_broken_entries_name_file_and_key(
    change: tuple[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that breaks the schema is refused with its file and key."""
    folder = tmp_path / "models"
    folder.mkdir()
    assert change[0] in GOOD_ENTRY
    (folder / "tinyllama-1.1b.toml").write_text(GOOD_ENTRY, encoding="utf-8")
    (folder / INDEX_NAME).write_text(format_index(build_index(folder)), encoding="utf-8")
    (folder / "tinyllama-1.1b.toml").write_text(GOOD_ENTRY.replace(*change), encoding="utf-8")
    monkeypatch.setattr(models, "data_dir", lambda: tmp_path)
    with pytest.raises(PlannerError, match=said) as caught:
        load_model("tinyllama")
    assert "tinyllama-1.1b.toml" in str(caught.value)


def test_null_fields_are_null_not_absent() -> None:
    """Mistral 7B v0.2 has no window though its configuration class has one by default;
    TOML says so by name.
    """
    assert model_entry("mistral-7b-v0.2").config_fields()["sliding_window"] is None
    assert load_model("mistral-7b-v0.2").spec.groups[0].block.attention.window_tokens is None
    assert load_model("mistral-7b-v0.1").spec.groups[0].block.attention.window_tokens == 4096
