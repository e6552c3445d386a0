"""The house, checked: floors, doors, and who may touch what. Imports inside functions count."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: room -> rooms it may import from. Lower never sees higher; the three workers never see each other.
DOORS = {
    "store": {"store"},
    "migrations": {"migrations", "store"},
    "serving": {"serving", "store"},
    "proxy": {"proxy", "serving", "store"},
    "scorers": {"scorers", "serving", "store"},
    "trainer": {"trainer", "serving", "store"},
    "models": {"models", "trainer"},  # its recipe teaches the hindsight wording, see MODELS_TAKES
    "evals": {"evals", "models", "trainer", "scorers", "proxy", "serving", "store", "migrations"},
    "bench": {"bench", "evals", "models", "trainer", "scorers", "proxy", "serving", "store", "migrations"},
    "cli": {"cli", "evals", "migrations", "store", "serving"},
    "scripts": {"scripts"},
    "run": {"cli"},
}
#: The one thing the model's recipe may know of the trainer.
MODELS_TAKES = {"trainer.hindsight"}

#: library -> rooms or modules that may import it.
OWNERS = {
    "sqlalchemy": {"store", "migrations"},
    "alembic": {"migrations"},
    "aiohttp": {"serving", "bench.passthrough"},
    "starlette": {"proxy", "serving.dialect", "bench.passthrough"},
    "uvicorn": {"proxy", "serving.dialect.serve", "bench.passthrough"},
    "litellm": {"scorers"},
    "torch": {"trainer", "serving.embedded", "models", "bench", "evals"},
    "transformers": {"trainer", "serving.embedded", "serving.tinker", "models", "bench", "evals"},
    "peft": {"trainer", "serving.embedded", "models", "bench"},
    "tinker": {"serving.tinker", "trainer.tinker"},
    "openai": {"evals", "bench"},
    "matplotlib": {"evals", "bench"},
    "rich": {"cli", "evals", "bench"},
    "pydantic": {"store.settings", "serving.dialect.wire"},
    "pydantic_settings": {"store.settings"},
}

#: Modules that decide without touching the world.
SANS_IO = {
    "store.errors",
    "store.lifecycle",
    "store.values",
    "store.hashing",
    "store.texts",
    "serving.dialect.detokenize",
    "serving.dialect.engine",
    "serving.dialect.text",
    "serving.dialect.toolcalls",
    "serving.dialect.values",
    "serving.dialect.wire",
    "serving.tinker.names",
    "serving.vllm.colocate",
    "serving.vllm.facts",
    "serving.vllm.flags",
    "serving.vllm.hold",
    "serving.vllm.probe",
    "proxy.canonical",
    "proxy.linking",
    "proxy.classify",
    "proxy.clients",
    "proxy.sse",
    "proxy.chunks",
    "proxy.earlier",
    "proxy.splice",
    "proxy.encoding",
    "proxy.cors",
    "proxy.wire",
    "proxy.words",
    "proxy.ours",
    "proxy.drafts",
    "proxy.literals",
    "scorers.base",
    "scorers.lexicon",
    "scorers.prompts",
    "scorers.reactions",
    "scorers.rules",
    "scorers.parse",
    "scorers.hints",
    "trainer.hindsight",
    "trainer.advantages",
    "trainer.replay",
    "evals.users",
    "evals.habits",
    "evals.metrics",
    "evals.people",
    "evals.preferences",
    "evals.problems",
}
IO = {
    "asyncio",
    "os",
    "io",
    "pathlib",
    "socket",
    "threading",
    "subprocess",
    "sqlalchemy",
    "aiohttp",
    "starlette",
    "uvicorn",
    "litellm",
    "torch",
    "transformers",
    "peft",
}


@cache
def files() -> dict[str, Path]:
    """Every module of ours but the tests, by dotted name."""
    found = {}
    for room in DOORS:
        top = ROOT / f"{room}.py"
        for path in [top] if top.exists() else sorted((ROOT / room).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imports(path: Path) -> set[str]:
    """Every module named by an import anywhere in the file, also inside functions; absolute imports only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: absolute imports only"
            assert node.module is not None
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@cache
def graph() -> dict[str, frozenset[str]]:
    return {name: frozenset(imports(path)) for name, path in files().items()}


def ours() -> dict[str, set[str]]:
    known = graph()
    return {name: {target for target in targets if target in known} for name, targets in known.items()}


def test_every_folder_with_python_is_a_room_with_doors() -> None:
    rooms = {p.parent.name for p in ROOT.glob("*/*.py")} - {"tests"}
    assert {room for room in rooms if not room.startswith(".")} <= set(DOORS)


def test_there_are_no_cycles() -> None:
    edges = {
        # A package's __init__ is imported with any module of it; what counts is what a module names.
        name: {target for target in targets if target != name and not name.startswith(target + ".")}
        for name, targets in ours().items()
    }
    tuple(TopologicalSorter(edges).static_order())  # raises CycleError


def test_doors_open_downwards_only() -> None:
    wrong = [
        (name, target)
        for name, targets in ours().items()
        for target in targets
        if target.split(".")[0] not in DOORS[name.split(".")[0]]
    ]
    assert wrong == []


def test_the_models_recipe_knows_nothing_of_the_trainer_but_the_hindsight_wording() -> None:
    taken = {
        target
        for name, targets in ours().items()
        if name.split(".")[0] == "models"
        for target in targets
        if target.startswith("trainer.")
    }
    assert taken <= MODELS_TAKES


@pytest.mark.parametrize("library", OWNERS)
def test_each_library_has_its_owners(library: str) -> None:
    users = {
        name
        for name, targets in graph().items()
        if any(target.split(".")[0] == library for target in targets)
    }
    strangers = {
        name
        for name in users
        if not any(name == owner or name.startswith(owner + ".") for owner in OWNERS[library])
    }
    assert strangers == set()


@pytest.mark.parametrize("module", sorted(SANS_IO))
def test_the_core_is_sans_io(module: str) -> None:
    targets = graph()[module]
    assert {target.split(".")[0] for target in targets} & IO == set()
    others = {target for target in targets if target in files()} - {
        "store",
        "proxy",
        "scorers",
        "trainer",
        "evals",
    }
    impure = {name for name in others if {t.split(".")[0] for t in graph()[name]} & IO}
    assert impure == set()


def test_only_the_settings_read_the_environment() -> None:
    users = {
        name
        for name, path in files().items()
        if "os.environ" in (text := path.read_text(encoding="utf-8")) or "getenv" in text
    }
    assert users <= {"store.settings"}


def test_errors_are_never_swallowed_whole() -> None:
    """A handler for everything either raises again or says what it does with the error."""
    wrong = []
    for name, path in files().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ExceptHandler):
                continue
            catches_all = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            )
            does_nothing = all(isinstance(s, ast.Pass | ast.Continue) for s in node.body)
            if catches_all and does_nothing:
                wrong.append(f"{name}:{node.lineno}")
    assert wrong == []
