"""The files under every catalog: strict TOML reading, schema errors,
the name index and where the data lies.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner.catalog import location
from planner.catalog.gpus import GpuEntry
from planner.catalog.index import INDEX_NAME, build_index, fold_name, format_index, read_index
from planner.catalog.location import data_dir
from planner.errors import InputFileError
from planner.files.checking import validate
from planner.files.reading import MAX_CONFIG_BYTES
from planner.files.structured import read_toml
from tests.files import written

VALID_ENTRY = """\
id = "card"
name = "Card"
vendor = "nvidia"
generation = "ada"
compute_capability = "8.9"
aliases = []
visible_memory_mib = 1000
interconnect = "none"
source = "test"
[origins]
visible_memory_mib = "measured"
"""


def write_entry(folder: Path, entry_id: str, extra: str = "", aliases: str = "[]") -> Path:
    """A minimal entry file that the index accepts."""
    return written(folder, f'id = "{entry_id}"\naliases = {aliases}\n{extra}', f"{entry_id}.toml")


def entry_from(text: str, folder: Path) -> GpuEntry:
    """``text`` read as an entry file."""
    path = written(folder, text, "card.toml")
    return validate(GpuEntry, read_toml(path), path)


# --- index --------------------------------------------------------------------------------------------------


def test_formatted_index_reads_back(tmp_path: Path) -> None:
    """Writing and reading an index loses nothing, also with names that need quoting."""
    write_entry(tmp_path, "one", 'variant_of = ["many"]', aliases='["Größe \\"1\\"", "A/B.c"]')
    write_entry(tmp_path, "two", 'variant_of = ["many"]')
    (tmp_path / INDEX_NAME).write_text(format_index(build_index(tmp_path)), encoding="utf-8")
    index = read_index(tmp_path)
    assert index.ids == ("one", "two")
    assert index.find('größe_"1"') == "one"
    assert index.find("a/b.C") == "one"
    assert index.variants_of("MANY") == ("one", "two")


def test_an_entry_is_found_before_the_index_is_written_anew(tmp_path: Path) -> None:
    """One file is enough for a new entry; a file that went is no longer found."""
    write_entry(tmp_path, "one")
    (tmp_path / INDEX_NAME).write_text(format_index(build_index(tmp_path)), encoding="utf-8")
    assert read_index(tmp_path).ids == ("one",)
    write_entry(tmp_path, "two", aliases='["second"]')
    assert read_index(tmp_path).find("Second") == "two"
    (tmp_path / "one.toml").unlink()
    assert read_index(tmp_path).find("one") is None


def test_names_fold_case_and_separators() -> None:
    """Folding keeps what distinguishes names and drops how they are spelled."""
    assert fold_name(" RTX-4090 _Ti") == "rtx4090ti"


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ("", 'aliases = ["ONE"]', "already belongs to 'one'"),
        ("", 'aliases = [" - "]', "must be a list of names"),
        ("", 'aliases = "x"', "must be a list of names"),
        ("", 'aliases = []\nvariant_of = ["alone"]', "shared with no other entry"),
        ('variant_of = ["two"]', 'aliases = []\nvariant_of = ["two"]', "already belongs to 'two'"),
    ],
)
def test_names_that_do_not_lead_to_one_entry_are_refused(
    tmp_path: Path, first: str, second: str, problem: str
) -> None:
    """Building the index fails on a name claimed twice, an empty name,
    and a shared name that is not shared.
    """
    write_entry(tmp_path, "one", first)
    (tmp_path / "two.toml").write_text(f'id = "two"\n{second}\n')
    with pytest.raises(InputFileError, match=problem):
        build_index(tmp_path)


def test_an_id_must_be_the_file_name(tmp_path: Path) -> None:
    """An entry is found by its file name, so another id inside would never be reached."""
    (tmp_path / "one.toml").write_text('id = "other"\naliases = []\n')
    with pytest.raises(InputFileError, match="must be the file name, 'one'"):
        build_index(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"ids": ["a"], "aliases": {"x": "gone"}, "variants": {}}', "'x' points to 'gone'"),
        ('{"ids": ["a"], "aliases": {}, "variants": {"x": ["a", "gone"]}}', "'x' points to 'gone'"),
        ('{"ids": ["a"]}', "not a catalog index"),
        ("[]", "not a catalog index"),
    ],
)
def test_a_stored_index_with_dangling_names_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """A stale or damaged index is reported as such instead of as a missing card."""
    (tmp_path / INDEX_NAME).write_text(text)
    with pytest.raises(InputFileError, match=problem):
        read_index(tmp_path)


# --- strict reading -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("vendor", "wendor"), "missing key 'vendor' "),
        (('name = "Card"', 'name = "Card"\ncolour = "red"'), "unknown key 'colour'"),
        (("visible_memory_mib = 1000", 'visible_memory_mib = "1000"'), "key 'visible_memory_mib': .* '1000'"),
        (
            ("visible_memory_mib = 1000", "visible_memory_mib = -1"),
            "key 'visible_memory_mib': .* greater than 0",
        ),
        (('interconnect = "none"', 'interconnect = "none"\ntdp_w = inf'), "key 'tdp_w': .* finite"),
        (('interconnect = "none"', 'interconnect = "none"\ntdp_w = 300'), "no origin for 'tdp_w'"),
        (('= "measured"', '= "guessed"'), "key 'origins.visible_memory_mib'"),
        (("[origins]", '[origins]\ntdp_w = "measured"'), "names 'tdp_w', which has no value"),
        (('vendor = "nvidia"', 'vendor = "amd"'), "NVIDIA cards only"),
        (
            ("visible_memory_mib = 1000", "visible_memory_mib = 2000\nmarketing_memory_gib = 1"),
            "no origin for 'marketing_memory_gib'",
        ),
    ],
)
def test_an_entry_that_breaks_the_schema_is_one_sentence_with_the_key(
    tmp_path: Path, change: tuple[str, str], problem: str
) -> None:
    """Missing, unknown, mistyped and out-of-range keys name the file and the key."""
    with pytest.raises(InputFileError, match=problem) as caught:
        entry_from(VALID_ENTRY.replace(*change, 1), tmp_path)
    assert "card.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_memory_sizes_out_of_order_are_refused(tmp_path: Path) -> None:
    """A visible memory above the nvidia-smi total is a slip in the data."""
    text = VALID_ENTRY.replace(
        "visible_memory_mib = 1000", "visible_memory_mib = 1000\nnvidia_smi_total_mib = 999"
    )
    with pytest.raises(InputFileError, match="'visible_memory_mib' is above 'nvidia_smi_total_mib'"):
        entry_from(text + 'nvidia_smi_total_mib = "measured"\n', tmp_path)


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"a = 1\nb = = 2\n", 2, "not valid TOML"),
        (b"a = 1\nb = 2\nc = '\xff'\n", 3, "not UTF-8"),
        (b"a = " + b"[" * 100_000, None, "nested too deeply"),
        (b"#" * (MAX_CONFIG_BYTES + 1), None, "larger than the limit of 1.0 MiB"),
    ],
    ids=["malformed", "not utf-8", "deep", "large"],
)
def test_a_file_that_is_not_plain_toml_names_file_and_line(
    tmp_path: Path, content: bytes, line: int | None, problem: str
) -> None:
    """Malformed, wrongly encoded, hostile and oversized files end in one sentence."""
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(InputFileError, match=problem) as caught:
        read_toml(path)
    assert caught.value.line == line
    assert str(path) in str(caught.value)


def test_missing_files_folders_and_pipes_are_refused(tmp_path: Path) -> None:
    """What is not a regular file is refused before it is opened, so a pipe cannot block."""
    os.mkfifo(tmp_path / "pipe.toml")
    for path, problem in [
        (tmp_path / "gone.toml", "no such file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "pipe.toml", "not a regular file"),
    ]:
        with pytest.raises(InputFileError, match=problem):
            read_toml(path)


def test_data_folder_inside_the_package_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package uses its own data, a checkout the folder beside the package,
    and neither is one clear error.
    """
    package = tmp_path / "site" / "planner"
    package.mkdir(parents=True)
    monkeypatch.setattr(location, "_PACKAGE_DIR", package)
    with pytest.raises(InputFileError, match="data files are missing"):
        data_dir()
    (package.parent / "data").mkdir()
    assert data_dir() == package.parent / "data"
    (package / "data").mkdir()
    assert data_dir() == package / "data"
