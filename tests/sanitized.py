"""Pytest plugin (`-p sanitized`): the native module is the one that HPCGNN_NATIVE names, built with sanitizers."""

import importlib.util
import os
import sys

SPEC = importlib.util.spec_from_file_location("hpcgnn._native", os.environ["HPCGNN_NATIVE"])
MODULE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(MODULE)
sys.modules["hpcgnn._native"] = MODULE
