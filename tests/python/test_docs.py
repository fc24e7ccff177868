# SPDX-License-Identifier: Apache-2.0
"""What the documentation names is there: links, files, make targets, variables, parameters."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "fuzz/**/*.md", "tests/**/*.md")
    for path in ROOT.glob(pattern)
)
MODULES = sorted((ROOT / "python/hpcattn").rglob("*.py"))
OPERATOR_PAGES = {
    "paged_attention": "attention",
    "packed_attention": "attention",
    "merge_partials": "merge_partials",
    "store_kv": "store_kv",
    "rope_norm_store_kv": "rope_norm_store_kv",
}

_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"`(?P<code>[^`\n]+)`")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_TOP_FOLDERS = {
    *("src", "include", "torch", "python", "tests", "docs", "cmake", "tools", "fuzz"),
    *("examples", "requirements", ".ci", "bench"),
}
_SOURCE_SUFFIXES = {".cc", ".h", ".py", ".cmake", ".md", ".sh", ".toml", ".json"}
# Not files of the repository: placeholders, and what is made by a build or belongs to others.
_ABOUT_OTHERS = {"seeds.md"}  # names files of other projects, but not by a path of ours
_PLACEHOLDER = re.compile(
    r"[A-Z]{4,}|[*<>$ ()=]|^x[._]|^build|^dist|^\.venv|^/|^~|compile_commands"
)


def _page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _anchor(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    words = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def _anchors(page: Path) -> set[str]:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return {_anchor(match[1]) for match in re.finditer(r"^#+ (.*)$", text, re.MULTILINE)}


def _broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for match in _LINK.finditer(text):
        target, _, anchor = match["target"].partition("#")
        if re.match(r"[a-z]+:", match["target"]):
            continue
        to = (page.parent / target).resolve() if target else page
        is_there = to.is_relative_to(ROOT) and to.exists()
        if is_there and anchor and to.suffix == ".md":
            is_there = anchor in _anchors(to)
        if not is_there:
            broken.append(match["target"])
    return broken


def _expand(name: str) -> list[str]:
    """`a.{h,cc}` is two names."""
    match = re.search(r"\{([^{}]*)\}", name)
    if match is None:
        return [name]
    return [
        whole
        for part in match[1].split(",")
        for whole in _expand(name[: match.start()] + part + name[match.end() :])
    ]


def _repository_files() -> set[str]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return set(listing.stdout.split("\n")) - {""}


@pytest.fixture(scope="module")
def files() -> set[str]:
    return _repository_files()


@pytest.mark.parametrize("page", PAGES, ids=_page_id)
def test_relative_links_lead_somewhere(page: Path) -> None:
    assert _broken_links(page, _FENCE.sub("", page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("page", PAGES, ids=_page_id)
def test_files_that_are_mentioned_exist(page: Path, files: set[str]) -> None:
    base_names = {Path(name).name for name in files}
    missing = []
    for match in _CODE.finditer(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        for name in _expand(match["code"].split(":")[0].rstrip("/")):
            if _PLACEHOLDER.search(name):
                continue
            in_a_folder = "/" in name
            if in_a_folder and name.split("/")[0] in _TOP_FOLDERS:
                is_there = (ROOT / name).exists()
            else:
                is_bare_file = not in_a_folder and Path(name).suffix in _SOURCE_SUFFIXES
                is_bare_file = is_bare_file and page.name not in _ABOUT_OTHERS
                is_there = not is_bare_file or name in base_names
            if not is_there:
                missing.append(name)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=_page_id)
def test_make_targets_that_are_mentioned_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*(?: [a-z][a-z-]*)*):", makefile, re.MULTILINE))
    targets = {word for line in targets for word in line.split()}
    text = re.sub(r"='[^'\n]*'", "=value", page.read_text(encoding="utf-8"))
    commands = re.findall(r"(?:`|^|\$ )make((?: +[\w=.'-]+)+)", text, re.MULTILINE)
    named = {
        word for command in commands for word in command.split() if re.fullmatch(r"[a-z-]+", word)
    }
    assert named - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=_page_id)
def test_variables_that_are_mentioned_are_read_somewhere(page: Path, files: set[str]) -> None:
    named = set(re.findall(r"\bHPCATTN_[A-Z0-9_]*[A-Z0-9]\b", page.read_text(encoding="utf-8")))
    sources = "\n".join(
        (ROOT / name).read_text(encoding="utf-8")
        for name in files
        if Path(name).suffix in {".cc", ".h", ".py", ".cmake", ".txt"} or name == "Makefile"
        if (ROOT / name).is_file()
    )
    assert {name for name in named if name not in sources} == set()


def _documented_parameters(docstring: str) -> list[str] | None:
    """Names in the section `Args:` of a Google docstring; None without the section."""
    section = re.search(r"^Args:\n(?P<body>(?:[ \t]+.*\n|\n)*)", docstring + "\n", re.MULTILINE)
    if section is None:
        return None
    names = []
    for line in section["body"].split("\n"):
        match = re.match(r" {4}(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?:", line)
        if match:
            names += [name.lstrip("*") for name in match["names"].split(", ")]
    return names


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args]
    every += [arguments.vararg] if arguments.vararg else []
    every += arguments.kwonlyargs
    every += [arguments.kwarg] if arguments.kwarg else []
    return [argument.arg for argument in every if argument.arg not in ("self", "cls")]


@pytest.mark.parametrize("module", MODULES, ids=_page_id)
def test_documented_parameters_are_the_signature(module: Path) -> None:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    differing = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        documented = _documented_parameters(ast.get_docstring(node) or "")
        if documented is not None and documented != _parameters(node):
            differing[node.name] = (documented, _parameters(node))
    assert differing == {}


def test_the_check_of_parameters_can_fail() -> None:
    function = ast.parse(
        'def f(a, *, b=1):\n    """F.\n\n    Args:\n        a: x\n        c: y\n    """\n'
    )
    node = function.body[0]
    assert isinstance(node, ast.FunctionDef)
    assert _documented_parameters(ast.get_docstring(node) or "") == ["a", "c"]
    assert _parameters(node) == ["a", "b"]


@pytest.mark.parametrize(("operator", "stem"), OPERATOR_PAGES.items())
def test_an_operators_page_names_every_parameter(operator: str, stem: str) -> None:
    tree = ast.parse((ROOT / "python/hpcattn/ops.py").read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    page = (ROOT / f"docs/operators/{stem}.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", page))
    assert [name for name in _parameters(functions[operator]) if name not in words] == []


@pytest.mark.parametrize("stem", sorted(set(OPERATOR_PAGES.values())))
def test_an_operators_page_names_no_parameter_that_is_not_there(stem: str) -> None:
    tree = ast.parse((ROOT / "python/hpcattn/ops.py").read_text(encoding="utf-8"))
    known = {
        name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and OPERATOR_PAGES.get(node.name) == stem
        for name in _parameters(node)
    }
    headers = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "include/hpcattn").glob("*.h")
    )
    known |= set(
        re.findall(r"\b(\w+)\b\s*(?:=[^;]*|\{[^;]*\})?;", headers)
    )  # fields of the structs
    page = (ROOT / f"docs/operators/{stem}.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| (?:name|argument) .*\n\|[-| ]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    named = {
        name
        for table in tables
        for row in table.splitlines()
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert tables, (
        f"docs/operators/{stem}.md has no table of arguments (header `name` or `argument`)"
    )
    assert named - known == set()


def test_the_figure_is_what_its_script_draws() -> None:
    drawn = runpy.run_path(str(ROOT / "docs/figures/architecture.py"))["svg"]()
    assert (ROOT / "docs/figures/architecture.svg").read_text(encoding="utf-8") == drawn + "\n"
