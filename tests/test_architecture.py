"""Layers, owners of libraries, and pure modules. Imports inside functions count."""

import ast
import gc
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from conftest import LONGEST

ROOT = Path(__file__).parent.parent

#: package -> packages it may import. A lower layer never imports a higher one; proxy, recorder, scorers and trainer never import each other.
LAYERS = {
    "store": {"store"},
    "migrations": {"migrations", "store"},
    "telemetry": {"telemetry", "store"},
    "wire": {"wire", "store"},
    "serving": {"serving", "wire", "store"},
    "proxy": {"proxy", "serving", "wire", "store"},
    "recorder": {"recorder", "telemetry", "wire", "store"},
    "scorers": {"scorers", "serving", "store"},
    "trainer": {"trainer", "serving", "wire", "store"},
    # of recorder and trainer only MODULES_ALLOWED
    "dashboard": {"dashboard", "serving", "recorder", "telemetry", "trainer", "wire", "store"},
    # of proxy, recorder and trainer only MODULES_ALLOWED
    "cli": {"cli", "dashboard", "proxy", "recorder", "scorers", "trainer", "migrations", "serving", "wire", "store"},
    "scripts": {"scripts", "cli", "proxy", "store"},  # what the generated reference is made from
    "deploy": {"trainer", "store"},  # of trainer only MODULES_ALLOWED
    "run": {"cli"},
}  # fmt: skip
#: The laboratory imports every package. None imports it, or the tests: no layer names them.
LAYERS["lab"] = {"lab", *LAYERS}
#: (package, package) -> the only modules of the second that the first may import.
MODULES_ALLOWED = {
    ("deploy", "trainer"): {"trainer.remote.modal_connection", "trainer.remote.training_host"},
    ("cli", "proxy"): {"proxy.auth", "proxy.client_names"},
    ("cli", "recorder"): {"recorder.linking", "recorder.turn_recorder", "recorder.turns"},
    ("cli", "trainer"): {"trainer.removal", "trainer.version_matrix"},
    ("cli", "dashboard"): {"dashboard.sign_in"},
    ("dashboard", "recorder"): {"recorder.linking"},
    ("dashboard", "trainer"): {"trainer.gate_bounds"},
}  # fmt: skip

#: library -> packages or modules that may import it.
OWNERS = {
    "sqlalchemy": {"store", "migrations"},
    "alembic": {"migrations"},
    "aiohttp": {"serving", "lab.bench.passthrough"},
    "jinja2": {"dashboard", "serving.openai_server.chat_template"},
    "starlette": {"dashboard", "proxy", "serving.openai_server", "lab.bench.passthrough"},
    "uvicorn": {
        "dashboard",
        "proxy",
        "serving.openai_server.quiet_server",
        "serving.openai_server.serve",
        "lab.bench.passthrough",
    },
    "litellm": {"scorers"},
    "torch": {"trainer", "serving.embedded", "serving.models.convert", "lab"},
    "transformers": {
        "trainer",
        "serving.embedded",
        "serving.llamacpp.model",
        "serving.models.convert",
        "serving.tinker",
        "lab",
    },
    "gguf": {"serving.llamacpp.gguf_adapter", "serving.models.convert"},
    "llama_cpp": {"serving.llamacpp.library"},
    "peft": {"trainer", "serving.embedded", "lab"},
    "llguidance": {"serving.openai_server.grammar"},
    "tinker": {"serving.tinker", "trainer.tinker"},
    "openai": {"lab"},
    "matplotlib": {"lab"},
    "rich": {"cli", "lab"},
    "brotli": {"wire.content_encoding"},
    "cryptography": {"store.signing", "scripts.verify_receipt"},
    "zstandard": {"wire.content_encoding"},
    "modal": {"deploy", "trainer.remote.modal_connection"},
    "pydantic": {
        "lab.clients.drivers",
        "store.learning",
        "store.settings",
        "serving.openai_server.schemas",
        "trainer.remote.messages",
    },
}

#: Pure modules: no files, sockets, processes or models.
SANS_IO = {
    "store.errors",
    "store.lifecycle",
    "store.policies",
    "store.values",
    "store.hashing",
    "store.hosts",
    "store.texts",
    "store.wish_states",
    "serving.openai_server.detokenize",
    "serving.openai_server.engine",
    "serving.openai_server.token_text",
    "serving.openai_server.toolcalls",
    "serving.openai_server.values",
    "serving.openai_server.structured",
    "serving.openai_server.schemas",
    "serving.tinker.model_names",
    "serving.vllm.memory_plan",
    "serving.vllm.model_facts",
    "serving.vllm.flags",
    "serving.vllm.gpu_arbiter",
    "serving.vllm.capability_probe",
    "recorder.canonical",
    "recorder.lazy",
    "recorder.linking",
    "wire.classify",
    "wire.evidence",
    "recorder.finders",
    "recorder.kinds",
    "recorder.turn_index",
    "proxy.client_names",
    "wire.sse",
    "wire.chunk_template",
    "wire.prefix_cache",
    "wire.json_splice",
    "wire.content_encoding",
    "dashboard.charts",
    "dashboard.damage",
    "proxy.endpoints",
    "proxy.pages",
    "proxy.cors",
    "wire.chat_request",
    "wire.user_text",
    "wire.framework_text",
    "wire.line_text",
    "wire.wish_text",
    "wire.regex_prefilter",
    "wire.headers",
    "recorder.turns",
    "wire.captured_exchange",
    "proxy.issued",
    "proxy.api_error",
    "proxy.auth",
    "proxy.feedback",
    "wire.redaction",
    "wire.api_translation",
    "wire.chat_reply",
    "wire.error_codes",
    "wire.event_synthesizer",
    "wire.messages_api.reply",
    "wire.messages_api.request",
    "wire.responses_api.items",
    "wire.responses_api.reply",
    "wire.responses_api.request",
    "proxy.item_pages",
    "proxy.recent_turns",
    "wire.reply_assembly",
    "wire.reply_strip",
    "recorder.text_overlap",
    "scorers.base",
    "scorers.features",
    "scorers.lexicon",
    "scorers.prompts",
    "scorers.reactions",
    "scorers.parse",
    "scorers.hints",
    "trainer.gate_bounds",
    "trainer.advantages",
    "trainer.sequential_rates",
    "trainer.canary_release",
    "store.canary_arms",
    "lab.evals.metrics",
    "lab.evals.simulated_user",
    "lab.evals.preferences",
    "lab.evals.problems",
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

#: Limits of a function; a nested function counts as part of the one around it.
MAX_FUNCTION_LINES = 80
MAX_COMPLEXITY = 15


@cache
def files() -> dict[str, Path]:
    """Return every module of the project but the tests, by dotted name."""
    found = {}
    tests = ROOT / "lab" / "tests"
    for package in LAYERS:
        top = ROOT / f"{package}.py"
        for path in [top] if top.exists() else sorted((ROOT / package).rglob("*.py")):
            if path.is_relative_to(tests):
                continue
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


@cache
def parse(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    gc.freeze()  # with a million nodes, each full collection takes .8 s, in whatever test it comes
    return tree


def imports(path: Path) -> set[str]:
    """Return every module that the file imports, also inside functions; absolute imports only."""
    found = set()
    for node in ast.walk(parse(path)):
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


@pytest.fixture(scope="module", autouse=True)
def parsed() -> None:
    """Parse all files once, outside the time of the first test."""
    graph()
    for path in measured():
        parse(path)


def test_every_folder_with_python_is_a_package_with_a_layer() -> None:
    packages = {p.parent.name for p in ROOT.glob("*/*.py")} - {"tests"}
    assert {package for package in packages if not package.startswith(".")} <= set(LAYERS)


def test_there_are_no_cycles() -> None:
    edges = {
        # A package's __init__ is imported with any module of it; what counts is what a module names.
        name: {target for target in targets if target != name and not name.startswith(target + ".")}
        for name, targets in ours().items()
    }
    tuple(TopologicalSorter(edges).static_order())  # raises CycleError


def test_imports_go_to_lower_layers_only() -> None:
    wrong = [
        (name, target)
        for name, targets in graph().items()
        for target in targets
        if target.split(".")[0] in {*LAYERS, "tests"} - LAYERS[name.split(".")[0]]
    ]
    assert wrong == []


@pytest.mark.parametrize(("importer", "imported"), MODULES_ALLOWED)
def test_some_packages_may_import_only_named_modules_of_another(importer: str, imported: str) -> None:
    found = {
        target
        for name, targets in ours().items()
        if name.split(".")[0] == importer
        for target in targets
        if target.startswith(f"{imported}.")
    }
    assert found <= MODULES_ALLOWED[importer, imported]


def test_a_name_is_imported_from_the_module_that_defines_it() -> None:
    """A re-export would let a package reach what the layers forbid."""
    known = files()
    trees = {name: parse(path) for name, path in known.items()}
    taken = {
        name: {alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        for name, tree in trees.items()
    }  # fmt: skip
    wrong = [
        f"{name}: {alias.name} of {node.module}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in known
        for alias in node.names
        if alias.name in taken[node.module] and f"{node.module}.{alias.name}" not in known
    ]
    assert wrong == []


@pytest.mark.parametrize("library", OWNERS)
def test_each_library_has_its_owners(library: str) -> None:
    users = {
        name
        for name, targets in graph().items()
        if any(target.split(".")[0] == library for target in targets)
    }
    others = {
        name
        for name in users
        if not any(name == owner or name.startswith(owner + ".") for owner in OWNERS[library])
    }
    assert others == set()


@pytest.mark.parametrize("module", sorted(SANS_IO))
def test_the_core_is_sans_io(module: str) -> None:
    targets = graph()[module]
    assert {target.split(".")[0] for target in targets} & IO == set()
    others = {target for target in targets if target in files()} - {
        "store",
        "wire",
        "proxy",
        "recorder",
        "scorers",
        "trainer",
    }
    impure = {name for name in others if {t.split(".")[0] for t in graph()[name]} & IO}
    assert impure == set()


def test_only_the_settings_read_the_environment() -> None:
    users = {
        name
        for name, path in files().items()
        if "os.environ" in (text := path.read_text(encoding="utf-8")) or "getenv" in text
    }
    # the others run in `modal deploy` and before anything is installed
    assert users <= {"store.settings", "deploy.modal_app", "scripts.install_llamacpp"}


def test_errors_are_never_swallowed_whole() -> None:
    """A handler for every exception handles it or raises it again."""
    wrong = []
    for name, path in files().items():
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            catches_all = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            )
            does_nothing = all(isinstance(s, ast.Pass | ast.Continue) for s in node.body)
            if catches_all and does_nothing:
                wrong.append(f"{name}:{node.lineno}")
    assert wrong == []


def measured() -> list[Path]:
    """Return every file whose functions have limits: the project's and its tests'."""
    folders = (ROOT / "tests", ROOT / "lab" / "tests")
    return [*files().values(), *(path for folder in folders for path in sorted(folder.rglob("*.py")))]


def test_no_function_is_longer_than_the_limit() -> None:
    wrong = [
        f"{path}: {node.name}: {lines} lines"
        for path in measured()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert wrong == []


def test_no_function_has_more_branches_than_the_limit() -> None:
    """McCabe complexity, measured by ruff without the project's own exceptions (``noqa``)."""
    limit = f"lint.mccabe.max-complexity={MAX_COMPLEXITY}"
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--ignore-noqa", "--quiet"]
    found = subprocess.run(
        [
            *command,
            "--select",
            "C901",
            "--config",
            limit,
            "--output-format",
            "concise",
            *map(str, measured()),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def test_no_two_public_classes_share_a_name() -> None:
    """A class is found by its name alone; the laboratory's recipes are programs of their own."""
    places: dict[str, list[str]] = {}
    for module, path in files().items():
        if not module.startswith("lab.models"):
            for node in parse(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_commands_print_by_the_console_that_strips_control_characters() -> None:
    """Texts of clients and models must not move the cursor or rename the window of who reads them."""
    plain = re.compile(r"(?<!Plain)Console\(")
    sources = [path for folder in ("cli", "lab/evals") for path in (ROOT / folder).rglob("*.py")]
    made = [str(path) for path in sources if plain.search(path.read_text(encoding="utf-8"))]
    assert [path for path in made if not path.endswith("cli/console.py")] == []


def test_every_file_that_begins_first_exists() -> None:
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []
