"""Nothing that comes from outside is executed, and no name leaves its directory or its keys. See SECURITY.md."""

from __future__ import annotations

import ast
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import Command
from servers.redis import LocalRedis

ROOT = Path(__file__).parents[1]
PACKAGES = ("streamer", "model", "cache_store", "replay")
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "code"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {"os.system", "os.popen", "torch.load", "torch.jit.load", "np.load", "numpy.load", "pd.read_pickle"}


def sources() -> Iterator[tuple[Path, ast.AST]]:
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            yield file.relative_to(ROOT), ast.parse(file.read_text(encoding="utf-8"))


def dangers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of whatever could execute what it reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from ((node.lineno, name) for name in names if name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES and not node.level:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in BUILTINS | CALLS:
                yield node.lineno, called
            for keyword in node.keywords:
                if keyword.arg in ("shell", "allow_pickle") and ast.unparse(keyword.value) != "False":
                    yield node.lineno, f"{called}({keyword.arg}=...)"


def test_nothing_that_could_execute_what_it_reads_is_called_anywhere() -> None:
    found = [f"{file}:{line}: {name}" for file, tree in sources() for line, name in dangers(tree)]
    assert not found


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from yaml import load", "eval(x)", "torch.load(x)", "run(x, shell=True)", "f(allow_pickle=p)"],
)
def test_the_search_finds_what_it_looks_for(line: str) -> None:
    assert list(dangers(ast.parse(line)))


# names and files ------------------------------------------------------------------------------------------------------

EVENTS = 40
Streamer = Callable[..., Command]


class Touch:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """A working directory; what is written beside it is out of bounds."""
    path = tmp_path / "one" / "two" / "inside"
    path.mkdir(parents=True)
    lines = [{"user_id": f"../../u{k % 5}", "item_id": f"../../../i{k}\x00/etc", "timestamp": k} for k in range(EVENTS)]
    (path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def streamer(inside: Path, tmp_path_factory: pytest.TempPathFactory) -> Streamer:
    """Runs a command inside, to its end."""

    def run(*arguments: object) -> Command:
        output = tmp_path_factory.mktemp("output") / "command"
        command = Command(arguments, output, cwd=inside)
        command.ended()
        return command

    return run


def outside(inside: Path) -> list[Path]:
    top = inside.parents[1]
    return [path for path in top.parent.rglob("*") if path.is_file() and inside not in path.parents]


RUN = ["run", "--until-end", "--dim", "8", "--batch-size", "32", "--threads", "1", "--dead-letters", "./bad.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["../../evil", "{}/evil", "..", "a/../../../evil"])
def test_a_topic_of_the_embedded_log_does_not_leave_its_directory(inside: Path, streamer: Streamer, topic: str) -> None:
    topic = topic.format(inside.parent)
    done = streamer("replay", "synthetic", "--topic", topic, "--events", "10", "--data-dir", "data")
    assert not outside(inside), done.said()
    assert "Traceback" not in done.said()


@pytest.mark.slow
def test_ids_of_users_and_items_are_no_paths(inside: Path, streamer: Streamer) -> None:
    done = streamer(*RUN, "--source", "events.jsonl", "--publish-dir", "published", "--checkpoint-dir", "saved")
    assert done.code == 0, done.said()
    assert not outside(inside)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ckpt-00000000000000000001.base", "trainer-id"])
def test_a_pickle_in_the_place_of_a_checkpoint_is_not_executed(inside: Path, streamer: Streamer, name: str) -> None:
    saved = inside / "saved"
    saved.mkdir()
    (saved / name).write_bytes(pickle.dumps(Touch(inside / "executed")))
    for command in (["inspect"], ["checkpoint", "verify"], [*RUN, "--source", "events.jsonl"]):
        streamer(*command, "--checkpoint-dir", saved)
    assert not (inside / "executed").exists()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["a}:log", "{b}", "c:d", "*", "e f", "../g"])
def test_the_name_of_a_model_does_not_leave_its_keys(streamer: Streamer, redis: LocalRedis, model: str) -> None:
    """Another model and another program keep what they have."""
    with redis.client() as client:
        client.set("{streamer:other}:meta", "theirs")
        client.set("streamer", "theirs")
        before = set(client.keys())
        shared = ["--redis-url", redis.url, "--model", model]
        done = streamer(*RUN, *shared, "--source", "events.jsonl", "--checkpoint-dir", "saved")
        assert "Traceback" not in done.said()
        new = {key.decode() for key in set(client.keys()) - before}
        assert client.get("{streamer:other}:meta") == client.get("streamer") == b"theirs"
    own = f"{{streamer:{model}}}:"
    assert all(key.startswith(own) or key == "{streamer}:models" for key in new), new
    assert bool(new) == (done.code == 0), done.said()


@pytest.mark.slow
def test_a_namespace_with_a_colon_is_refused(streamer: Streamer, redis: LocalRedis) -> None:
    shared = ["--redis-url", redis.url, "--redis-namespace", "streamer:other"]
    done = streamer(*RUN, *shared, "--source", "events.jsonl")
    assert done.code == 2
    assert "colon" in done.said()


@pytest.fixture
def redis() -> Iterator[LocalRedis]:
    with LocalRedis() as server:
        yield server
