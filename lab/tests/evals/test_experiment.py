"""A whole comparison: a scripted Patina, and the report of the runs."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cli.arguments import build_parser
from lab.evals.command import SMOKE_CONTROL, run_eval
from lab.evals.experiment import (
    Case,
    append_run,
    cases,
    find_run,
    held,
    parse_tried,
    read_runs,
    retention,
    run_case,
    unrelated_points,
    withdrawn,
)
from lab.evals.methods import METHODS, parse_methods
from lab.evals.metrics import Answer, EvalMeasures, Numbers, Probe
from lab.evals.report import COLUMNS, Cell, cell, compare, grouped, write_report
from lab.evals.simulated_user import Interaction, scenario
from lab.evals.systems import Cost, PromptMemory, SystemRequest
from lab.models.styles import PREFERENCES as SIX
from lab.tests.evals.scripted import KEY, ScriptedPatina, answer_to, concise_reply, serving, verbose_reply
from store.errors import ConfigError, JudgeError
from store.settings import read_settings
from store.values import Json
from trainer.plan import StepPlan

pytestmark = pytest.mark.slow

CASE = Case(
    method="combine", user="steady", preferences=("concise",), seed=0, interactions=12, mode="stack",
    measure_every=6, questions=6, undos=4, tools=2, tabs=2, again=0, elsewhere=0, scope=0, small_talk=0,
)  # fmt: skip


class IdleDetector:
    def interaction(self, count: int, interaction: Interaction, version: int) -> None:
        pass

    def measured(self, count: int, version: int, measures: EvalMeasures) -> None:
        pass


class Scripted:
    """Verbose until three complaints arrived, or while the prompt asks for it; obeys a system prompt that says "short"."""

    def __init__(self, *, learns: bool = True) -> None:
        self.cost = Cost()
        self.complaints = 0
        self.settled = 0
        self.asked: list[tuple[dict[str, Any], ...]] = []
        self._learns = learns

    @property
    def version(self) -> int:
        return self.complaints // 3 if self._learns else 0

    def _reply(self, messages: Any) -> Answer:
        system = messages[0]["content"] if messages[0]["role"] == "system" else ""
        first = next(message["content"] for message in messages if message["role"] == "user")
        last = messages[-1]["content"]
        is_short = (self.version or re.search("short|brief|concise|long", system)) and not re.search(
            "long|detail", last
        )
        text = concise_reply(first) if is_short else verbose_reply(first)
        return Answer(text=text, prompt_tokens=len(system) + len(last), completion_tokens=len(text))

    async def converse(self, requests: Any) -> list[Answer]:
        for request in requests:
            self.asked.append(request.messages)
            self.complaints += (
                len(request.messages) > 1
                and re.search("short|brief|long|wordy|fact", request.messages[-1]["content"]) is not None
            )
        return [self._reply(request.messages) for request in requests]

    async def probe(self, probes: Any, *, exact: bool) -> tuple[list[Answer], Numbers | None]:
        return [self._reply(probe.messages) for probe in probes], None

    async def wait_for_training(self, *, at_end: bool = False) -> None:
        self.settled += 1

    async def versions(self) -> list[Json]:
        return [{"version": 1, "state": "published", "reason": '3 complaints; "<b>shorter</b>"', "turns": 3}]


def played(case: Case = CASE, **options: Any) -> Json:
    return asyncio.run(run_case(case, Scripted(**options), IdleDetector()))


def test_a_run_is_measured_before_between_and_after_and_keeps_all_interactions() -> None:
    started, row = time.time(), played()
    assert [point["interactions"] for point in row["points"]] == [0, 6, 12]
    assert len(row["measured_at"]) == 3
    times = [started, *row["measured_at"], time.time()]
    assert times == sorted(times)
    assert [point["compliance"] for point in row["points"]] == [0.0, 1.0, 1.0]
    assert row["points"][1]["undone"] is None
    assert row["points"][2]["undone"] == 1.0
    assert len(row["readings"]) == 12
    assert row["until_satisfied"] is not None
    assert row["readings"][0]["violated"] == ["concise"]
    assert row["readings"][-1]["violated"] == []
    assert json.loads(json.dumps(row)) == row


def test_a_thorough_run_asks_for_opposites_and_tool_calls_in_between_as_well() -> None:
    row = played(replace(CASE, thorough=True))
    assert [point["undone"] for point in row["points"]] == [1.0, 1.0, 1.0]
    assert [point["tools"] for point in row["points"]] == [0.0, 0.0, 0.0]
    assert find_run([row], replace(CASE, thorough=True)) == row
    assert find_run([row], CASE) == row
    assert find_run([played()], replace(CASE, thorough=True)) is None


def test_a_system_that_does_not_learn_gives_a_flat_line() -> None:
    row = played(replace(CASE, method="none"), learns=False)
    assert {point["compliance"] for point in row["points"]} == {0.0}
    assert row["until_satisfied"] is None


def test_a_memory_helps_while_it_is_there_and_costs_context() -> None:
    memory = PromptMemory(Scripted(learns=False))
    row = asyncio.run(run_case(replace(CASE, method="memory"), memory, IdleDetector()))
    assert row["points"][-1]["compliance"] == 1.0
    assert row["without_memory"]["compliance"] == 0.0
    assert row["cost"]["context_tokens"] > 20
    assert memory.entries
    assert len(set(memory.entries)) == len(memory.entries)


def test_a_memory_holds_complaints_in_the_users_words_and_no_thanks() -> None:
    memory = PromptMemory(Scripted(learns=False))
    messages_sent: list[dict[str, Any]] = [{"role": "user", "content": "What is 2 plus 2?"}]
    asyncio.run(memory.converse([SystemRequest(conversation=1, messages=tuple(messages_sent))]))
    messages_sent += [
        {"role": "assistant", "content": "…"},
        {"role": "user", "content": "Too long, shorter please."},
    ]
    asyncio.run(memory.converse([SystemRequest(conversation=1, messages=tuple(messages_sent))]))
    messages_sent += [{"role": "assistant", "content": "4"}, {"role": "user", "content": "Great, thanks!"}]
    asyncio.run(memory.converse([SystemRequest(conversation=1, messages=tuple(messages_sent))]))
    assert len(memory.entries) == 1
    assert "shorter please" in memory.entries[0]


def test_what_is_left_of_an_earlier_wish_is_reported() -> None:
    who = scenario("arriving", ["concise", "no_emoji"])
    points = [
        {"interactions": at, "by_preference": {"concise": share, "no_emoji": 0.0}}
        for at, share in ((0, 0.1), (10, 0.8), (20, 0.6))
    ]
    assert retention(who, points) == pytest.approx(0.75)
    assert retention(scenario("steady", ["concise"]), points) is None


def test_unrelated_conversations_follow_the_teaching_and_are_measured_at_each_third() -> None:
    row = played(replace(CASE, user="retained", unrelated=9, tabs=1))
    assert [point["interactions"] for point in row["points"]] == [0, 6, 12, 15, 18, 21]
    assert {reading["about"] for reading in row["readings"][:12]} == {"style"}
    assert "style" not in {reading["about"] for reading in row["readings"][12:]}
    assert row["unrelated_points"] == {"taught": 1.0, "after": {"3": 1.0, "6": 1.0, "9": 1.0}, "kept": 1.0}
    assert row["points"][2]["undone"] is not None
    assert row["points"][-1]["tools"] is not None
    assert json.loads(json.dumps(row)) == row
    columns = {column.name: column.read(row) for column in COLUMNS}
    assert (columns["taught"], columns["⅓ on"], columns["⅔ on"], columns["kept"]) == (1.0, 1.0, 1.0, 1.0)
    assert played()["unrelated_points"] is None
    assert find_run([row], replace(CASE, user="retained", tabs=1)) is None
    assert find_run([row], replace(CASE, user="retained", unrelated=9, tabs=1)) == row


def test_what_comes_after_the_teaching_does_not_count_as_satisfied() -> None:
    case = replace(CASE, user="retained", interactions=2, unrelated=30, tabs=1, measure_every=0)
    subject = Scripted()
    subject.complaints = 3  # from the beginning all replies are as wished
    row = asyncio.run(run_case(case, subject, IdleDetector()))
    assert not any(reading["violated"] for reading in row["readings"])
    assert row["until_satisfied"] is None


def test_what_unrelated_conversations_leave_is_the_share_of_what_was_reached() -> None:
    points = [
        {"interactions": at, "compliance": share} for at, share in ((0, 0.1), (10, 0.8), (16, 0.6), (22, 0.2))
    ]
    assert unrelated_points(points, 10) == {"taught": 0.8, "after": {"6": 0.6, "12": 0.2}, "kept": 0.25}
    points[1]["compliance"] = 0.15
    assert unrelated_points(points, 10)["kept"] is None


def test_a_month_has_300_interactions_where_no_number_is_given() -> None:
    found = cases(
        parse_methods("combine"), ["steady", "month"], [("concise", "no_emoji", "plain")], (0,), mode="stack"
    )
    assert [case.interactions for case in found] == [40, 300]


def test_a_retained_user_is_followed_by_36_unrelated_conversations_where_no_number_is_given() -> None:
    def planned(unrelated: int | None) -> list[int]:
        found = cases(
            parse_methods("combine"), ["steady", "retained"], [("concise",)], (0,), unrelated=unrelated,
            interactions=4, mode="stack",
        )  # fmt: skip
        return [case.unrelated for case in found]

    assert planned(None) == [0, 36]
    assert planned(5) == [5, 5]


def test_the_first_and_the_last_measurement_also_look_at_repeated_wishes_forms_and_small_talk() -> None:
    row = played(replace(CASE, again=4, elsewhere=4, scope=3, small_talk=2))
    assert [point["elsewhere"] is None for point in row["points"]] == [False, True, False]
    assert [point["again"] is None for point in row["points"]] == [False, True, False]
    assert (row["points"][0]["again"], row["points"][-1]["again"]) == (0.5, 1.0)
    assert [set(point["scope"]) for point in row["points"]] == [
        {"json", "list", "code"},
        set(),
        {"json", "list", "code"},
    ]
    columns = {column.name: column for column in COLUMNS}
    assert columns["again ±"].read(row) == 0.5
    assert columns["small talk"].read(row) == 1.0
    assert columns["scope"].read(row) is None  # it could do none of it before
    before, after = {"json": 1.0, "list": 0.5, "code": 0.0}, {"json": 0.5, "list": 0.5, "code": 0.0}
    assert columns["scope"].read({"points": [{"scope": before}, {"scope": after}]}) == -0.25
    assert columns["small talk"].read({"points": [{}]}) is None  # of a folder from before


def test_wrong_corrections_are_looked_for_afterwards() -> None:
    row = played(replace(CASE, user="mixed", interactions=45, tabs=1, measure_every=0))
    claimed = [reading["claimed"] for reading in row["readings"] if reading["claimed"]]
    assert len(claimed) == 3
    assert row["points"][0]["claims"] is None
    assert row["points"][-1]["claims"] == 0.0


def test_a_month_reports_the_wish_that_is_held_worst_and_what_is_left_of_the_withdrawn_one() -> None:
    who = scenario("month", ["concise", "no_emoji", "plain"])
    points = [
        {"by_preference": {"concise": 0.1, "no_emoji": 0.2, "plain": 0.0}},
        {"by_preference": {"concise": 0.9, "no_emoji": 0.3, "plain": 0.7}},
    ]
    row = {"held": held(who, points), "withdrawn": withdrawn(who, points)}
    assert row == {"held": {"concise": 0.9, "plain": 0.7}, "withdrawn": {"no_emoji": 0.1}}
    columns = {column.name: column for column in COLUMNS}
    assert (columns["held"].read(row), columns["withdrawn ±"].read(row)) == (0.7, 0.1)
    steady = played()
    assert (steady["held"], steady["withdrawn"]) == (None, None)
    assert (columns["held"].read(steady), columns["withdrawn ±"].read(steady)) == (None, None)


def test_a_month_is_played_through() -> None:
    case = replace(
        CASE, user="month", preferences=("concise", "no_emoji", "plain"), interactions=60, measure_every=30
    )
    row = played(case)
    assert set(row["held"]) == {"concise", "plain"}
    assert "withdrawal" in {reading["about"] for reading in row["readings"]}
    assert [point["wants"] for point in row["points"]][-1] == ["concise", "plain"]


def test_runs_in_the_file_are_not_run_again_and_a_torn_line_is(tmp_path: Path) -> None:
    row = played()
    append_run(tmp_path, row)
    with (tmp_path / "runs.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"method": "rl", "se')
    append_run(tmp_path, played(replace(CASE, seed=1)))
    rows = read_runs(tmp_path)
    assert [row["seed"] for row in rows] == [0, 1]
    assert find_run(rows, CASE) == row
    assert find_run(rows, replace(CASE, interactions=13)) is None


def test_every_combination_is_run_a_round_of_all_methods_for_each_seed() -> None:
    found = cases(
        parse_methods("combine,baselines"), ["steady"], [("concise",)], (7, 8), interactions=4, mode="stack"
    )
    assert [(case.method, case.seed) for case in found] == [
        (name, seed) for seed in (7, 8) for name in ("combine", "none", "memory")
    ]
    with pytest.raises(ConfigError, match="unknown method"):
        parse_methods("grpo")


def test_numbers_of_open_conversations_are_compared_under_names_of_their_own() -> None:
    found = cases(
        parse_methods("combine"), ["steady"], [("concise",)], (0,), tabs=(4, 1), interactions=4, mode="stack"
    )
    assert [case.tabs for case in found] == [4, 1]
    rows = [{**played(), "tabs": tabs} for tabs in (4, 1)]
    (methods,) = grouped(rows).values()
    assert list(methods) == ["combine (tabs=4)", "combine (tabs=1)"]


def test_settings_are_tried_in_all_combinations_with_what_learns() -> None:
    tried = parse_tried(["anchors=0,4", "top-k=20"])
    found = cases(
        parse_methods("rl,none"), ["steady"], [("concise",)], (0,), tried, interactions=4, mode="stack"
    )
    assert [(case.method, dict(case.overrides)) for case in found] == [
        ("rl", {"anchors": "0", "top_k": "20"}),
        ("rl", {"anchors": "4", "top_k": "20"}),
        ("none", {}),
    ]
    with pytest.raises(ConfigError, match="--sweep warmth=1"):
        parse_tried(["warmth=1"])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_settings_the_trainer_understands(name: str) -> None:
    method = METHODS[name]
    plan = StepPlan.of(read_settings(dict(method.settings)))
    assert plan.method == (name if method.kind == "learn" else "combine")


def test_the_page_needs_no_network_and_shows_what_happened(tmp_path: Path) -> None:
    rows = [
        played(replace(CASE, seed=seed, method=method), learns=method == "combine")
        for seed in (0, 1)
        for method in ("combine", "none")
    ]
    write_report(tmp_path, rows)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#)|@import|<script""", page)
    assert "<svg" in page
    assert "&lt;b&gt;shorter&lt;/b&gt;" in page  # users' messages are escaped
    assert "from 0% to 100% of unseen questions" in page
    assert rows[0]["readings"][0]["words"].split()[0] in page
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 5
    assert len((tmp_path / "curves.csv").read_text().splitlines()) == 1 + 4 * 3
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| combine | 2 | 0.00 ± 0.00 | 1.00 ± 0.00 |" in markdown
    assert "| method | seeds | before | after | until 3 | facts |" in markdown


def test_a_change_that_rounds_to_nothing_has_no_sign() -> None:
    cell = Cell(mean=-0.004, low=-0.01, high=0.002, count=2, missing=0)
    assert (cell.text(2), cell.text(3)) == ("0.00 ± 0.01", "-0.004 ± 0.006")


def test_a_number_that_some_runs_lack_comes_with_the_count_of_those_that_have_it() -> None:
    rows = [played(), played(replace(CASE, seed=1), learns=False)]
    column = next(column for column in COLUMNS if column.name == "until 3")
    assert re.fullmatch(r"\d+ \(1 of 2\)", cell(column, rows).text(0))


def test_two_folders_are_compared_seed_by_seed(tmp_path: Path) -> None:
    for name, learns in (("a", False), ("b", True)):
        (tmp_path / name).mkdir()
        for seed in range(3):
            append_run(tmp_path / name, played(replace(CASE, seed=seed), learns=learns))
    console = Console(record=True, width=120, file=io.StringIO())
    assert compare(tmp_path / "a", tmp_path / "b", console) == 0
    table = console.export_text()
    assert re.search(r"after\s*│\s*0\.00\s*│\s*1\.00\s*│\s*\+1\.00", table)
    with pytest.raises(ConfigError, match="no runs"):
        compare(tmp_path / "a", tmp_path, console)


def arguments(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["eval", *words])


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--methods", "grpo"], "unknown method"),
        (["--preferences", "rude"], "unknown preference"),
        (["--users", "grumpy"], "unknown user"),
        (["--seeds", "0"], "at least 1"),
        (["--tool-requests", "0"], "--tool-requests must be at least 1"),
        (["--again", "-1"], "--again must be at least 0"),
        (["--tabs", "0"], "--tabs must be at least 1"),
        (["--first-seed", "-1"], "--first-seed must be at least 0"),
        (["--unrelated", "-1"], "--unrelated must be at least 0"),
        (["--users", "month"], "of three wishes"),
        (["--interactions", "0"], "--interactions must be at least 1"),
        (["--users", "mixed", "--user-model", "x"], "speaks of the wishes alone"),
        (["--base-url", "http://x", "--methods", "rl,opd", "--seeds", "1"], "one method"),
        (["--base-url", "http://x", "--methods", "rl"], "learns once"),
        (["compare", "a"], "compare A B"),
        (["report", "/nowhere"], "no runs"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_reported_in_a_sentence(words: list[str], wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=wrong):
        run_eval(read_settings({}), {}, arguments(*words, "--output", str(tmp_path / "out")))


def test_a_running_patina_is_examined_through_its_public_api_alone(tmp_path: Path) -> None:
    patina = ScriptedPatina(complaints_needed=2)
    with serving(patina.app()) as url:
        settings = read_settings({"api_key": KEY, "batch_size": 2})
        words = ["--base-url", url, "--methods", "combine,none,memory", "--seeds", "1", "--preferences", "concise",
                 "--interactions", "8", "--questions", "6", "--opposites", "4", "--tool-requests", "5", "--measure-every", "4",
                 "--output", str(tmp_path)]  # fmt: skip
        assert run_eval(settings, {}, arguments(*words)) == 0
        rows = {row["method"]: row for row in read_runs(tmp_path)}
        turns = len(patina.turns)
        assert run_eval(settings, {}, arguments(*words)) == 0
        assert len(patina.turns) == turns  # all of it was in the file
    assert list(rows) == ["none", "memory", "combine"]
    assert {(row["questions"], row["undos"], row["tools"]) for row in rows.values()} == {(6, 4, 5)}
    assert rows["none"]["points"][-1]["compliance"] == 0.0
    assert rows["combine"]["points"][0]["compliance"] == 0.0
    assert rows["combine"]["points"][-1]["compliance"] == 1.0
    assert set(patina.keys) == {f"Bearer {KEY}"}
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize(
    ("learner", "control", "code"), [(True, False, 0), (False, False, 1), (True, True, 1)]
)
def test_smoke_fails_when_nothing_or_the_control_is_learnt(
    learner: bool, control: bool, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scripted(environment: Any, case: Case, watch: Any, *, llm_user: Any = None) -> Json:
        return await run_case(case, Scripted(learns=control if case.method == "none" else learner), watch)

    monkeypatch.setattr("lab.evals.command.run_in", scripted)
    for _ in range(2):  # and a second time it is measured anew
        assert run_eval(read_settings({}), {}, arguments("--smoke", "--output", str(tmp_path))) == code
    assert len(read_runs(tmp_path / "smoke")) == 2


def test_full_is_every_method_with_five_seeds_and_a_wish_that_is_never_met_by_chance(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planned: list[Case] = []

    async def scripted(wanted: Any, environment: Any, folder: Path, arguments: Any) -> list[Json]:
        planned.extend(wanted)
        return [
            await run_case(replace(CASE, method=name), Scripted(), IdleDetector())
            for name in ("combine", "none")
        ]

    monkeypatch.setattr("lab.evals.command._run", scripted)
    assert run_eval(read_settings({}), {}, arguments("--full", "--output", str(tmp_path))) == 0
    assert {case.method for case in planned} == set(METHODS)
    assert {case.preferences for case in planned} == {("concise", "no_emoji"), *((name,) for name in SIX)}
    assert {case.seed for case in planned} == set(range(5))
    assert {(case.mode, case.interactions) for case in planned} == {("stack", 40)}


@pytest.mark.long_run
@pytest.mark.timeout(900)
def test_smoke_on_the_test_model_learns_and_its_control_stays_flat(tmp_path: Path) -> None:
    """`run.py eval --smoke` as a user runs it: one to two minutes of one core."""
    assert run_eval(read_settings({}), {}, arguments("--smoke", "--output", str(tmp_path))) == 0
    rows = {row["method"]: row for row in read_runs(tmp_path / "smoke")}
    first, last = rows["none"]["points"]
    assert {**first, "interactions": 0} == {**last, "interactions": 0}  # the same probes, the same weights


@pytest.mark.long_run
@pytest.mark.timeout(900)
def test_shuffled_feedback_teaches_nothing(tmp_path: Path) -> None:
    words = ["--methods", "combine", "--users", "shuffled", "--preferences", "spanish", "--seeds", "1",
             "--interactions", "24", "--questions", "48", "--measure-every", "0", "--output", str(tmp_path)]  # fmt: skip
    assert run_eval(read_settings({}), {}, arguments(*words)) == 0
    (row,) = read_runs(tmp_path)
    assert row["cost"]["published"] + row["cost"]["rejected"] >= 2
    assert row["points"][-1]["compliance"] - row["points"][0]["compliance"] < SMOKE_CONTROL


class Actor:
    """Plays a user who is never satisfied."""

    def __init__(self) -> None:
        self.wishes: list[tuple[str, ...]] = []

    async def react(self, wishes: Any, request: Any, reply: str) -> Any:
        from lab.evals.llm_user import read_reaction

        self.wishes.append(tuple(wishes))
        return read_reaction('Sure: {"content": false, "words": "I would like it shorter."}')


def test_a_model_may_find_the_words_while_rules_measure() -> None:
    actor = Actor()
    row = asyncio.run(run_case(CASE, Scripted(), IdleDetector(), llm_user=actor))
    assert {reading["words"] for reading in row["readings"]} == {"I would like it shorter."}
    assert set(actor.wishes) == {("concise",)}
    assert row["readings"][-1]["violated"] == []


@pytest.mark.parametrize("text", ["fine", '{"content": "yes", "words": "x"}', '{"content": true}', "{"])
def test_what_is_no_reaction_is_an_error(text: str) -> None:
    from lab.evals.llm_user import read_reaction

    with pytest.raises(JudgeError, match="no reaction"):
        read_reaction(text)


def test_the_playing_model_gets_the_wishes_and_the_whole_conversation() -> None:
    from lab.evals.llm_user import play
    from lab.evals.simulated_user import SimulatedUser

    person = SimulatedUser(scenario("steady", ["concise"]), 0, planned=2)
    system, messages_sent = play(["concise"], person.request(), "It is Paris.")
    assert "Very short answers" in system["content"]
    assert person.request().messages[0]["content"] in messages_sent["content"]
    assert messages_sent["content"].endswith("Assistant: It is Paris.")


def test_scripted_answers_are_answers() -> None:
    assert answer_to("nothing known") == "unknown"
    assert Probe(kind="plain", text="x", seed=0, prefix="p").messages[0]["role"] == "system"
