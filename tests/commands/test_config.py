"""The run file: round trip, overrides, what is refused and how."""

import ast
import dataclasses
import re

import pytest
from conftest import REPOSITORY

from hpcgnn import config as configuration
from hpcgnn.config import nearest
from hpcgnn.keys import keys
from hpcgnn.kinds import KINDS
from hpcgnn.static.config import StaticConfig
from hpcgnn.temporal.config import TemporalConfig, TemporalEvalConfig, TemporalSamplingConfig
from hpcgnn.train import make_parser

pytestmark = pytest.mark.serial


@pytest.fixture
def parser():
    return configuration.parser("test", "a test")


def test_defaults_round_trip_through_yaml(tmp_path):
    config = TemporalConfig()
    config.train.epochs = 7
    named = {"ranks": 3, "graph": "a\nkind: static\u2028kind: static"}  # a file may have any name
    configuration.save(config, named, tmp_path / "config.yaml")
    assert configuration.load(tmp_path / "config.yaml") == config


def test_command_line_overrides_the_file(parser, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("train:\n  epochs: 3\n  lr: 0.01\nsampling:\n  fanouts: [4]\n")
    config, _ = configuration.parse(parser, ["--config", str(path), "--train.epochs=5", "--data.path", "parts"])
    assert (config.train.epochs, config.train.lr, config.sampling.fanouts, config.data.path) == (5, 0.01, [4], "parts")


@pytest.mark.parametrize(
    "arguments",
    [["--train.epoch=5"], ["--train.epochs=many"], ["--memory.update_at=nowhere"], ["--model.heads=3"],
     ["--config", "/nowhere.yaml"],
     ["--train.lr=-1"], ["--sampling.strategy=newest"], ["--data.new_node_ratio=1.5"], ["stray"]],
)  # fmt: skip
def test_mistakes_are_named(parser, arguments, capsys):
    with pytest.raises(ValueError) as caught:
        configuration.parse(parser, arguments)
    key = arguments[0].split("=")[0].removeprefix("--").split(".")[-1]
    assert key.rstrip("s") in str(caught.value) or "nowhere" in str(caught.value)
    assert capsys.readouterr().err == ""


def test_a_wrong_word_is_refused_alike_everywhere(parser):
    """On the command line, where jsonargparse knows the words, and in Python."""
    message = r"^sampling\.strategy must be one of recent, uniform, window, got 'newest'$"
    with pytest.raises(ValueError, match=message):
        configuration.parse(parser, ["--sampling.strategy=newest"])
    with pytest.raises(ValueError, match=message):
        TemporalSamplingConfig(strategy="newest")


@pytest.mark.parametrize(
    ("argument", "message"),
    [("--train.epoch=3", "no option --train.epoch; did you mean --train.epochs?"),
     ("--lr=3", "no option --lr; did you mean --train.lr?"),
     ("--trian.epochs=3", "no option --trian.epochs; did you mean --train.epochs?"),
     ("--qqqqqq=3", "no option --qqqqqq (see --help)"),
     ("--train.epochs=many", "train.epochs must be an integer, got 'many'"),
     ("--train.lr=x", "train.lr must be a number, got 'x'"),
     ("--task.class_weights=[a]", "task.class_weights must be a list, each entry a number, got 'a'"),
     ("--task.class_weights=a", "task.class_weights must be a list, got 'a'"),
     ("--data.val_ratio=few", "data.val_ratio must be a number, got 'few'"),
     ("--config=/nowhere.yaml", "--config: no file /nowhere.yaml"), ("--config=/tmp", "--config: no file /tmp"),
     ("--model=tgn", "model is a section: give its keys, as --model.KEY")],
)  # fmt: skip
def test_mistakes_are_told_in_plain_words(parser, argument, message):
    with pytest.raises(ValueError) as caught:
        configuration.parse(parser, [argument])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("kind", "key", "value", "each"),
    [("temporal", "train.seed", "0,1", "0,1"), ("temporal", "train.seed", "[0, 1]", "0,1"),
     ("static", "train.lr", "1e-2, 1e-3", "1e-2,1e-3"), ("static", "train.lr", "[0.1, 0.2]", "0.1,0.2"),
     ("static", "model.kind", "gat,gcn", "gat,gcn"), ("static", "model.kind", "[gat, gcn]", "gat,gcn"),
     ("static", "sampling.strategy", "uniform,labor", "uniform,labor"),
     ("snapshots", "data.val_ratio", "0.1,0.2", "0.1,0.2"), ("snapshots", "task.strict", "true,false", "true,false"),
     ("static", "sampling.fanouts", "10,5", ""), ("static", "comm.threads", "1,2", ""),
     ("static", "train.seed", "0,", ""), ("static", "train.seed", "1,1", "")],
)  # fmt: skip
def test_several_values_of_a_key_that_takes_one_lead_to_a_run_for_each(tmp_path, kind, key, value, each):
    """On the command line and in a file; not where several runs share the key, nor where it takes a list."""
    section, name = key.split(".")
    (tmp_path / "run.yaml").write_text(f"kind: {kind}\n{section}:\n  {name}: {value}\n")
    for words in ([f"--{key}={value}"], ["--config", str(tmp_path / "run.yaml")]):
        with pytest.raises(ValueError, match=rf"^{key} must be ") as caught:
            configuration.parse(make_parser(kind), words)
        remedy = f"; for a run with each value: --each {key}={each}"
        assert str(caught.value).endswith(remedy) if each else "--each" not in str(caught.value)
    with pytest.raises(ValueError) as caught:
        configuration.parse(configuration.parser("hpcgnn bench", "", kind), [f"--{key}={value}"])
    assert "--each" not in str(caught.value)


# Help that a reader cannot understand without the name, or the code, beside it.
STARTS = re.compile(r"(of|for|in|if|with|as)\b", re.IGNORECASE)
RIDDLES = re.compile(r"\b(of it|likewise|those|so many|told|says|but its own|one's own)\b", re.IGNORECASE)


def help_faults(text: str, fewest: int = 4, most: int = 60, sentence: int = 30) -> list[str]:
    """What is wrong with a help text: its length in words, that of a sentence, its first word, a turn of phrase."""
    longest = max(len(part.split()) for part in re.split(r"(?<=[.!?])\s", text))
    found = [riddle[0] for riddle in RIDDLES.finditer(text)] + [start[0] for start in [STARTS.match(text)] if start]
    long_or_short = not fewest <= len(text.split()) <= most
    return found + [f"{len(text.split())} words"] * long_or_short + [f"{longest} words"] * (longest > sentence)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("Maximum norm of the gradient; 0: no clipping.", []), ("", ["0 words"]), ("What is evaluated.", ["3 words"]),
        ("For rgcn: relations one after the other.", ["For"]), ("in-neighbors of a node and relation", ["in"]),
        ("Edges or events of it.", ["of it"]), ("Number of snapshots, those of training.", ["those"]),
        ("Sums of so many rows; likewise of edges, as the file says.", ["so many", "likewise", "says"]),
        (f"{'word ' * 31}end.", ["32 words"]), (f"{'one two. ' * 31}", ["62 words"]),
    ],
)  # fmt: skip
def test_help_that_is_hard_to_read_is_noticed(text, faults):
    assert help_faults(text) == faults


@pytest.mark.parametrize("kind", configuration.KINDS)
def test_every_key_has_a_help_that_stands_alone(kind):
    """A noun or a verb, its unit, and what special values mean; the rows of tables in a few words."""
    faults = {}
    for key in keys(kind):
        if found := help_faults(key.text) + ["no sentence"] * (not re.match(r"[A-Z].*\.$", key.text)):
            faults[key.name] = found
    rows = [(key.name, word, says) for key in keys(kind) for word, says in key.choices.items() if says]
    faults |= {f"{name} {word}": found for name, word, says in rows if (found := help_faults(says, fewest=2, most=25))}
    assert not faults


def options_of(code: str) -> dict[str, str | None]:
    """The help of every option that a module declares, "" where it is computed, None where there is none."""
    texts: dict[str, str | None] = {}
    for call in ast.walk(ast.parse(code)):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("add_argument"):
            given = {keyword.arg: keyword.value for keyword in call.keywords}  # None: as **settings
            parts = ast.walk(given["help"]) if "help" in given else ()
            literal = " ".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
            text = literal if given.keys() & {"help", None} else None
            texts[ast.unparse(call.args[0])] = text
    return texts


def test_every_option_of_the_commands_has_a_help_that_stands_alone():
    faults = {}
    for path in [path for package in ("hpcgnn", "data_tools") for path in (REPOSITORY / package).rglob("*.py")]:
        for name, text in options_of(path.read_text()).items():
            if text is None or STARTS.match(text) or RIDDLES.search(text):
                faults[f"{path.name} {name}"] = text
    assert not faults


def test_an_option_without_help_is_noticed():
    code = 'parser.add_argument("--a", help="of the job")\nparser.add_argument("--b")\nparser.add_argument(c, **d)'
    assert options_of(code) == {"'--a'": "of the job", "'--b'": None, "c": ""}


@pytest.mark.parametrize("kind", configuration.KINDS)
def test_no_key_refuses_a_value_in_words_of_the_parser(kind):
    parser, told = configuration.parser("test", "a test", kind), []
    for key in set(parser.get_defaults().keys()) - {"config", "kind"}:
        try:
            configuration.parse(parser, ["--kind", kind, f"--{key}=[{{a: 1}}]"])
        except ValueError as error:
            told.append(str(error))
    assert told
    assert not [message for message in told if re.search("Parser|<class|Union|argument", message)]


@pytest.mark.parametrize(
    ("text", "message"),
    [("train:\n  epoch: 3\n", "no key train.epoch; did you mean train.epochs?"),
     ("epochs: 3\n", "no key epochs; did you mean train.epochs?"),
     ("train:\n  epochs: [1]\n", "train.epochs must be an integer, got '[1]'")],
)  # fmt: skip
def test_mistakes_in_a_file_are_told_in_plain_words(parser, tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError) as caught:
        configuration.parse(parser, ["--config", str(tmp_path / "config.yaml")])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", ["trian:\n  epochs: 3\n", "train:\n  epoch: 3\n", "train: [1, 2\n"])
def test_mistakes_in_a_saved_file_name_the_file(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"config\.yaml"):
        configuration.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("- train\n", r"config\.yaml: expected sections of keys, got list"),
     ("train: 3\n", "train: expected a section with keys below it")],
)  # fmt: skip
def test_files_of_another_form(parser, tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    argv = ["--config", str(tmp_path / "config.yaml")]
    with pytest.raises(ValueError, match=message):
        configuration.parse(configuration.parser("test", "a test", configuration.kind_of(argv)), argv)
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "book.h5").touch()
    for path in (parts, parts / "book.h5"):
        with pytest.raises(ValueError, match=r"no run folder; hpcgnn inspect describes graphs"):
            configuration.load(path / "config.yaml")
    with pytest.raises(ValueError, match=r"none/config\.yaml: no such file; is .*none a run folder\?"):
        configuration.load(tmp_path / "none" / "config.yaml")


def test_resume_is_of_the_same_run(tmp_path):
    """Of the same kind, and with the keys that its checkpoints were trained with, but for those that may change."""
    with pytest.raises(ValueError, match="the run to resume is on a temporal graph, not a static one"):
        configuration.check_resumable(TemporalConfig(), StaticConfig())
    recorded, config = TemporalConfig().to_dict(), TemporalConfig()
    config.train.epochs, config.comm.threads = 50, 3
    configuration.check_recorded(recorded, config, tmp_path, "step-1")
    config.train.lr = 0.5
    with pytest.raises(ValueError, match=r"that step-1 was trained with: train\.lr \(0\.001 -> 0\.5"):
        configuration.check_recorded(recorded, config, tmp_path, "step-1")


def test_resume_allows_only_what_does_not_change_the_answer():
    old, new = TemporalConfig(), TemporalConfig()
    new.train.epochs, new.comm.threads, new.sampling.prefetch, new.data.path = 50, 2, 0, "elsewhere"
    new.train.profile, new.train.progress, new.train.log_seconds, new.train.loggers = "5-9", "off", 1, ["wandb"]
    configuration.check_resumable(old, new)
    new.train.lr = 0.5
    with pytest.raises(ValueError, match=r"train.lr \(0.001 -> 0.5\)"):
        configuration.check_resumable(old, new)


def test_on_and_off_are_words(tmp_path):
    """YAML reads them as true and false where they are not in quotes."""
    config = TemporalConfig.from_dict({"train": {"cuda_graphs": False, "progress": True}})
    assert (config.train.cuda_graphs, config.train.progress) == ("off", "on")
    path = tmp_path / "run.yaml"
    parser = configuration.parser("hpcgnn train", "", "temporal")
    path.write_text("train:\n  cuda_graphs: 'off'\n")
    assert configuration.parse(parser, ["--config", str(path)])[0].train.cuda_graphs == "off"
    path.write_text("train:\n  cuda_graphs: off\n")
    with pytest.raises(ValueError, match=r'train.cuda_graphs: YAML reads on and off as .* write "on" or "off"'):
        configuration.parse(parser, ["--config", str(path)])


NO_MEMORY = ["--memory.updater=none"]
SLOTS = ["--memory.updater=transformer", "--memory.mailbox_slots=3"]
WINDOWS = ["--sampling.strategy=window", "--sampling.window_length=10", "--sampling.num_windows=2"]


@pytest.mark.parametrize(
    ("arguments", "key", "remedy"),
    [
        (["--memory.mailbox_slots=3"], "memory.mailbox_slots", "use updater transformer"),
        (["--memory.placement=replicated", "--memory.update_at=user"], "memory.placement", "update_at owner"),
        (["--memory.mailbox_slots=0"], "memory.mailbox_slots", "at least 1"),
        ([*SLOTS, "--memory.dim=9"], "model.heads", "must divide memory.dim"),
        ([*NO_MEMORY, "--model.readout=identity"], "model.readout", "choose an updater"),
        ([*NO_MEMORY, "--model.readout=time_projection"], "model.readout", "choose an updater"),
        ([*NO_MEMORY, "--model.message=mlp"], "model.message", "choose an updater"),
        ([*NO_MEMORY, "--model.message_from=embedding"], "model.message_from", "choose an updater"),
        (["--model.readout=identity", "--model.layers=2"], "model.layers", "use model.layers 1"),
        (["--model.time_encoding=learnable"], "model.time_encoding", "needs model.time_unit"),
        (["--model.heads=3"], "model.heads", "must divide model.hidden"),
        (["--sampling.strategy=window"], "sampling.strategy", "needs sampling.window_length"),
        (["--sampling.window_length=10"], "sampling.window_length", "belong to strategy window"),
        (["--sampling.num_windows=2"], "sampling.window_length", "belong to strategy window"),
        (WINDOWS, "sampling.num_windows", "updater none"),
        (["--sampling.random_chunks=2", "--sampling.batch_by=time"], "sampling.random_chunks",
         "use sampling.batch_by events"),
        (["--sampling.random_chunks=2", "--sampling.batch_by=span", "--sampling.batch_span=9"],
         "sampling.random_chunks", "use sampling.batch_by events"),
        (["--sampling.batch_by=span"], "sampling.batch_by", "needs sampling.batch_span"),
        (["--sampling.batch_span=9"], "sampling.batch_span", "leave it 0"),
        (["--sampling.batch_by=span", "--sampling.batch_span=9", "--train.drop_last=true"], "train.drop_last",
         "leave it false"),
        (["--sampling.random_chunks=2", "--train.accumulate_steps=2"], "sampling.random_chunks", "use one"),
        (["--eval.negative_kind=file"], "eval.negative_kind", "needs eval.negatives_file"),
        (["--eval.negatives_file=n.npz"], "eval.negatives_file", "read by eval.negative_kind file"),
        (["--eval.protocol=tgbl"], "eval.protocol", "must be tgb or empty"),
        (["--baseline.kind=all"], "baseline.kind", "unlimited, time_window, fixed_window"),
        (["--baseline.window_ratio=2"], "baseline.window_ratio", "in [0, 1]"),
        (["--baseline.kind=unlimited", "--task.kind=node"], "baseline.kind", "leave it empty"),
    ],
)  # fmt: skip
def test_parts_that_do_not_go_together_are_refused(parser, arguments, key, remedy):
    """The error names the key and what to do."""
    with pytest.raises(ValueError) as caught:
        configuration.parse(parser, arguments)
    assert key in str(caught.value)
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("short", "expected"),
    [
        (["--eval", "tgb"], ("tgb", "all", 200)),
        (["--eval=tgb", "--eval.negatives_file=n.npz"], ("tgb", "file", 200)),
        (["--eval", "historical", "--eval.batch_size=50"], ("", "historical", 50)),
        (["--eval=all"], ("", "all", 0)),
    ],
)
def test_short_forms_of_eval(parser, short, expected):
    config, _ = configuration.parse(parser, [*short, "--train.epochs=3"])
    assert (config.eval.protocol, config.eval.negative_kind, config.eval.batch_size) == expected
    assert config.train.epochs == 3


@pytest.mark.parametrize("arguments", [["--eval"], ["--eval", "tgbl"], ["--eval="]])
def test_short_form_of_nothing_known(parser, arguments):
    with pytest.raises(ValueError, match="eval"):
        configuration.parse(parser, arguments)


def test_another_protocol_for_a_finished_run():
    """A batch size that a protocol brought along goes with it; one of the user's stays."""
    own, tgb = (
        TemporalEvalConfig(batch_size=70, negatives_per_pass=9),
        TemporalEvalConfig("tgb", negatives_file="n.npz"),
    )
    assert own.under("historical") == TemporalEvalConfig(
        negative_kind="historical", batch_size=70, negatives_per_pass=9
    )
    assert own.under("tgb") == TemporalEvalConfig("tgb", negatives_per_pass=9)
    assert tgb.under("random") == TemporalEvalConfig()
    assert tgb.under("tgb") == TemporalEvalConfig("tgb")
    with pytest.raises(ValueError, match=r"needs eval\.negatives_file"):
        own.under("file")


@pytest.mark.serial
def test_names_of_other_systems_and_of_older_clones_are_met_by_the_key():
    """Every key of the changelog's table of names, where it is gone."""
    keys = {name: {f"{section}.{key.name}" for section, kind in one.config.sections().items()
                   for key in dataclasses.fields(kind)} for name, one in KINDS.items()}  # fmt: skip
    everything = set().union(*keys.values())
    rows = re.findall(r"^  \| (`.*?) \| (`.*?) \|", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    pairs = [
        (old, set(re.findall(r"`(\w+\.\w+)", is_now)) & everything)
        for was, is_now in rows
        for old in re.findall(r"`(\w+\.\w+)`", was)
        if old not in everything and not old.endswith(".jsonl")
    ]
    assert len(pairs) > 40
    for old, new in pairs:
        found = {name for own in keys.values() for name in nearest(old, own)}
        assert found & new, f"{old}: {found}, not {new}"
