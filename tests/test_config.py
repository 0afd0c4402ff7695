"""The run file: round trip, overrides, what is refused and how."""

import pytest

from hpcgnn import config as configuration
from hpcgnn.config import RunConfig


@pytest.fixture
def parser():
    return configuration.parser("test", "a test")


def test_defaults_round_trip_through_yaml(tmp_path):
    config = RunConfig()
    config.train.epochs = 7
    configuration.save(config, {"ranks": 3}, tmp_path / "config.yaml")
    assert configuration.load(tmp_path / "config.yaml") == config


def test_command_line_overrides_the_file(parser, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("train:\n  epochs: 3\n  lr: 0.01\nsampling:\n  fanout: 4\n")
    config, _ = configuration.parse(parser, ["--config", str(path), "--train.epochs=5", "--data.path", "parts"])
    assert (config.train.epochs, config.train.lr, config.sampling.fanout, config.data.path) == (5, 0.01, 4, "parts")


@pytest.mark.parametrize(
    "arguments",
    [["--train.epoch=5"], ["--train.epochs=many"], ["--memory.update_at=nowhere"], ["--model.heads=3"],
     ["--config", "/nowhere.yaml"],
     ["--train.lr=-1"], ["--sampling.strategy=newest"], ["--data.new_node_fraction=1.5"], ["stray"]],
)  # fmt: skip
def test_mistakes_are_named(parser, arguments, capsys):
    with pytest.raises(ValueError) as caught:
        configuration.parse(parser, arguments)
    key = arguments[0].split("=")[0].removeprefix("--").split(".")[-1]
    assert key.rstrip("s") in str(caught.value) or "nowhere" in str(caught.value)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", ["trian:\n  epochs: 3\n", "train:\n  epoch: 3\n", "train: [1, 2\n"])
def test_mistakes_in_a_saved_file_name_the_file(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"config\.yaml"):
        configuration.load(path)


def test_resume_allows_only_what_does_not_change_the_answer():
    old, new = RunConfig(), RunConfig()
    new.train.epochs, new.comm.threads, new.sampling.prefetch, new.data.path = 50, 2, 0, "elsewhere"
    configuration.check_resumable(old, new)
    new.train.lr = 0.5
    with pytest.raises(ValueError, match=r"train.lr \(0.001 -> 0.5\)"):
        configuration.check_resumable(old, new)
