"""What the documentation names is there: files, rooms, methods, options and variables."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from streamer.cli.main import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("streamer", "model", "cache_store", "replay")
ROOMS = sorted({file.parent for package in PACKAGES for file in (ROOT / package).rglob("__init__.py")})
NOT_OURS = """
    build build-arg gpus read-only rm time tmpfs volumes nnodes nproc-per-node rdzv-endpoint max-restarts
"""
"""Options of docker and of torchrun."""

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name))


def options() -> set[str]:
    names = {"help"}
    for command in commands(cli):
        for parameter in command.params:
            names |= {name.removeprefix("--") for name in [*parameter.opts, *parameter.secondary_opts]}
    for script in (ROOT / "benchmarks").glob("*.py"):
        names |= set(re.findall(r'"--([a-z][\w-]*)"', script.read_text(encoding="utf-8")))
    return names


def members() -> dict[str, set[str]]:
    """Class -> its methods and fields."""
    found: dict[str, set[str]] = {}
    for file in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = found.setdefault(node.name, set())
                inside = list(ast.walk(node))
                names |= {n.name for n in inside if isinstance(n, ast.FunctionDef)}
                names |= {n.attr for n in inside if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "self"}
    return found


@pages
def test_files_that_a_page_names_are_there(page):
    named = re.findall(r"`([\w.-]+(?:/[\w.-]+)*/?)`", page.read_text(encoding="utf-8"))
    paths = [n for n in named if n.split("/")[0] in (*PACKAGES, "docs", "tests", "docker", "examples") and "/" in n]
    linked = re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [path for path in paths if not (ROOT / path).exists()]
    missing += [path for path in linked if not (page.parent / path).exists()]
    assert not missing


@pages
def test_options_that_a_page_names_exist(page):
    named = set(re.findall(r"(?<![\w-])--([a-z][\w-]*)", page.read_text(encoding="utf-8")))
    known = options()
    assert not named.difference(NOT_OURS.split()) - known


@pages
def test_variables_that_a_page_names_exist(page):
    named = set(re.findall(r"STREAMER_([A-Z_]+)", page.read_text(encoding="utf-8")))
    known = {name.replace("-", "_").upper() for name in options()}
    assert not {name for name in named if name not in known and not name.startswith(("KAFKA_", "TEST_"))}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_every_room_is_in_the_architecture_and_says_what_belongs_there(room):
    name = str(room.relative_to(ROOT))
    assert name == "streamer" or re.search(rf"`{name}[/`]", ARCHITECTURE)
    said = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert "import" in said, "the docstring of a room says what it may import"


def test_classes_and_methods_that_the_architecture_names_exist():
    known = members()
    named = set(re.findall(r"\b([A-Z][A-Za-z]+)\.([a-z_]+)\b", ARCHITECTURE))
    assert named
    assert not {f"{kind}.{name}" for kind, name in named if name not in known.get(kind, ())}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("record", 15), ("request", 12)])
def test_a_record_and_a_request_pass_the_files_that_the_architecture_lists(name, most):
    sys.path.insert(0, str(ROOT / "docs"))
    import walks

    passed = walks.WALKS[name]().files
    assert set(passed) == set(walks.documented_files(ARCHITECTURE, name)), "run `make docs`"
    assert len(passed) <= most


def test_the_site_is_built_and_no_link_or_anchor_of_it_is_broken(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", tmp_path / "site"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "concepts.html").read_text()
    assert not re.findall(r'(?:src="|<link[^>]*href=")https?://', page), "the site works offline"
