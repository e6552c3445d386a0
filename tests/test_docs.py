"""The documents: their size, their links, their language, and that what they name exists."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from cli.arguments import build_parser, given_settings
from proxy.endpoints import ENDPOINTS, FEEDBACK_FIELDS, REQUEST_HEADERS, RESPONSE_HEADERS
from scripts.generate_reference import FOLDER, PAGES, render
from store.drop_reasons import REMEDIES, SENTENCES
from store.lifecycle import DropReason
from store.schema import TRAJECTORY_COLUMNS
from store.settings import read_settings
from store.version import VERSION

ROOT = Path(__file__).parent.parent
GENERATED = {FOLDER / name for name in PAGES}
DOCS = sorted((ROOT / "docs").rglob("*.md"))
RESEARCH = sorted((ROOT / "lab" / "research").glob("*.md"))
AT_THE_ROOT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
BESIDE_THE_CODE = sorted(ROOT.glob("[!.]*/**/README.md"))
ALL = sorted({*AT_THE_ROOT, *DOCS, *RESEARCH, *BESIDE_THE_CODE})

#: Words of the project's past that a newcomer cannot know, and words that hide who acts.
PRIVATE = re.compile(
    r"\b(pupils?|jury|house|houses|workshops?|doors?|whoever|somebody|nobody|told|said)\b", re.IGNORECASE
)
CODE = re.compile(r"```.*?```|`[^`\n]*`", flags=re.DOTALL)
#: Flags of other programs that a guide names.
FLAGS_OF_CLIENTS = {"--openai-api-base"}
#: A file or folder of this project, as the text names it: `proxy/app.py`, `trainer/tinker/`.
PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)*/?)`")


def words(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").split())


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_readme_has_at_most_900_words() -> None:
    assert words(ROOT / "README.md") <= 900


def test_architecture_has_at_most_1800_words() -> None:
    assert words(ROOT / "docs" / "architecture.md") <= 1800


def test_the_documents_have_at_most_12000_words_without_the_generated_reference() -> None:
    assert sum(words(path) for path in DOCS if path not in GENERATED) <= 12_000


@pytest.mark.parametrize("path", ALL, ids=relative)
def test_every_relative_link_resolves(path: Path) -> None:
    text = CODE.sub("", path.read_text(encoding="utf-8"))
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    inside = [target.partition("#")[0] for target in targets if not re.match(r"https?:|#", target)]
    assert [target for target in inside if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", ALL, ids=relative)
def test_no_private_word_occurs(path: Path) -> None:
    text = CODE.sub("", path.read_text(encoding="utf-8"))
    assert [match[0] for match in PRIVATE.finditer(text)] == []


@pytest.mark.parametrize("name", PAGES)
def test_the_generated_reference_is_what_the_code_generates(name: str) -> None:
    """Update with ``python -m scripts.generate_reference``."""
    assert (FOLDER / name).read_text(encoding="utf-8") == render(name)


def test_every_endpoint_and_header_of_the_reference_is_used_by_the_proxy() -> None:
    sources = {
        path.name: path.read_text(encoding="utf-8")
        for package in ("proxy", "wire")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }
    tables = sources.pop("endpoints.py")
    used = "\n".join(sources.values())
    names = re.findall(r"^([A-Z_]+) = Endpoint\(", tables, flags=re.MULTILINE)
    assert len(names) == len(ENDPOINTS)
    assert [name for name in names if not re.search(rf"\b{name}\b", sources["app.py"])] == []
    assert [name for name in [*REQUEST_HEADERS, *RESPONSE_HEADERS] if f'b"{name}"' not in used] == []
    assert [name for name in FEEDBACK_FIELDS if f'"{name}"' not in used] == []
    known = set(re.findall(r'b"(x-(?:patina|turn|session|request)-[a-z]+)"', used))
    assert known == {*REQUEST_HEADERS, *RESPONSE_HEADERS}


def test_the_sql_reference_has_the_columns_of_the_view_in_their_order() -> None:
    text = (FOLDER / "sql-view.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)) == TRAJECTORY_COLUMNS


def test_every_drop_reason_has_a_sentence_and_each_remedy_a_reason() -> None:
    assert set(SENTENCES) == set(DropReason)
    assert set(REMEDIES) < set(DropReason)


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_path_that_is_named_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = {path for path in PATH.findall(text) if "/" in path or path.endswith((".py", ".md"))}
    assert named
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_every_document_that_the_code_names_exists() -> None:
    sources = [path for path in ROOT.glob("[!.]*/**/*.py") if path.relative_to(ROOT).parts[0] != "tests"]
    named = {
        (relative(path), name)
        for path in sources
        for name in re.findall(r"\b(?:docs|lab/research)/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert named
    assert sorted((path, name) for path, name in named if not (ROOT / name).exists()) == []


def test_the_research_index_lists_every_note_once() -> None:
    index = (ROOT / "lab" / "research" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"\(([\w-]+\.md)\) \|$", index, flags=re.MULTILINE)
    assert sorted(listed) == [path.name for path in RESEARCH if path.name != "README.md"]


def test_each_release_in_the_changelog_fits_a_screen() -> None:
    releases = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## [")[1:]
    assert {one.split("]")[0]: one.count("\n") for one in releases if one.count("\n") > 40} == {}


def test_the_newest_release_of_the_changelog_is_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\d\S*)\]", text, flags=re.MULTILINE)[0] == VERSION


def test_the_readme_leads_to_every_document() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [relative(path) for path in DOCS if f"({relative(path)})" not in text] == []


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "SECURITY.md", *DOCS], ids=relative)
def test_every_flag_that_stands_by_itself_in_a_document_exists(path: Path) -> None:
    named = re.findall(r"`(--[a-z][a-z0-9-]*)", path.read_text(encoding="utf-8"))
    assert sorted(set(named) - flags(build_parser()) - FLAGS_OF_CLIENTS) == []


def flags(parser: argparse.ArgumentParser) -> set[str]:
    found: set[str] = set()
    for action in parser._actions:
        found.update(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            found.update(*(flags(command) for command in action.choices.values()))
    return found


def command_lines() -> list[str]:
    found = []
    for path in DOCS:
        for block in re.findall(r"```(?:sh)?\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            found += [line.split("  #")[0].split(" # ")[0].strip() for line in lines if "run.py" in line]
    return sorted(set(found))


@pytest.mark.parametrize("line", command_lines())
def test_every_run_py_line_of_the_documents_is_a_valid_command_line(line: str) -> None:
    arguments = shlex.split(line.partition("run.py")[2])
    assert read_settings(given_settings(build_parser().parse_args(arguments)))


def test_every_module_that_a_document_runs_exists() -> None:
    named = {
        module
        for path in [*DOCS, *AT_THE_ROOT]
        for module in re.findall(r"python -m ([\w.]+)", path.read_text(encoding="utf-8"))
    }
    assert sorted(module for module in named if importlib.util.find_spec(module) is None) == []
