"""Reads source files: a spec lists the columns of files that become nodes, edges, times and features."""
