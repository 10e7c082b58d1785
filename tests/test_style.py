"""Rules of CONTRIBUTING.md that no linter checks: names, folders, imports, citations."""

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from bot import errors
from bot.backends.registry import backend_specs
from bot.platforms.registry import platform_specs
from tests.checkout import CHECKOUT

BOT = CHECKOUT / "bot"
TOP_LEVEL_MODULES = {
    *("__init__", "__main__", "contracts", "errors", "extras", "intake", "ports"),
    *("settings", "setup", "tools", "value_class"),
}
MAX_FUNCTION_LINES = 60
CITATION = re.compile(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?")

_, *_PAIRS = (CHECKOUT / "tests" / "private_words.txt").read_text("utf-8").splitlines()
PRIVATE_WORDS = dict(pair.split(": ") for pair in _PAIRS)
PRIVATE_WORDS |= {f"{word}s": term for word, term in PRIVATE_WORDS.items()}


@cache
def trees() -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text("utf-8")) for file in sorted(BOT.rglob("*.py"))}


@pytest.fixture(autouse=True, scope="module")
def no_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, which would scan the many syntax trees again and again."""
    gc.disable()
    yield
    trees.cache_clear()
    nodes_by_type.cache_clear()
    gc.enable()


def suspicious_trees() -> dict[Path, ast.Module]:
    """Parse only files that contain a private word, because parsing all takes seconds."""
    files = [*BOT.rglob("*.py"), *(CHECKOUT / "tests").rglob("*.py")]
    texts = {file: file.read_text("utf-8") for file in files if "rigs" not in file.parts}
    del texts[Path(__file__)]
    return {file: ast.parse(text) for file, text in texts.items() if mentions_private_word(text)}


def mentions_private_word(text: str) -> bool:
    lower = text.lower()
    return any(word in lower for word in PRIVATE_WORDS)


def named(file: Path) -> str:
    return str(file.relative_to(CHECKOUT))


@cache
def nodes_by_type() -> dict[type[ast.AST], list[tuple[Path, Any]]]:
    """Group the nodes of all files by type, because walking the trees takes seconds."""
    found = defaultdict(list)
    for file, tree in trees().items():
        for node in ast.walk(tree):
            found[type(node)].append((file, node))
    return found


def nodes(*types: type[ast.AST]) -> Iterator[tuple[Path, Any]]:
    for each in types:
        yield from nodes_by_type()[each]


def test_class_names_are_unique() -> None:
    files = defaultdict(list)
    for file, node in nodes(ast.ClassDef):
        files[node.name].append(named(file))
    assert {name: where for name, where in files.items() if len(where) > 1} == {}


def test_no_unlisted_top_level_module_exists() -> None:
    assert {file.stem for file in BOT.glob("*.py")} == TOP_LEVEL_MODULES


def test_imports_are_at_the_top_of_files() -> None:
    lines_of_functions: dict[Path, set[int]] = defaultdict(set)
    for file, function in nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        lines_of_functions[file].update(range(function.lineno, (function.end_lineno or 0) + 1))
    hidden = [
        f"{named(file)}:{node.lineno}"
        for file, node in nodes(ast.Import, ast.ImportFrom)
        if node.lineno in lines_of_functions[file]
    ]
    assert hidden == []


def imported(node: ast.AST) -> Iterator[str]:
    """Yield the modules in an import statement, or in a string like `module:name`."""
    if isinstance(node, ast.ImportFrom) and node.module:
        yield from (node.module, *(f"{node.module}.{each.name}" for each in node.names))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value.partition(":")[0]


def test_modules_have_no_circular_imports_even_by_name() -> None:
    files = {".".join(Path(named(file)).with_suffix("").parts): file for file in trees()}
    imports: dict[Path, set[Path]] = defaultdict(set)
    for file, node in nodes(ast.ImportFrom, ast.Constant):
        imports[file] |= {files[name] for name in imported(node) if name in files} - {file}
    TopologicalSorter(imports).prepare()  # it raises CycleError


def test_every_error_class_is_drawn_in_the_error_tree() -> None:
    drawn = set(re.findall(r"\b[A-Z]\w+", errors.__doc__ or ""))
    ours = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.TroupeError)
    }
    assert ours <= drawn
    elsewhere = {
        f"{named(file)}: {node.name}"
        for file, node in nodes(ast.ClassDef)
        if not node.name.startswith("_")
        and any(
            ast.unparse(base).rpartition(".")[2] in ours | {"Exception", "ValueError"}
            for base in node.bases
        )
        and node.name not in drawn
    }
    assert elsewhere == set()


def test_code_never_checks_the_kind_of_a_plug_in() -> None:
    """Plug-ins differ in their data and capabilities, so no `provider.kind == "llama_cpp"`."""
    kinds = {spec.kind for spec in platform_specs()} | {spec.kind for spec in backend_specs()}
    asked = [
        f"{named(file)}:{node.lineno}"
        for file, node in nodes(ast.Compare)
        if any(
            isinstance(side, ast.Constant) and side.value in kinds
            for side in (node.left, *node.comparators)
        )
    ]
    assert asked == []


def test_functions_fit_on_a_page() -> None:
    long = {
        f"{named(file)}:{node.name}": node.end_lineno - node.lineno + 1
        for file, node in nodes(ast.FunctionDef, ast.AsyncFunctionDef)
        if node.end_lineno is not None and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == {}


def identifiers(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
            yield name
        case _:
            pass


def words(identifier: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


def test_identifiers_are_standard_terms() -> None:
    private = {
        f"{named(file)}: {identifier}"
        for file, tree in suspicious_trees().items()
        for node in ast.walk(tree)
        for identifier in [
            *identifiers(node),
            *([file.stem] if isinstance(node, ast.Module) else []),
        ]
        if words(identifier) & PRIVATE_WORDS.keys()
    }
    assert private == set()


def test_comments_and_docstrings_use_standard_terms() -> None:
    private = re.compile(rf"\b({'|'.join(PRIVATE_WORDS)})\b", re.IGNORECASE)
    documented = nodes(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [(file, ast.get_docstring(node) or "") for file, node in documented]
    for file in trees():
        comments = re.findall(r"(?:^|\s)# .*$", file.read_text("utf-8"), flags=re.MULTILINE)
        texts += [(file, comment) for comment in comments]
    found = [f"{named(file)}: {one[0]}" for file, text in texts for one in private.finditer(text)]
    assert found == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def cited_pages() -> Iterator[tuple[str, str, str]]:
    """Yield each citation of a page in docs/: the citing file, the page, and the section."""
    files = [*BOT.rglob("*.py"), *(CHECKOUT / "tests").rglob("*.py"), *CHECKOUT.glob("*.md")]
    files.remove(CHECKOUT / "CHANGELOG.md")
    for file in files:
        for page, section in CITATION.findall(file.read_text("utf-8")):
            yield named(file), page, section


def test_citations_point_to_existing_sections() -> None:
    broken = [
        f"{file}: {page}#{section}"
        for file, page, section in cited_pages()
        if not (CHECKOUT / page).is_file() or (section and section not in anchors(CHECKOUT / page))
    ]
    assert broken == []


def test_code_cites_only_documents_of_the_repository() -> None:
    foreign = re.compile(r"\b(SEEDS|STACK|RELIABILITY|FIELD|PERFORMANCE|DESIGN|STYLE)\.md\b")
    assert [named(file) for file in BOT.rglob("*.py") if foreign.search(file.read_text())] == []
