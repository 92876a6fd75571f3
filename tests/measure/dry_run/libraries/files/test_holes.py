"""Files with holes: nothing is lost, and what is all zeros takes no disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from measure.dry_run.libraries.files import holes
from measure.dry_run.libraries.files.checkpoint_folder import write_with_holes
from tests.extras import import_or_skip

torch = import_or_skip("torch")
_BYTES = 8 << 20


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What :func:`holes.install` changes, for one test."""
    for name in ("PyTorchFileWriter", "PyTorchFileReader"):
        monkeypatch.setattr(torch._C, name, getattr(torch._C, name))
    monkeypatch.setattr(torch.UntypedStorage, "from_file", torch.UntypedStorage.from_file)
    holes.install()


@pytest.mark.usefixtures("replaced")
@pytest.mark.parametrize("mapped", [False, True])
def test_what_is_saved_is_loaded_again(*, mapped: bool, tmp_path: Path) -> None:
    """Of two large tensors the one without content is a hole; numbers of the other and of small ones stay."""
    tensors = {
        "hollow": torch.zeros(_BYTES, dtype=torch.uint8),
        "full": torch.arange(_BYTES // 8),
        "small": torch.arange(3.0),
    }
    path = tmp_path / "w.pt"
    torch.save(tensors, path)
    on_disk = path.stat().st_blocks * 512
    assert _BYTES < on_disk < 1.5 * _BYTES < path.stat().st_size
    loaded = torch.load(path, mmap=mapped)
    # Zeros come of the host memory of a dry run, which is not in place here.
    assert loaded.pop("hollow").shape == tensors["hollow"].shape
    assert all(torch.equal(each, tensors[name]) for name, each in loaded.items())


@pytest.mark.usefixtures("replaced")
def test_the_real_reader_of_safetensors_opens_a_file_of_holes(tmp_path: Path) -> None:
    """Names, shapes and dtypes are in the header; the tensors take no disk."""
    library = import_or_skip("safetensors.torch")
    shapes = {"a": (1024, 2048), "b": (7,)}
    tensors = {
        name: torch.empty(shape, dtype=torch.bfloat16, device="meta") for name, shape in shapes.items()
    }
    path = tmp_path / "model.safetensors"
    write_with_holes(tensors, path)
    assert path.stat().st_blocks * 512 < 1 << 16 < path.stat().st_size
    loaded = library.load_file(path)
    assert {name: tuple(each.shape) for name, each in loaded.items()} == shapes
    assert {each.dtype for each in loaded.values()} == {torch.bfloat16}


def test_a_hole_is_many_bytes_that_were_never_written(tmp_path: Path) -> None:
    """One written byte within, or at an end, and it is none; few bytes are read as they stand."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(4 * _BYTES)
        file.seek(2 * _BYTES)
        file.write(b"1")
    assert holes.is_hole(str(path), 0, 2 * _BYTES)
    assert not holes.is_hole(str(path), 0, 2 * _BYTES + 1)
    assert not holes.is_hole(str(path), _BYTES, 3 * _BYTES)
    assert holes.is_hole(str(path), 2 * _BYTES + 1, 4 * _BYTES)
    assert not holes.is_hole(str(path), 0, 1024)
