"""One look-up on the Hugging Face Hub: the ``config.json`` of a model.  HTTPS only, bounded,
nothing executed.
"""

from __future__ import annotations

import math
import re
import time
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from planner.catalog.hf_config import MAX_CONFIG_BYTES, parse_config
from planner.catalog.hub_request import goes_through_proxy, read_within, reason_of
from planner.catalog.hub_settings import Endpoint, endpoint, offline_switch, withheld_token
from planner.errors import UsageError

DEADLINE_S = 10.0
"""For the whole of a look-up: names, connections, redirects, and every byte of the answer."""
_FAILURE_KEPT_S = 60.0
"""Seconds for which a failure is not tried again: long enough for one call with many files,
short enough for a notebook.
"""
_MOST_KEPT = 128
_HUB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
_UNREAD = frozenset({None, 401, 403})
"""No answer, or an answer without access: the model may well be there."""
_WAY_OUT = "download its config.json and pass the path of that file (--model)"


class UnreadConfigError(UsageError):
    """A model that may be on the Hub, but whose config could not be read here."""


class NotOnHubError(UsageError):
    """The Hub answered that it has no such config."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """What came of a look-up: the status of a refusal, or why there was no answer at all."""

    status: int | None
    reason: str = ""


_KNOWN: dict[tuple[str, ...], tuple[float, bytes | _Failure]] = {}
"""What was found and until when it holds: by the endpoint that cannot be reached,
else by address and credentials.
"""


def is_hub_id(name: str) -> bool:
    """Whether ``name`` has the form ``owner/model``."""
    return _HUB_ID.fullmatch(name) is not None and ".." not in name


def fetch_config(hub_id: str) -> Mapping[str, Any]:
    """The parsed ``config.json`` on the main branch of a model, public or open to the user's token.

    Answers are kept for the process, failures for a minute:
    of a host that cannot be reached for all its models.

    Raises:
        UnreadConfigError: no network, offline by switch, or no access.
        NotOnHubError: no such model, or no answer but a refusal.
        InputFileError: an answer that is no config.
    """
    if switch := offline_switch():
        known = "is neither in the catalog nor in the Hugging Face cache"
        raise UnreadConfigError(f"model '{hub_id}' {known}, and {switch} forbids asking the Hub: {_WAY_OUT}")
    hub, url = endpoint(), config_url(hub_id)
    found = _look_up(hub, url)
    if isinstance(found, _Failure):
        kind = UnreadConfigError if found.status in _UNREAD else NotOnHubError
        raise kind(_sentence(hub_id, hub, found))
    return parse_config(found, url)


def config_url(hub_id: str) -> str:
    """Address of the ``config.json`` of ``hub_id``, without credentials.

    Raises:
        UsageError: ``HF_ENDPOINT`` is not an https address.
    """
    return f"{endpoint().url}/{hub_id}/resolve/main/config.json"


def forget() -> None:
    """Forget all answers and failures."""
    _KNOWN.clear()


def _look_up(hub: Endpoint, url: str) -> bytes | _Failure:
    this_host, this_file = (hub.url,), (url, hub.authorization)
    for key in (this_host, this_file):
        if key in _KNOWN and time.monotonic() < _KNOWN[key][0]:
            return _KNOWN[key][1]
    found = _ask(url, hub.authorization)
    if len(_KNOWN) >= _MOST_KEPT:
        _KNOWN.clear()
    unreachable = isinstance(found, _Failure) and found.status is None
    until = time.monotonic() + _FAILURE_KEPT_S if isinstance(found, _Failure) else math.inf
    _KNOWN[this_host if unreachable else this_file] = until, found
    return found


def _ask(url: str, authorization: str) -> bytes | _Failure:
    try:
        return read_within(DEADLINE_S, url, authorization, MAX_CONFIG_BYTES + 1)
    except urllib.error.HTTPError as error:
        return _Failure(error.code)
    except (OSError, HTTPException, ValueError) as error:
        return _Failure(None, reason_of(error))


def _sentence(hub_id: str, hub: Endpoint, failure: _Failure) -> str:
    if failure.status is None:
        way = " through the proxy that HTTPS_PROXY names" if goes_through_proxy(hub.host) else ""
        return (
            f"model '{hub_id}' is not in the catalog and {hub.host} cannot be reached{way} "
            f"({failure.reason}): {_WAY_OUT}"
        )
    return (
        f"model '{hub_id}': {_meaning(failure.status, hub)}; if you have access, "
        f"{_access(failure.status, hub)}{_WAY_OUT}"
    )


def _meaning(status: int, hub: Endpoint) -> str:
    if status in {401, 403}:
        yours = (
            f", and your {'token is refused' if status == 401 else 'token has no access'}"
            if hub.authorization
            else ""
        )
        return f"gated, private or not on {hub.host} (HTTP {status}){yours}"
    return (
        f"not on {hub.host} or without a config.json (HTTP 404)"
        if status == 404
        else f"{hub.host} answered with HTTP {status}"
    )


def _access(status: int, hub: Endpoint) -> str:
    """How a token would be sent, where one could help."""
    if status not in {401, 403} or hub.authorization:
        return ""
    if switch := withheld_token():
        return f"unset {switch}, which keeps your token from being sent, or "
    return "set HF_TOKEN or run hf auth login, or "
