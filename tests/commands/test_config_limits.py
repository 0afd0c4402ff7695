"""What a section of a run file refuses: numbers out of range, and values that do not go together."""

import math

import pytest

from hpcgnn.comm.world import CommConfig
from hpcgnn.loop.settings import OutputConfig
from hpcgnn.snapshots import config as snapshots
from hpcgnn.static import config as static
from hpcgnn.temporal import config as temporal
from hpcgnn.temporal.eval_config import TemporalEvalConfig

pytestmark = pytest.mark.serial


@pytest.mark.parametrize(
    ("section", "keys", "message"),
    [
        (CommConfig, {"threads": -1}, "comm.threads and comm.watchdog_seconds must be >= 0"),
        (CommConfig, {"max_message_bytes": 0}, "comm.max_message_bytes >= 1"),
        (CommConfig, {"time_groups": 0}, "comm.time_groups must be at least 1, got 0"),
        (OutputConfig, {"keep": 0}, "output.keep must be at least 1, got 0"),
        (snapshots.SnapshotSamplingConfig, {"window_size": -1}, "sampling.window_size must be at least 0"),
        (snapshots.SnapshotSamplingConfig, {"prefetch": -2}, "sampling.prefetch at least -1"),
        (snapshots.SnapshotSamplingConfig, {"updates_per_batch": 0}, "sampling.updates_per_batch must be at least 1"),
        (snapshots.SnapshotSamplingConfig, {"halo_ratio": 0}, "sampling.halo_ratio must be above 0 and at most 1"),
        (snapshots.SnapshotSamplingConfig, {"halo_staleness": -1}, "sampling.halo_staleness at least 0"),
        (snapshots.SnapshotSamplingConfig, {"halo_staleness": 1, "halo_ratio": 0.5}, "it needs sampling.shuffle false"),
        (snapshots.SnapshotSamplingConfig, {"halo_staleness": 1, "shuffle": True, "window_size": 2},
         "it needs sampling.shuffle false and sampling.halo_ratio 1"),
        (snapshots.SnapshotSamplingConfig, {"shuffle": True}, "sampling.shuffle needs sampling.window_size above 0"),
        (snapshots.SnapshotInputConfig, {"lags": -1}, "inputs.lags must be at least 0"),
        (snapshots.SnapshotEmbeddingConfig, {"dim": -2}, "node_embedding.dim must be at least -1, got -2"),
        (snapshots.SnapshotInputConfig, {"degree_classes": 1}, "inputs.degree_classes at least 2"),
        (snapshots.SnapshotModelConfig, {"dropout": 1}, "model.dropout must be in [0, 1), got 1"),
        (snapshots.SnapshotDataConfig, {"val_ratio": 0.5, "test_ratio": 0.5}, "leave something to train on"),
        (snapshots.SnapshotDataConfig, {"val_snapshots": -2}, "must be at least 0, or -1: by ratio"),
        (snapshots.SnapshotDataConfig, {"synthetic_nodes": 19}, "data.synthetic_nodes must be at least 20"),
        (snapshots.SnapshotDataConfig, {"synthetic_snapshots": 1 << 16}, "data.synthetic_snapshots 10 to 65535"),
        (snapshots.SnapshotTaskConfig, {"temperature": 0}, "task.temperature must be above 0, got 0"),
        (snapshots.SnapshotTaskConfig, {"margin": math.inf}, "task.margin must be above 0, got inf"),
        (snapshots.SnapshotTaskConfig, {"kind": "node", "classes": 1}, "must be 0 (from the data) or at least 2, got"),
        (snapshots.SnapshotTaskConfig, {"kind": "node", "class_weights": [1, -1]}, "must not be negative, got [1, -1]"),
        (snapshots.SnapshotTaskConfig, {"kind": "edge", "classes": 3, "class_weights": [1, 2]},
         "task.class_weights has 2 numbers for task.classes = 3"),
        (snapshots.SnapshotConfig, {"comm": CommConfig(sampling_servers=1)}, "runs on snapshot graphs do not sample"),
        (snapshots.SnapshotEvalConfig, {"negatives": 0}, "eval.negatives must be at least 1, got 0"),
        (snapshots.SnapshotConfig, {"eval": snapshots.SnapshotEvalConfig(ranking="all")},
         "eval.ranking needs task.kind link, not regression"),
        (static.GraphSamplingConfig, {"fanouts": [5, 5], "relation_fanouts": {"a.b.c": [5]}},
         "sampling.relation_fanouts.a.b.c needs 2 numbers, one a layer, got [5]"),
        (static.GraphSamplingConfig, {"prefetch": -2}, "sampling.prefetch must be at least -1, got -2"),
        (static.GraphModelConfig, {"hidden": 0}, "model.hidden and model.heads must be at least 1"),
        (static.GraphModelConfig, {"bases": -1}, "model.bases and model.feed_forward must be at least 0"),
        (static.GraphDataConfig, {"synthetic_nodes": 99}, "data.synthetic_nodes must be at least 100, got 99"),
        (static.GraphTaskConfig, {"classes": 1}, "task.classes must be 0 (from the data) or at least 2, got 1"),
        (static.FeatureConfig, {"device_ratio": 0.5}, "above 0 only with features.storage pinned; got 0.5 with auto"),
        (static.FeatureConfig, {"device_ratio": 2, "storage": "pinned"}, "must be from 0 to 1"),
        (static.StaticConfig, {
            "comm": CommConfig(sampling_servers=1), "sampling": static.GraphSamplingConfig(edge_columns=["weight"])},
         "sampling.edge_columns: sampling servers send no edge columns"),
        (temporal.TemporalSamplingConfig, {"fanouts": [0]}, "sampling.fanouts must be at least 1, one number"),
        (temporal.TemporalTaskConfig, {"negatives": 0}, "task.negatives must be at least 1, got 0"),
        (temporal.TemporalSamplingConfig, {"num_windows": 0}, "sampling.num_windows must be at least 1"),
        (temporal.TemporalSamplingConfig, {"remote_half_life": -1}, "window_length and remote_half_life at least 0"),
        (temporal.TemporalModelConfig, {"hidden": 0}, "model.hidden must be at least 1, got 0"),
        (temporal.TemporalModelConfig, {"dropout": -0.1}, "model.dropout must be in [0, 1), got -0.1"),
        (temporal.TemporalDataConfig, {"test_ratio": math.nan}, "leave something to train on"),
        (snapshots.SnapshotDataConfig, {"val_ratio": 0.1, "val_snapshots": 0}, "val_snapshots is 0: give one"),
        (snapshots.SnapshotDataConfig, {"test_ratio": 0.1, "split_by": "graph"}, "test_ratio has no effect: data"),
        (snapshots.SnapshotDataConfig, {"val_snapshots": 3, "split_by": "graph"}, "val_snapshots has no effect"),
        (snapshots.SnapshotDataConfig, {"val_ratio": math.nan}, "leave something to train on"),
        (temporal.TemporalDataConfig, {"val_ratio": -0.1}, "data.val_ratio and data.test_ratio must be >= 0"),
        (temporal.MemoryConfig, {"dim": 0}, "memory.dim must be at least 1, got 0"),
        (snapshots.SnapshotTaskConfig, {"horizon": -1}, "task.horizon must be at least 0, got -1"),
        (temporal.TemporalDataConfig, {"synthetic_events": 99}, "data.synthetic_events must be at least 100, got 99"),
        (TemporalEvalConfig, {"batch_size": -1}, "eval.batch_size must be at least 0 and"),
        (TemporalEvalConfig, {"negatives_per_pass": 0}, "eval.negatives_per_pass at least 1"),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(section, keys, message):
    """The error names the key, and what it must be."""
    with pytest.raises(ValueError) as caught:
        section(**keys)
    assert message in str(caught.value)


@pytest.mark.parametrize("config", [static.StaticConfig, snapshots.SnapshotConfig])
def test_other_kinds_have_no_protocols(config):
    """``--eval`` and its like are refused where no run has another protocol."""
    assert config().evaluated_by("", "", "") == config()
    for given, named in ((("", "", "unlimited"), "--baseline.kind"), (("tgb", "", ""), "--eval"),
                         (("tgb", "", "unlimited"), "--eval and --baseline.kind")):  # fmt: skip
        with pytest.raises(ValueError) as caught:
            config().evaluated_by(*given)
        assert str(caught.value) == f"{named}: not for runs on {config.KIND} graphs: leave out"


def test_snapshots_read_no_file_of_negatives():
    with pytest.raises(ValueError, match=r"^--eval\.negatives_file: not for runs on snapshots graphs: leave out$"):
        snapshots.SnapshotConfig().evaluated_by("", "negatives.npz", "")


def test_servers_of_features_do_not_hinder_another_protocol():
    """There are none when a run is evaluated."""
    config = static.StaticConfig.from_dict(
        {"task": {"kind": "link"}, "comm": {"sampling_servers": 1, "server_features": True}}
    )
    assert config.evaluated_by("", "", "", {"exact": True}).eval.exact


def test_snapshots_are_left_to_train_on():
    """After those of validation and test."""
    config = snapshots.SnapshotDataConfig(val_snapshots=2, test_snapshots=3)
    assert config.split(0, 5) == {"train": range(1), "val": range(1, 3), "test": range(3, 6)}
    with pytest.raises(ValueError, match="5 snapshots can be predicted from, 2 for validation and 3 for the test"):
        config.split(0, 4)


def test_time_is_divided_of_snapshots_alone():
    """Groups of ranks by time are refused for the kinds of graph that know none."""
    for config in (static.StaticConfig, temporal.TemporalConfig):
        with pytest.raises(ValueError, match=r"comm\.time_groups is for snapshot graphs: leave it 1"):
            config(comm=CommConfig(time_groups=2))


def test_a_finished_run_is_evaluated_otherwise():
    """Another protocol or a baseline takes the place of the run's own; negatives alone say too little."""
    config = temporal.TemporalConfig(baseline=temporal.BaselineConfig("fixed_window", 0.25))
    assert config.evaluated_by("tgb", "", "").eval == TemporalEvalConfig("tgb")
    assert config.evaluated_by("", "", "time_window").baseline == temporal.BaselineConfig("time_window", 0.25)
    assert config.evaluated_by("", "", "unlimited").baseline == temporal.BaselineConfig("unlimited")
    with pytest.raises(ValueError, match=r"--eval\.negatives_file needs --eval file or --eval tgb"):
        config.evaluated_by("", "n.npz", "")
