"""Write a small knowledge graph that stands in for your data, in the form of WN18RR: train.txt, valid.txt and test.txt.

They are in the folder facts. A line is a fact: head, relation and tail, with tabs between them. 200 entities belong to
20 groups of ten. A relation joins each group to itself or to one other group.
"""

from pathlib import Path

import numpy as np

RELATIONS = {"_similar_to": 0, "_hypernym": 1, "_derivationally_related_form": 2}
rng = np.random.default_rng(0)
num_entities, group_size, tails = 200, 10, 5

facts = []
for head in range(num_entities):
    for relation, step in RELATIONS.items():
        group = (head // group_size) ^ step
        for tail in group_size * group + rng.choice(group_size, tails, replace=False):
            if tail != head:
                facts.append(f"{1740 + head:08d}\t{relation}\t{1740 + tail:08d}\n")

order = rng.permutation(len(facts))
pieces = {"test": order[:150], "valid": order[150:300], "train": order[300:]}
Path("facts").mkdir(exist_ok=True)
for name, rows in pieces.items():
    Path(f"facts/{name}.txt").write_text("".join(facts[row] for row in sorted(rows)))
