"""Input rows of the nodes of static graphs: computed before training."""
