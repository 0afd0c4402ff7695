"""The values of ``task.kind`` in run files."""

from __future__ import annotations

LINK, NODE, EDGE, EDGE_REGRESSION = "link", "node", "edge", "edge_regression"
TASK_KINDS = (LINK, NODE, EDGE, EDGE_REGRESSION)
CLASSIFYING = (NODE, EDGE)
