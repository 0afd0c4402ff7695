"""Reads graph files and partition sets, and checks their values."""
