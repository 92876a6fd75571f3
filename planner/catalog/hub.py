"""One request to the Hugging Face Hub: the ``config.json`` of a model.  HTTPS only, bounded, nothing executed, no credentials."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from typing import IO, Any

from planner.catalog.hf_config import MAX_CONFIG_BYTES, parse_config
from planner.errors import UsageError

_TIMEOUT_S = 10
_HUB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
_OFFLINE_SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_WAY_OUT = "download its config.json and pass the path of that file instead"


def is_hub_id(name: str) -> bool:
    """Whether ``name`` has the form ``owner/model``."""
    return _HUB_ID.fullmatch(name) is not None and ".." not in name


def fetch_config(hub_id: str) -> Mapping[str, Any]:
    """The parsed ``config.json`` on the main branch of a public model.

    Raises:
        UsageError: no network, offline by switch, no such model, gated or private, or an answer that is no config.
    """
    switch = next((name for name in _OFFLINE_SWITCHES if os.environ.get(name, "").lower() in {"1", "true", "yes", "on"}), None)
    if switch:
        raise UsageError(f"model '{hub_id}' is not in the catalog and {switch} forbids asking the Hub: {_WAY_OUT}")
    url = config_url(hub_id)
    try:
        raw = _read_bounded(url)
    except urllib.error.HTTPError as error:
        raise UsageError(f"model '{hub_id}': {_meaning(error.code)}; if you have access, {_WAY_OUT}") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UsageError(
            f"model '{hub_id}' is not in the catalog and huggingface.co cannot be reached ({str(reason)[:120]}): {_WAY_OUT}"
        ) from None
    return parse_config(raw, url)


def config_url(hub_id: str) -> str:
    """Address of the ``config.json`` of ``hub_id``."""
    return f"https://huggingface.co/{hub_id}/resolve/main/config.json"


class _HttpsRedirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects (the Hub answers with one) but never down to plain HTTP or to another scheme."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.lower().startswith("https://"):
            raise urllib.error.URLError(f"redirected to {newurl[:60]}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _read_bounded(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "finetune-planner", "Accept": "application/json"})  # noqa: S310
    opener = urllib.request.build_opener(_HttpsRedirects)
    with opener.open(request, timeout=_TIMEOUT_S) as answer:
        content: bytes = answer.read(MAX_CONFIG_BYTES + 1)
    return content


def _meaning(status: int) -> str:
    if status in {401, 403}:
        return f"gated, private or not on the Hub (HTTP {status})"
    return "not on the Hub or without a config.json (HTTP 404)" if status == 404 else f"the Hub answered with HTTP {status}"
