"""``versions``: packages of the stack at other versions, and which facts that changes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.catalog.stacks import load_stack
from planner.domain.origin import stack_default
from planner.domain.stack import Stack
from planner.errors import UsageError, show
from planner.intake.given.ledger import Ledger

# What decides the memory of a job under ZeRO, which names its versions where nobody gave them.
_OF_ZERO = ("bitsandbytes", "deepspeed")
# Names of packages as PyPI writes them (PEP 503).
_SEPARATORS = re.compile(r"[-_.]+")


def resolve_versions(ledger: Ledger, stack: Stack) -> Stack:
    """``stack`` with the versions that were given, entered with what they change.

    A record states its whole environment, so that packages which the stack does not run say nothing there.

    Raises:
        UsageError: not ``name==version``, or a package that the stack does not run.
        NotModelledError: a version older than what was read.
    """
    given = ledger.request.values.get("versions")
    if given is None:
        return stack
    pairs = dict(_pair(text) for text in given.value)
    if ledger.request.record_id is not None:
        runs = dict(stack.versions)
        pairs = {package: version for package, version in pairs.items() if package in runs}
    if not pairs:
        return stack
    other = load_stack(stack.id, tuple(sorted(pairs.items())))
    ledger.enter("versions", tuple(map("==".join, pairs.items())), given.origin, _note(stack, other))
    return other


def enter_own_versions(ledger: Ledger, stack: Stack) -> None:
    """Enter the versions that a job under ZeRO takes from its stack."""
    own = tuple(f"{package}=={version}" for package, version in stack.versions if package in _OF_ZERO)
    ledger.enter("versions", own, stack_default(stack.id))


def _note(stack: Stack, other: Stack) -> str:
    """Which facts of ``stack`` are others in ``other``, as ``name=value``."""
    before, after = stack.facts, other.facts
    names = dict.fromkeys((*after, *before))
    changed = [f"{name}={_text(_at(after, name))}" for name in names if _at(before, name) != _at(after, name)]
    return f"changes {', '.join(changed)}" if changed else f"no known fact of {stack.id} changes"


def _at(facts: Mapping[str, object], name: str) -> object:
    """A fact; where nothing is given for quantised bases, what holds for all."""
    return facts.get(name, facts.get(name.replace("quantized.", "defaults.")))


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pair(text: str) -> tuple[str, str]:
    package, separator, version = text.partition("==")
    if not (separator and package.strip() and version.strip()):
        raise UsageError(
            f"versions must be written name==version, such as deepspeed==0.16.4, but one is '{show(text)}'"
        )
    return _SEPARATORS.sub("-", package.strip().lower()), version.strip()
