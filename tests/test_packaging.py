"""The package as it is installed: wheel, sdist, an editable clone, and rooms that are imported under one name."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import deployment
import pytest

import streamer

ROOT = Path(__file__).parents[1]
ROOMS = ("model", "cache_store", "replay")
CLONED = ("pyproject.toml", "README.md", "LICENSE", "streamer", *ROOMS, "tests", "benchmarks")


def build(kind: str, source: Path, out: Path, **settings: str) -> Path:
    """What setuptools builds of a tree: a wheel, an editable wheel or an sdist."""
    out.mkdir(exist_ok=True)
    code = f"import sys; from setuptools.build_meta import build_{kind}; build_{kind}(sys.argv[1], {settings!r})"
    done = subprocess.run([sys.executable, "-c", code, out], cwd=source, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (built,) = out.iterdir()
    return built


def contents(wheel: Path) -> dict[str, int]:
    """The files of a wheel and their checksums, without what describes it."""
    with zipfile.ZipFile(wheel) as archive:
        return {file.filename: file.CRC for file in archive.infolist() if ".dist-info/" not in file.filename}


def copy_tree(names: Iterable[str], to: Path) -> Path:
    """What a clone has of these files and directories."""
    to.mkdir()
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, to / name)
    return to


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in a directory that is named as the package is."""
    return copy_tree(CLONED, tmp_path_factory.mktemp("home") / "streamer")


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield build("wheel", clone, tmp_path_factory.mktemp("wheel"))
    shutil.rmtree(clone / "build", ignore_errors=True)


def test_advice_to_install_names_our_distribution_and_not_the_one_that_is_called_streamer():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == streamer.DISTRIBUTION != "streamer"
    places = [ROOT / "README.md", ROOT / "pyproject.toml", ROOT / "Makefile"]
    for room in ("streamer", *ROOMS, "docs", "docker", "examples"):
        places += [path for path in (ROOT / room).rglob("*") if path.suffix in (".py", ".md", ".ipynb")]
    extras: set[str] = set()
    for path in places:
        text = path.read_text()
        assert "streamer[" not in text, path
        extras |= set(re.findall(rf"{streamer.DISTRIBUTION}\[(\w+)\]", text))
    assert "serve" in extras
    assert extras <= project["optional-dependencies"].keys()


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path):
    files = contents(wheel)
    assert {Path(name).parts[0] for name in files} == {"streamer"}
    paths = [path.relative_to(ROOT) for room in ("streamer", *ROOMS) for path in (ROOT / room).rglob("*")]
    ours = [path for path in paths if (ROOT / path).is_file() and "__pycache__" not in path.parts]
    wanted = {str(path if path.parts[0] == "streamer" else "streamer" / path) for path in ours}
    assert wanted >= {"streamer/py.typed", *(f"streamer/{room}/__init__.py" for room in ROOMS)}
    assert any("static" in path.parts for path in ours)
    assert wanted - files.keys() == set()
    assert not [name for name in files if "test" in name or "benchmarks" in name]


@pytest.mark.slow
def test_the_sdist_has_no_links_and_becomes_the_same_wheel(clone: Path, wheel: Path, tmp_path: Path):
    sdist = build("sdist", clone, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()]
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    assert contents(build("wheel", source, tmp_path / "wheel")) == contents(wheel)


@pytest.mark.slow
def test_what_the_image_copies_becomes_the_same_wheel(wheel: Path, tmp_path: Path):
    source = copy_tree(deployment.copied(), tmp_path / "source")
    assert contents(build("wheel", source, tmp_path / "wheel")) == contents(wheel)


@pytest.mark.slow
def test_an_editable_clone_is_imported_from_the_directory_that_contains_it(clone: Path, tmp_path: Path):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["config-settings"]
    editable = build("editable", clone, tmp_path / "wheel", **settings)
    zipfile.ZipFile(editable).extractall(tmp_path / "site")
    code = "import site, sys; site.addsitedir(sys.argv[1]); import streamer; print(streamer.__file__)"
    # -S: not the packages that this test runs with, which have Streamer too
    command = [sys.executable, "-S", "-c", code, tmp_path / "site"]
    for directory in (clone.parent, clone, tmp_path):
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == str(clone / "streamer" / "__init__.py"), done.stderr


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_one_name(room: str):
    assert importlib.import_module(f"streamer.{room}")
    with pytest.raises(ImportError, match=rf"streamer\.{room}"):
        importlib.import_module(room)
