"""``--explain``: each term with its formula, the numbers that went in, what the formula says it counts,
and its source.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass

from planner.domain.prediction import Prediction
from planner.domain.term import HostTerm, Term, TimeTerm
from planner.report.prediction.subject import terms_at_peak
from planner.report.render.layout import Block, Column, Grid, Note, Row, Section
from planner.report.render.numbers import duration, gib

_LABEL = re.compile(r"\b(Formula|Source|Ignored)s?:\s")


@dataclass(frozen=True, slots=True)
class FormulaText:
    """What the docstring of a formula says: what it counts, the formula in words, what it leaves out,
    and its source.
    """

    summary: str = ""
    rule: str = ""
    ignored: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One term explained.  ``amount`` is formatted with its unit;
    ``detail`` holds the numbers of the formula.
    """

    topic: str
    label: str
    amount: str
    formula: str
    detail: str
    text: FormulaText


def formula_text(reference: str) -> FormulaText:
    """What the docstring of the function ``reference`` (``module:function``) says; of the program,
    that of its file.

    A file of ``planner.program`` writes one part of the step down, by functions that return tensors and not
    bytes.  Empty where the function or its docstring does not exist: a report is not the place to fail over
    that.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name.startswith("planner.") or not attribute:
        return FormulaText()
    try:
        module = importlib.import_module(module_name)
        named = getattr(module, attribute)
        doc = inspect.getdoc(module if module_name.startswith("planner.program.") else named) or ""
    except (ImportError, AttributeError):
        return FormulaText()
    summary, *rest = (_LABEL.split(paragraph)[0] for paragraph in doc.split("\n\n"))
    # Where no formula is labelled, what follows the summary says how the amount comes about.
    rule = _labelled(doc, "Formula") or " ".join(rest)
    return FormulaText(
        _plain(summary), _plain(rule), _plain(_labelled(doc, "Ignored")), _plain(_labelled(doc, "Source"))
    )


def explanations(prediction: Prediction, *, at_peak: bool = False) -> tuple[Explanation, ...]:
    """Every GPU term, host term and part of the step that is not zero, in the order of the prediction;
    ``at_peak``: of the GPU only what is alive at the peak, as its table lists it.
    """
    terms = terms_at_peak(prediction) if at_peak else prediction.memory.terms
    gpu = (_explain("GPU memory", term.label, term) for term in terms if float(term.n_bytes) >= 1)
    host = (
        _explain("Host RAM", term.name, term) for term in prediction.host.terms if float(term.n_bytes) >= 1
    )
    parts = prediction.time.terms if prediction.time else ()
    time = (_explain("Step time", part.name, part) for part in parts if float(part.seconds) > 0)
    return (*gpu, *host, *time)


def formula_section(prediction: Prediction, *, at_peak: bool = False) -> Section:
    """The explanations as a section, one block for each formula with all terms that it computes."""
    groups: dict[tuple[str, str], list[Explanation]] = {}
    for each in explanations(prediction, at_peak=at_peak):
        groups.setdefault((each.topic, each.formula), []).append(each)
    blocks: list[Block] = []
    for (topic, formula), group in groups.items():
        text = group[0].text
        rows = [(each.label, f"{each.amount}{f' = {each.detail}' if each.detail else ''}") for each in group]
        rows += [("function", formula), ("counts", text.summary), ("formula", text.rule)]
        rows += [("ignored", text.ignored), ("source", text.source)]
        blocks += [Note("")] if blocks else []
        blocks.append(Note(f"{topic}: {'; '.join(dict.fromkeys(each.label for each in group))}", "strong"))
        blocks.append(Grid((Column(""), Column("")), tuple(Row(row) for row in rows if row[1])))
    return Section("Formulas", tuple(blocks))


def _explain(topic: str, label: str, term: Term | HostTerm | TimeTerm) -> Explanation:
    amount = duration(term.seconds) if isinstance(term, TimeTerm) else f"{gib(term.n_bytes)} GiB"
    return Explanation(
        topic, label.replace("_", " "), amount, term.formula, term.detail, formula_text(term.formula)
    )


def _labelled(doc: str, label: str) -> str:
    """Text after ``label:`` up to the end of its paragraph or the next label."""
    for paragraph in doc.split("\n\n"):
        parts = _LABEL.split(paragraph)
        # split() with one group gives text, label, text, label, text...
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name == label:
                return text
    return ""


def _plain(text: str) -> str:
    """One line without the markup of docstrings."""
    return " ".join(re.sub(r":[a-z]+:`([^`]*)`", r"\1", text).replace("``", "").split())
