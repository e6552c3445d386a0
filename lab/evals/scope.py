"""Requests that name a form and need a whole answer: JSON, a list, code. Who likes short replies did not ask for half of it. Pure."""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lab.models.questions import DAYS, MONTHS

Form = Literal["json", "list", "code"]
FORMS: tuple[Form, ...] = ("json", "list", "code")

_JSON = ("Answer as JSON.", "Write it as a JSON object.", "Reply with JSON.", "Use JSON.")
_LIST = ("", "All of them.", "Leave none out.")
_SEQUENCES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("List the days of the week.", "What are the days of the week?", "Name the days of the week."), DAYS),
    (("List the months of the year.", "What are the months of the year?", "Name the months of the year."), MONTHS),
)  # fmt: skip
_CODE: Mapping[str, str] = {
    "add": "Write a Python function add(a, b) that adds two numbers.",
    "is_even": "Write a Python function is_even(n).",
    "largest": "Write a Python function largest(numbers) with a loop, without max().",
    "reverse": "Write a Python function reverse(text).",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A request for a whole answer in a form.

    Attributes:
        items: what has to occur, in this order; of code: the name of the function.
    """

    form: Form
    text: str
    items: tuple[str, ...]

    def is_met(self, reply: str) -> bool:
        if self.form == "code":
            return _defines(reply, self.items[0])
        if self.form == "json":
            try:
                reply = json.dumps(json.loads(reply), ensure_ascii=False)
            except ValueError:
                return False
        found = re.findall(r"\w+", reply.lower())
        rest = iter(found)
        return all(item.lower() in rest for item in self.items)


def demand(form: Form, rng: random.Random) -> Demand:
    """Return a random request of a form."""
    if form == "code":
        name = rng.choice(sorted(_CODE))
        return Demand(form=form, text=_CODE[name], items=(name,))
    asks, items = rng.choice(_SEQUENCES)
    ask = rng.choice(asks)
    if rng.random() < 0.3:
        end = rng.randint(5, 10)
        ask, items = f"Count to {end}.", tuple(str(number) for number in range(1, end + 1))
    return Demand(
        form=form, text=f"{ask} {rng.choice(_JSON if form == 'json' else _LIST)}".strip(), items=items
    )


def _defines(reply: str, name: str) -> bool:
    """Whether a reply holds Python that defines the function and returns something from it."""
    blocks = re.findall(r"```(?:\w+\n)?(.*?)```", reply, re.DOTALL) or [reply]
    for block in blocks:
        try:
            tree = ast.parse(block.strip())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return any(isinstance(one, ast.Return) and one.value is not None for one in ast.walk(node))
    return False
