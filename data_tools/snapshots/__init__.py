"""Converts source files to a snapshot graph file: one node set, edges of several snapshots."""
