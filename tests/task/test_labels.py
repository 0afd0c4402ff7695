"""Labels and scores of tasks that cannot be learned are refused: the column, what it holds, and what it must hold."""

import numpy as np
import pytest

from hpcgnn.nn.decoders import DECODERS, DecoderSizes
from hpcgnn.task.labels import labeled_type, node_labels, read_classes, read_numbers

pytestmark = pytest.mark.serial
SPLIT = np.zeros(3, np.int8)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"split": SPLIT}, r"node type paper has no column label: convert the source again with one$"),
        ({"label": SPLIT}, "node type paper has no column split: .*, or run hpcgnn split"),
        (
            {"label": np.array([1, np.nan, 0.5]), "split": SPLIT},
            r"label of paper must be one integer a node, .*, got float64 \(\)",
        ),
        ({"label": np.zeros((3, 2, 2), int), "split": SPLIT}, r"or a row of 0 and 1, got int64 \(2, 2\)"),
        ({"label": np.zeros((3, 1), int), "split": SPLIT}, "labels of 1 columns, but task.classes = 0"),
        ({"label": np.full((3, 2), 2), "split": SPLIT}, "labels in rows are 0 and 1, found 2"),
        (
            {"label": np.array([0, 1, 2_000_000_000]), "split": SPLIT},  # PyG #1306
            "node type paper: label 2000000000, but 65536 classes at most: number them 0, 1, .* classes: true for",
        ),
    ],
)
def test_labels_of_nodes(columns, message):
    with pytest.raises(ValueError, match=message):
        node_labels(columns, "paper", 0)


def test_whole_numbers_are_classes():
    """Floats, as integers with gaps are stored: NaN is a missing label, as a negative number is."""
    label, _ = node_labels({"label": np.array([7, np.nan, -1.0]), "split": SPLIT}, "paper", 0)
    assert label.tolist() == [7, -1, -1]
    assert label.dtype == np.int64


@pytest.mark.parametrize(
    ("read", "label", "message"),
    [
        (read_classes, np.array(["a"]), "kind must hold classes, integers from 0 on, got <U1"),
        (
            read_classes,
            np.array([1.5]),
            "kind: 1.5 is no class; .*, below task.classes = 4",
        ),
        (read_classes, np.array([4]), "kind: 4 is no class; .* below task.classes = 4"),
        (read_numbers, np.zeros((2, 3)), r"kind must hold a number each, got float64 \(3,\)"),
        (read_numbers, np.array(["a"]), "kind must hold a number each, got <U1"),
        (read_numbers, np.array([1, -np.inf]), "kind has an infinite number"),
    ],
)
def test_columns_of_labels(read, label, message):
    with pytest.raises(ValueError, match=message):
        read(label, "kind", 4)


@pytest.mark.parametrize(
    ("labeled", "name", "message"),
    [
        ((), "", "task.node_type: no node type has a column label to learn: convert the source again"),
        (("a", "c"), "", "must name the type to learn labels of; types with labels: a, c"),
        (("a",), "b", "task.node_type b has no column label; types with labels: a"),
    ],
)
def test_the_type_that_is_learned(labeled, name, message):
    """The only one with labels, or the one that is named."""
    types = ("a", "b", "c")
    columns = [{"label": SPLIT} if node_type in labeled else {} for node_type in types]
    with pytest.raises(ValueError, match=message):
        labeled_type(columns, types, name, "task.node_type")


def test_cosines_are_divided_by_more_than_0():
    with pytest.raises(ValueError, match=r"the temperature of cosine scores must be positive, got 0\.0"):
        DECODERS["cosine"].make(DecoderSizes(4, 1, 0.0))
