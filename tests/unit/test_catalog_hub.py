"""Models that the catalog does not have are read from the Hub: over HTTPS, bounded, and failing in one sentence."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from http.client import HTTPMessage

import pytest

from planner.catalog import hub
from planner.catalog.models import load_model
from planner.errors import InputFileError, UsageError

TINY = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"vocab_size": 100}
TINY_PARAMS = 2 * 100 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the Hub; those about it bring their own answer."""

    def refuse(url: str) -> bytes:
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(hub, "_read_bounded", refuse)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def test_hub_id_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hub id that the catalog does not have is read from the Hub, and the note says so."""
    asked: list[str] = []
    monkeypatch.setattr(hub, "_read_bounded", lambda url: asked.append(url) or json.dumps(TINY).encode())
    resolved = load_model("someone/Tiny-Llama")
    assert asked == ["https://huggingface.co/someone/Tiny-Llama/resolve/main/config.json"]
    assert (resolved.how, resolved.spec.id, resolved.spec.hub_id) == ("hub", "tiny-llama", "someone/Tiny-Llama")
    assert resolved.spec.param_count == TINY_PARAMS
    assert "fetched from huggingface.co" in resolved.note


def test_catalog_comes_before_the_hub() -> None:
    """A Hub id that the catalog knows needs no network."""
    assert load_model("Qwen/Qwen3-8B").how == "catalog"


def test_no_network_names_the_way_out() -> None:
    """Without a network the message says what to do instead."""
    with pytest.raises(UsageError, match=r"cannot be reached .*download its config\.json and pass the path"):
        load_model("someone/unknown")


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_switch_is_obeyed(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switches of the Hugging Face libraries keep us off the network too."""
    monkeypatch.setenv(switch, "1")
    with pytest.raises(UsageError, match=f"{switch} forbids"):
        load_model("someone/unknown")


@pytest.mark.parametrize(
    ("status", "said"), [(401, "gated, private"), (403, "gated, private"), (404, "not on the Hub"), (503, "503")]
)
def test_hub_refusals_are_explained(status: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gated and missing models are told apart from a network that does not work."""

    def refuse(url: str) -> bytes:
        raise urllib.error.HTTPError(url, status, "no", HTTPMessage(), None)

    monkeypatch.setattr(hub, "_read_bounded", refuse)
    with pytest.raises(UsageError, match=said):
        load_model("someone/unknown")


@pytest.mark.parametrize(
    "answer", [b"<html>", b"[]", b"\xff\xfe", b"{" * 10, b'"' + b"a" * 2_000_000 + b'"', b'{"model_type": "llama"}']
)
def test_hostile_answers_end_in_one_sentence(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the Hub answers is as untrusted as a file."""
    monkeypatch.setattr(hub, "_read_bounded", lambda url: answer)
    with pytest.raises(InputFileError):
        load_model("someone/unknown")


@pytest.mark.parametrize(
    "error", [TimeoutError("timed out"), ConnectionResetError("reset"), OSError("odd"), ValueError("odd url")]
)
def test_network_failures_end_in_one_sentence(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timeouts and broken connections are usage errors with the way out, never tracebacks."""

    def fail(url: str) -> bytes:
        raise error

    monkeypatch.setattr(hub, "_read_bounded", fail)
    with pytest.raises(UsageError, match="download its config"):
        load_model("someone/unknown")


@pytest.mark.parametrize(
    ("target", "followed"), [("https://cdn.example/x", True), ("http://cdn.example/x", False), ("file:///etc", False)]
)
def test_redirects_stay_on_https(target: str, followed: bool) -> None:
    """The Hub redirects; a redirect to anything but HTTPS is refused."""
    request = urllib.request.Request("https://huggingface.co/a/b/resolve/main/config.json")
    handler, headers = hub._HttpsRedirects(), HTTPMessage()
    if followed:
        again = handler.redirect_request(request, io.BytesIO(), 302, "Found", headers, target)
        assert again is not None
        assert again.full_url == target
    else:
        with pytest.raises(urllib.error.URLError, match="not https"):
            handler.redirect_request(request, io.BytesIO(), 302, "Found", headers, target)


@pytest.mark.parametrize("name", ["a/b/c", "../etc", "a/..", "a b/c", "-a/b", "a/", "/a", "a/b?x=1", "a/b#c", "a" * 200 + "/b"])
def test_only_plain_hub_ids_are_asked_for(name: str) -> None:
    """Nothing but owner/model reaches the address."""
    assert not hub.is_hub_id(name)
