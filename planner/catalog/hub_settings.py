"""What the Hugging Face libraries let their users set in the environment: endpoint, token,
cache and being offline.

Source: huggingface_hub 2.4, constants.py and utils/_auth.py.
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from planner.errors import UsageError
from planner.files.reading import read_text

_ENDPOINT = "https://huggingface.co"
_TRUE = frozenset({"1", "true", "yes", "on"})
_OFFLINE_SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_NO_TOKEN_SWITCH = "HF_HUB_DISABLE_IMPLICIT_TOKEN"  # noqa: S105 - the name of a switch
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAX_LINE_BYTES = 4097


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the Hub is: an address without credentials, its host,
    and what an Authorization header may hold ("" for nothing).
    """

    url: str
    host: str
    authorization: str = field(default="", repr=False)


def endpoint() -> Endpoint:
    """``HF_ENDPOINT``, or the Hub itself, with the user's own credentials.

    Raises:
        UsageError: ``HF_ENDPOINT`` is no address, or not an https one.
    """
    given = os.environ.get("HF_ENDPOINT", "").strip() or _ENDPOINT
    parts = _split(given)
    if parts is None:
        # Not repeated: it may hold a password.
        raise UsageError(f"HF_ENDPOINT is not an https address such as {_ENDPOINT}; unset it or give one")
    host, port = parts.hostname or "", parts.port
    place = f"[{host}]" if ":" in host else host
    url = f"https://{place}{f':{port}' if port else ''}{parts.path.rstrip('/')}"
    return Endpoint(url, host, _basic(parts.username, parts.password) or _bearer())


def _split(address: str) -> SplitResult | None:
    """Parts of an https address; ``None`` for anything else."""
    try:
        parts = urlsplit(address)
        usable = parts.scheme == "https" and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    return parts if usable and address.isascii() and address.isprintable() and " " not in address else None


def offline_switch() -> str | None:
    """The switch that keeps the Hugging Face libraries off the network, if one is on."""
    return next((name for name in _OFFLINE_SWITCHES if _is_on(name)), None)


def withheld_token() -> str | None:
    """The switch that keeps a token from being sent unasked, if it is on."""
    return _NO_TOKEN_SWITCH if _is_on(_NO_TOKEN_SWITCH) else None


def cached_config(hub_id: str) -> Path | None:
    """The ``config.json`` that the Hugging Face cache holds for the main branch of ``hub_id``,
    if it holds one.
    """
    cache = _folder("HF_HUB_CACHE") or _folder("HUGGINGFACE_HUB_CACHE") or _hf_home() / "hub"
    model = cache / f"models--{hub_id.replace('/', '--')}"
    commit = _line(model / "refs" / "main")
    if not _COMMIT.fullmatch(commit):
        return None
    file = model / "snapshots" / commit / "config.json"
    return file if _is_file(file) else None


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").lower() in _TRUE


def _basic(user: str | None, password: str | None) -> str:
    """Credentials that stand in the address itself, as HTTP clients send them."""
    if user is None:
        return ""
    return "Basic " + base64.b64encode(f"{unquote(user)}:{unquote(password or '')}".encode()).decode()


def _bearer() -> str:
    """The user's token: from the environment, else from the file that a login writes."""
    if withheld_token():
        return ""
    given = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or ""
    token = given.strip() or _line(_folder("HF_TOKEN_PATH") or _hf_home() / "token")
    return f"Bearer {token}" if _TOKEN.fullmatch(token) else ""


def _hf_home() -> Path:
    return _folder("HF_HOME") or (_folder("XDG_CACHE_HOME") or _expanded("~/.cache")) / "huggingface"


def _folder(name: str) -> Path | None:
    given = os.environ.get(name)
    return _expanded(given) if given else None


def _expanded(text: str) -> Path:
    # Not pathlib's expanduser, which fails where there is no home.
    return Path(os.path.expandvars(os.path.expanduser(text)))  # noqa: PTH111


def _line(file: Path) -> str:
    """The one line of a small file; "" for anything else."""
    try:
        return read_text(file, _MAX_LINE_BYTES).strip()
    except UsageError:
        return ""


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
