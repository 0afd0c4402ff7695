"""Exports a graph file, or one part of a partition set, to other tools."""
