"""The check whether a model calls tools that its template does not show."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from serving.openai_server.schemas import RequestError
from serving.openai_server.tool_check import CASES, CallCase, ToolCheck


def call_of(case: CallCase) -> str:
    return f'<tool_call>\n{{"name": "{case.name}", "arguments": {{"x": "{case.argument.title()}"}}}}\n</tool_call>'


async def finished(check: ToolCheck) -> ToolCheck:
    for _ in range(500):
        if check.is_done:
            break
        await asyncio.sleep(0.01)
    return check


def test_a_case_is_passed_by_the_one_right_call() -> None:
    case = CASES[0]
    assert case.is_passed(call_of(case))
    assert case.is_passed(call_of(case).removesuffix("</tool_call>"))
    assert not case.is_passed(call_of(case) * 2)
    assert not case.is_passed("It is sunny in Oslo.")
    assert not case.is_passed(call_of(case).replace("Oslo", "Lima"))
    plain = next(case for case in CASES if not case.name)
    assert plain.is_passed("5.")
    assert not plain.is_passed(call_of(case))


async def test_a_model_that_calls_passes_and_is_not_asked_again(tmp_path: Path) -> None:
    asked = []

    async def ask(case: CallCase) -> str:
        asked.append(case)
        return call_of(case) if case.name else "No."

    file = tmp_path / "checks.json"
    check = ToolCheck(file, lambda: "digest")
    assert "not known yet" in check.sentence()
    check.start(ask)
    check.start(ask)  # while it runs
    assert (await finished(check)).is_passed
    assert len(asked) == len(CASES)
    again = ToolCheck(file, lambda: "digest")
    again.start(ask)
    assert (await finished(again)).is_passed
    assert len(asked) == len(CASES)
    other = ToolCheck(file, lambda: "another model")
    other.start(ask)
    await finished(other)
    assert len(asked) == 2 * len(CASES)
    assert len(json.loads(file.read_text())) == 2


async def test_a_model_that_only_talks_fails_after_two_cases() -> None:
    asked = []

    async def ask(case: CallCase) -> str:
        asked.append(case)
        return "I cannot look that up. "

    check = ToolCheck()
    check.start(ask)
    assert not (await finished(check)).is_passed
    assert len(asked) == 2
    assert check.sentence() == (
        "its chat template shows none, and by Patina's own prompt it passed 0 of 2 checks: optional tools are left out"
    )


async def test_a_check_that_an_error_ended_runs_again_later() -> None:
    fails = True

    async def ask(case: CallCase) -> str:
        if fails:
            raise RequestError("the engine is stopping", status=503)
        return call_of(case) if case.name else "No."

    check = ToolCheck()
    check.start(ask)
    await asyncio.sleep(0.05)
    assert not check.is_done
    fails = False
    check.start(ask)
    assert (await finished(check)).is_passed


async def test_a_damaged_file_of_results_is_written_anew(tmp_path: Path) -> None:
    async def ask(case: CallCase) -> str:
        return "No. "

    file = tmp_path / "checks.json"
    file.write_text("{broken")
    check = ToolCheck(file)
    check.start(ask)
    await finished(check)
    assert len(json.loads(file.read_text())) == 1
