"""What `import streamer` offers, guarded; and the examples that show it."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import streamer
from streamer.api.settings import SettingChanges

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
RUN_CELLS = """
import ast, json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1])):
    *body, last = ast.parse(cell).body
    shown = isinstance(last, ast.Expr)
    exec(compile(ast.Module(body if shown else [*body, last], []), "cell", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if shown else None
    print("" if value is None else repr(value), "\\n--- end of a cell ---", flush=True)
"""

NAMES = """
    Learner LearnerSettings RunSettings METHODS Pipeline build_pipeline
    KafkaSource KafkaSettings EmbeddedSource EmbeddedLog FileSource
    ssl_loss ssl_pop_loss mns_loss bir_loss xir_loss StreamingPopularity OccurrenceCache StreamerError EventError
"""


def test_the_public_names_are_these():
    assert sorted(streamer.__all__) == sorted(NAMES.split())
    assert set(streamer.__all__) <= set(dir(streamer))


@pytest.mark.parametrize("name", NAMES.split())
def test_every_public_name_is_there_and_documented(name):
    assert getattr(streamer, name) is not None
    assert re.search(rf"\b{name}\b", (ROOT / "docs" / "python.md").read_text())


def test_the_learner_offers_these_methods_and_nothing_else():
    public = [name for name in dir(streamer.Learner) if not name.startswith("_")]
    assert public == ["evaluate", "explain", "learn", "load", "popular", "recommend", "save", "similar"]
    assert all(getattr(streamer.Learner, name).__doc__ for name in public)
    of_one = [name for name in vars(streamer.Learner(dim=4)) if not name.startswith("_")]
    assert of_one == ["settings"]


def test_editors_complete_every_setting_with_its_type():
    """A setting that is new in `model/settings.py` belongs into `streamer/api/settings.py`, too."""
    declared = typing.get_type_hints(streamer.LearnerSettings)
    names = streamer.LearnerSettings.all()
    assert typing.get_type_hints(SettingChanges) == {name: declared[name] for name in names}
    changes = inspect.signature(streamer.Learner.__init__, eval_str=True).parameters["changes"]
    assert changes.annotation == typing.Unpack[SettingChanges]


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(streamer.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in guarded.body for alias in node.names}
    assert seen == streamer.PUBLIC


def test_another_name_is_refused_with_those_that_exist():
    with pytest.raises(AttributeError, match="no attribute 'Lerner'; public are Learner, "):
        _ = streamer.Lerner


def test_importing_streamer_loads_nothing_heavy():
    script = "import sys, streamer; print([m for m in ('torch', 'numba', 'kafka', 'redis') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


@pytest.mark.slow
def test_modules_of_the_users_own_do_not_break_it(tmp_path):
    """A notebook's directory comes first on the path; what stands there is the user's, and theirs to import."""
    (tmp_path / "cache_store").mkdir()
    for name in ("model.py", "replay.py", "cache_store/__init__.py"):
        (tmp_path / name).write_text("MINE = True\n")
    script = "import model, replay, cache_store; from streamer import Learner; Learner(dim=4)"
    script += "; assert model.MINE and replay.MINE and cache_store.MINE"
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path, tmp_path):
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def code_cells(path: Path) -> list[dict[str, typing.Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_and_every_cell_shows_something(path, tmp_path):
    """As Jupyter runs them, but of fewer events: each cell shows what it prints and the value of its last line."""
    cells = tmp_path / "cells.json"
    sources = ["".join(cell["source"]) for cell in code_cells(path)]
    cells.write_text(
        json.dumps([re.sub(r"^count = [\d_]+", "count = 1_000", source, flags=re.M) for source in sources])
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN_CELLS, cells], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    *shown, rest = done.stdout.split("--- end of a cell ---")
    assert len(shown) == len(code_cells(path))
    assert all(text.strip() for text in shown)
    assert not rest.strip()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_with_the_outputs_of_one_run(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(cell["outputs"] for cell in cells)
    assert {output["output_type"] for output in outputs} <= {"execute_result", "display_data", "stream"}
    assert "stderr" not in {output.get("name") for output in outputs}


def test_every_example_is_documented():
    text = (ROOT / "docs" / "python.md").read_text()
    assert EXAMPLES
    assert len(NOTEBOOKS) == 3
    assert all(f"examples/{path.name}" in text for path in (*EXAMPLES, *NOTEBOOKS))


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_code_of_the_documentation_runs(page, tmp_path, monkeypatch):
    """The first block of a page, as a person would paste it."""
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    exec(block[1], names := {})
    assert [found.item for found in names["learner"].recommend("bob", k=3)]
