"""One source of settings: the command line, files, variables, Python and the documentation agree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.cli.doctor import doctor
from streamer.cli.main import COMMANDS, cli
from streamer.cli.options import COMMON, GroupedCommand, check_environment, settings_options
from streamer.cli.run import run
from streamer.errors import SettingsError
from streamer.learner import OnlineLearner
from streamer.model.losses import METHODS
from streamer.model.setting import parse_settings
from streamer.model.settings import LearnerSettings, MethodSettings
from streamer.replay.cli.demo import DemoSettings
from streamer.replay.settings import EvaluationSettings, ReplaySettings, WriteSettings
from streamer.settings import RunSettings

ROOT = Path(__file__).parents[1]


REQUIRED = {
    RunSettings: {},
    ReplaySettings: {"path": "log.csv"},
    EvaluationSettings: {"data": "log.csv"},
    DemoSettings: {},
}
"""Every class that has options, and what must be given."""
SETTINGS = {f"{kind.__name__}.{s.name}": s for kind in REQUIRED for s in kind.all().values()}


def built(kind, *arguments, **how):
    """The settings that a command gets."""

    @click.command(cls=GroupedCommand)
    @settings_options(kind, **how)
    def command(settings):
        return settings

    return command.main([*map(str, arguments)], standalone_mode=False)


@pytest.mark.parametrize("kind", REQUIRED, ids=lambda kind: kind.__name__)
def test_every_setting_is_an_option_with_the_same_default(kind):
    required = REQUIRED[kind]
    arguments = [part for n, v in required.items() for part in (f"--{n}", v[0] if isinstance(v, tuple) else v)]
    assert built(kind, *arguments) == kind(**required)


def test_the_environment_sets_only_what_a_command_lets_it(monkeypatch, tmp_path):
    (tmp_path / "file.toml").write_text("rate = 5")
    for name, value in {"TOPIC": "clicks", "RATE": "7", "CONFIG": tmp_path / "file.toml"}.items():
        monkeypatch.setenv(f"STREAMER_{name}", str(value))
    assert built(WriteSettings, environment=("topic",)) == WriteSettings(topic="clicks")
    assert built(WriteSettings, environment=()) == WriteSettings()
    assert built(WriteSettings) == WriteSettings(topic="clicks", rate=7)


def test_the_second_name_of_an_option_is_the_same_option():
    assert built(ReplaySettings, "--path", "x", "--field", "user_id=uid", "--column", "item_id=iid").columns == {
        "user_id": "uid",
        "item_id": "iid",
    }


@pytest.mark.parametrize("command", [run, doctor])
def test_run_and_doctor_take_every_setting_of_a_run(command):
    options = {p.name for p in command.params if isinstance(p, click.Option)}
    experts = {name for name, setting in RunSettings.all().items() if setting.about.expert}
    assert set(RunSettings.all()) - experts <= options
    assert experts.isdisjoint(options)
    assert "set_" in options


def test_help_of_run_shows_at_most_sixty_options_and_first_the_ten_that_most_need():
    shown = run.get_help(click.Context(run))
    assert len(re.findall("^  --", shown, re.MULTILINE)) <= 60
    headings = re.findall(r"^(\S.*):$", shown, re.MULTILINE)
    assert headings[0] == COMMON
    assert len(re.findall("^  --", shown.partition(COMMON)[2].partition("\n\n")[0], re.MULTILINE)) == 10


def test_a_setting_without_an_option_comes_from_set_a_variable_or_a_file(monkeypatch, tmp_path):
    (tmp_path / "file.toml").write_text('resampler = "multinomial"\n[method]\ndraws = 7\nhash-slots = 9')
    with_file = ["--config", tmp_path / "file.toml"]
    found = built(RunSettings, *with_file)
    assert (found.resampler, found.draws, found.hash_slots) == ("multinomial", 7, 9)
    monkeypatch.setenv("STREAMER_DRAWS", "8")
    assert built(RunSettings, *with_file).draws == 8
    found = built(
        RunSettings, *with_file, "--set", "draws=9", "--set", "user-layers=32,64", "--set", "max_queued_events=3"
    )
    assert (found.draws, found.user_layers, found.max_queued_events, found.hash_slots) == (9, (32, 64), 3, 9)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "drows=3"], "there is no setting 'drows': did you mean draws?"),
        (["--set", "draws"], "'draws' is not NAME=VALUE"),
        (["--set", "draws=0"], "draws is '0': it must be a whole number of at least 1"),
        (["--config", "file.toml"], "file.toml has bacth-size: did you mean batch-size?"),
    ],
)
def test_a_wrong_name_or_value_is_refused_with_what_may_be_meant(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.toml").write_text("bacth-size = 3")
    with pytest.raises(click.UsageError) as caught:
        built(RunSettings, *arguments)
    assert said in caught.value.format_message()


def test_an_unknown_variable_is_refused_and_those_of_all_commands_are_known(monkeypatch):
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        for parameter in command.params:
            if parameter.envvar:
                check_environment({parameter.envvar: "x"})
    check_environment({"STREAMER_KAFKA_SASL_MECHANISM": "PLAIN", "STREAMER_TEST_KAFKA": "x", "OTHER": "x"})
    monkeypatch.setenv("STREAMER_BACTH_SIZE", "3")
    with pytest.raises(click.UsageError, match="no variable STREAMER_BACTH_SIZE: did you mean STREAMER_BATCH_SIZE"):
        built(RunSettings)


def test_a_learner_in_python_has_the_settings_of_run():
    assert OnlineLearner().settings == RunSettings().only(LearnerSettings) == LearnerSettings()
    assert OnlineLearner(dim=4, method="bir").settings == LearnerSettings(dim=4, method="bir")
    with pytest.raises(SettingsError, match=r"a learner has no setting 'rate'\. docs/settings\.md lists all"):
        OnlineLearner(rate=0.1)


def test_the_method_setting_offers_the_methods_that_exist():
    assert set(MethodSettings.all()["method"].choices) == set(METHODS)


@pytest.mark.parametrize("kind", REQUIRED, ids=lambda kind: kind.__name__)
def test_names_outside_of_python_are_unique(kind):
    options = [s.option for s in kind.all().values()]
    assert len(set(options)) == len(options)


@pytest.mark.slow
def test_the_documentation_is_generated_from_the_code():
    done = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_default_written_as_text_is_the_default(setting):
    if setting.default is None:
        assert setting.parse("none") is None or setting.base is str
        return
    text = [f"{k}={v}" for k, v in setting.default.items()] if setting.is_mapping else setting.default
    assert setting.parse(text if setting.is_mapping or setting.is_list else str(text)) == setting.default
    assert setting.problem(setting.default) == ""


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_what_is_out_of_range_is_refused_everywhere_with_the_same_words(setting):
    about = setting.about
    wrong = {about.at_least: -1, about.above: 0, about.at_most: 1}
    for bound, change in wrong.items():
        if bound is None:
            continue
        value = type(bound)(bound + change)
        if setting.is_list:
            value = (value,)
        assert setting.problem(value) == setting.wanted()
        with pytest.raises(ValueError, match="must be"):
            setting.parse([str(v) for v in value] if setting.is_list else str(value))


@given(st.dictionaries(st.sampled_from(["dim", "nope", "method", "cache_weight"]), st.sampled_from(["7", "x", "0.5"])))
def test_all_problems_are_reported_at_once(changes):
    bad = {"dim": {"x", "0.5"}, "nope": {"7", "x", "0.5"}, "method": {"7", "x", "0.5"}, "cache_weight": {"7", "x"}}
    wrong = [name for name, value in changes.items() if value in bad[name]]
    if not wrong:
        assert parse_settings(LearnerSettings, changes).problems() == []
        return
    with pytest.raises(ValueError, match=r".") as caught:
        parse_settings(LearnerSettings, changes)
    assert len(caught.value.args[0]) == len(wrong)
