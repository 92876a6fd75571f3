"""Models that the catalog does not have are read from the Hub: over HTTPS, within one deadline,
and failing in one sentence.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from planner.catalog import hub
from planner.catalog.models import load_model, storage_of
from planner.errors import InputFileError, PlannerError, UsageError
from tests.files import written
from tests.planner.catalog.hub_double import Double, content, gated

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TINY |= {"vocab_size": 100}
TINY_PARAMS = 2 * 100 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
CONFIG = "/someone/Tiny-Llama/resolve/main/config.json"
TOKEN = "hf_verysecrettoken"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SETTINGS = (
    "HF_ENDPOINT",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HF_TOKEN_PATH",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
)
SETTINGS += (
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "XDG_CACHE_HOME",
)


@pytest.fixture(autouse=True)
def home(no_proxy: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Hugging Face folder that is empty, and no setting of whoever runs the tests;
    an endpoint where nobody listens.
    """
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", "https://localhost:9")
    hub.forget()
    return tmp_path / "hf"


@pytest.fixture
def server(server: Double, monkeypatch: pytest.MonkeyPatch) -> Double:
    """A Hub with one model."""
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    server.answers[CONFIG] = content(json.dumps(TINY))
    return server


def refused(name: str = "someone/Tiny-Llama") -> str:
    """The sentence that a look-up ends in."""
    with pytest.raises(PlannerError) as caught:
        load_model(name)
    return str(caught.value)


def test_hub_id_is_fetched(server: Double) -> None:
    """A Hub id that the catalog does not have is read from the Hub, the note says so,
    and no token is sent unasked.
    """
    os.environ["HF_TOKEN"] = TOKEN
    resolved = load_model("someone/Tiny-Llama")
    assert server.asked == [(CONFIG, None, None)]
    assert (resolved.how, resolved.spec.id, resolved.spec.hub_id) == (
        "hub",
        "tiny-llama",
        "someone/Tiny-Llama",
    )
    assert resolved.spec.param_count == TINY_PARAMS
    assert "fetched from localhost" in resolved.note
    assert resolved.spec.source == f"{server.address}{CONFIG}"


def test_how_a_checkpoint_is_stored_is_read_from_the_hub(server: Double) -> None:
    """For files of other tools, too; the answer serves both questions, and a refusal leaves it open."""
    packed = TINY | {"quantization_config": {"quant_method": "awq", "group_size": 64}}
    address = "/someone/Tiny-Llama-AWQ/resolve/main/config.json"
    server.answers[address] = content(json.dumps(packed))
    stored = storage_of("someone/Tiny-Llama-AWQ")
    assert stored is not None
    assert load_model("someone/Tiny-Llama-AWQ").spec.stored == stored
    assert (stored.packing.group, server.paths) == (64, [address])
    assert storage_of("someone/Other-AWQ") is None


def test_an_id_is_asked_for_once(server: Double) -> None:
    """Answers and refusals are kept, each for its own id."""
    for _ in range(3):
        load_model("someone/Tiny-Llama")
        assert "HTTP 404" in refused("someone/other")
    assert server.paths == [CONFIG, "/someone/other/resolve/main/config.json"]


def test_catalog_comes_before_the_hub() -> None:
    """A Hub id that the catalog knows needs no network."""
    assert load_model("Qwen/Qwen3-8B").how == "catalog"


def test_no_network_names_the_way_out() -> None:
    """Without a network the message says what to do instead."""
    assert (
        "localhost cannot be reached (Connection refused): download its config.json and pass the path"
        in refused()
    )


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_switch_is_obeyed(switch: str, server: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switches of the Hugging Face libraries keep us off the network too."""
    monkeypatch.setenv(switch, "1")
    assert f"{switch} forbids" in refused()
    assert not server.asked


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "gated, private"), (403, "gated, private"), (404, "not on localhost"), (503, "503")],
)
def test_hub_refusals_are_explained(status: int, said: str, server: Double) -> None:
    """Gated and missing models are told apart from a network that does not work."""
    server.answers[CONFIG] = content("", status)
    assert said in refused()
    assert ("set HF_TOKEN" in refused()) == (status in {401, 403})


@pytest.mark.parametrize(
    "answer",
    [b"<html>", b"[]", b"\xff\xfe", b"{" * 10, b'"' + b"a" * 2_000_000 + b'"', b'{"model_type": "llama"}'],
)
def test_hostile_answers_end_in_one_sentence(answer: bytes, server: Double) -> None:
    """What the Hub answers is as untrusted as a file."""
    server.answers[CONFIG] = content(answer)
    with pytest.raises(InputFileError):
        load_model("someone/Tiny-Llama")


def test_a_failure_is_forgotten_after_a_while(server: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever mends the network in a notebook is not told for ever that it is broken."""
    monkeypatch.setenv("HF_ENDPOINT", "https://localhost:9")
    refused()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    load_model("someone/Tiny-Llama")
    monkeypatch.setattr(hub, "_FAILURE_KEPT_S", 0.0)
    for _ in range(2):
        assert "HTTP 404" in refused("someone/other")
    assert server.paths.count("/someone/other/resolve/main/config.json") == 2


def test_a_token_opens_a_gated_model(server: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token goes to the endpoint, and only once the Hub asks for it."""
    monkeypatch.setenv("HF_TOKEN", f" {TOKEN}\n")
    server.answers[CONFIG] = gated(json.dumps(TINY), f"Bearer {TOKEN}")
    assert load_model("someone/Tiny-Llama").spec.param_count == TINY_PARAMS
    assert server.asked == [(CONFIG, token, None) for token in (None, f"Bearer {TOKEN}")]


@pytest.mark.parametrize("place", ["HF_HOME", "HF_TOKEN_PATH"])
def test_the_token_of_a_login_is_used(
    place: str, home: Path, server: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that hf auth login writes is where the libraries look for it."""
    file = home / "token" if place == "HF_HOME" else home / "elsewhere"
    file.parent.mkdir()
    file.write_text(f"{TOKEN}\n")
    if place == "HF_TOKEN_PATH":
        monkeypatch.setenv(place, str(file))
    server.answers[CONFIG] = gated(json.dumps(TINY), f"Bearer {TOKEN}")
    assert load_model("someone/Tiny-Llama").how == "hub"


@pytest.mark.parametrize("token", [TOKEN, "two words", "line\nbreak: x", "hf_\x1b[31m", "\udce9", "x" * 5000])
def test_no_message_repeats_a_token(token: str, server: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the Hub answers; and what is no token is not sent."""
    monkeypatch.setenv("HF_TOKEN", token)
    server.answers[CONFIG] = content("", 401)
    message = refused()
    assert token not in message
    assert ("token is refused" in message) == (token == TOKEN) == (len(server.asked) == 2)


def test_a_token_may_be_withheld(server: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch of huggingface_hub, which the message then names."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    server.answers[CONFIG] = gated(json.dumps(TINY), f"Bearer {TOKEN}")
    assert "unset HF_HUB_DISABLE_IMPLICIT_TOKEN" in refused()
    assert server.asked == [(CONFIG, None, None)]


def test_a_new_token_is_tried(server: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is kept for one token, not for the next."""
    server.answers[CONFIG] = gated(json.dumps(TINY), f"Bearer {TOKEN}")
    assert "set HF_TOKEN" in refused()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert load_model("someone/Tiny-Llama").how == "hub"


def test_a_mirror_with_a_path_and_a_password(server: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mirrors are served under a path; the credentials of their address are sent, and never shown."""
    address = server.address.replace("https://", "https://user:secr%40t@")
    monkeypatch.setenv("HF_ENDPOINT", f"{address}/artifactory/hf/")
    server.answers[f"/artifactory/hf{CONFIG}"] = gated(json.dumps(TINY), "Basic dXNlcjpzZWNyQHQ=")
    resolved = load_model("someone/Tiny-Llama")
    assert resolved.spec.source == f"{server.address}/artifactory/hf{CONFIG}"
    assert "secr" not in refused("someone/other")


@pytest.mark.parametrize(
    "address",
    [
        "http://localhost:1",
        "localhost",
        "user:secret@localhost",
        "https://",
        "https://user:secret@host:x",
        "https://a b",
    ],
)
def test_an_endpoint_must_be_https(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes in the clear, and the sentence does not repeat what may hold a password."""
    monkeypatch.setenv("HF_ENDPOINT", address)
    message = refused()
    assert "HF_ENDPOINT is not an https address" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    "address", ["http://user:secret@localhost:9", "http:user:secret@x", "user:secret@localhost:x", "//"]
)
def test_no_message_repeats_a_proxy(address: str, server: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that is down or no address at all."""
    monkeypatch.setenv("HTTPS_PROXY", address)
    message = refused()
    assert "through the proxy that HTTPS_PROXY names" in message
    assert "secret" not in message
    assert not server.asked


def _cached(home: Path, text: str) -> Path:
    model = home / "hub" / "models--someone--Tiny-Llama"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    (model / "blobs").mkdir()
    (model / "blobs" / "abc").write_text(text)
    snapshot = model / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to(Path("..") / ".." / "blobs" / "abc")
    return snapshot / "config.json"


def test_the_cache_of_the_libraries_comes_before_the_network(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was downloaded once works offline."""
    file = _cached(home, json.dumps(TINY))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    resolved = load_model("someone/Tiny-Llama")
    assert (resolved.how, resolved.spec.id, resolved.spec.source) == ("hub", "tiny-llama", str(file))
    assert resolved.spec.param_count == TINY_PARAMS
    assert "read from the Hugging Face cache" in resolved.note


def test_a_cached_file_is_as_untrusted_as_any(home: Path) -> None:
    """Bounded, and named when it is broken."""
    file = _cached(home, "[" * 100_000)
    assert str(file) in refused()


def test_a_cache_that_leads_elsewhere_is_passed_over(home: Path) -> None:
    """A branch file that is no commit, or no file, is none."""
    file = _cached(home, json.dumps(TINY))
    main = written(file.parents[2] / "refs", "../../../../etc", "main")
    assert "cannot be reached" in refused()
    main.unlink()
    os.mkfifo(main)
    assert "cannot be reached" in refused()


@pytest.mark.parametrize(
    "name", ["a/b/c", "../etc", "a/..", "a b/c", "-a/b", "a/", "/a", "a/b?x=1", "a/b#c", "a" * 200 + "/b"]
)
def test_only_plain_hub_ids_are_asked_for(name: str) -> None:
    """Nothing but owner/model reaches the address."""
    assert not hub.is_hub_id(name)


def test_files_behind_a_black_hole_wait_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``plan check`` of four files with four models asks a host that never answers once."""
    from planner.cli.main import main

    monkeypatch.setattr(hub, "DEADLINE_S", 0.4)
    files = [tmp_path / f"{number}.json" for number in range(4)]
    for number, file in enumerate(files):
        file.write_text(
            json.dumps({"model_name_or_path": f"someone/model-{number}", "output_dir": "x", "use_peft": True})
        )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"https://127.0.0.1:{silent.getsockname()[1]}")
        words = ["check", *map(str, files), "--tool", "trl", "--gpu", "4090", "--seq", "512"]
        assert main(words) == UsageError.exit_code
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert " ".join(capsys.readouterr().out.split()).count("no answer in time") == 4
