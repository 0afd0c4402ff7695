"""The benchmarks: one epoch of this system (and of a peer) measured, and a cost model of many ranks."""
