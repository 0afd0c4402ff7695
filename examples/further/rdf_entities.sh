#!/usr/bin/env bash
# Entity classification on RDF, as on AIFB: train RGCN on triples, then find the group of every person.
#   bash examples/further/rdf_entities.sh [FOLDER]         # RANKS=4 in front of it: four MPI ranks
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-runs/rdf_entities}
ranks=${RANKS:-2}
mkdir -p "$folder"
cd "$folder"

# 1. Data: triples.nt, trainingSet.tsv and testSet.tsv. Replace this line by your files.
python "$here/further_data.py" entities

# 2. Convert: a relation for each predicate and for its inverse. The names of classes are kept.
hpcgnn convert --preset rdf --set triples=triples.nt --set train=trainingSet.tsv --set test=testSet.tsv \
    --set id=person --set label=label_affiliation --overwrite entities.h5

# 3. Partition, and train RGCN. The entities have no features, so they get learnable embeddings.
hpcgnn partition entities.h5 parts/ --parts 8 --overwrite
rm -rf run/
mpirun -np "$ranks" hpcgnn train --recipe rgcn --data.path parts/ --output.dir run/ --train.epochs 20

# 4. Predict the group of the persons of the test.
cut -f 1 testSet.tsv | sed '1s/.*/node/' > persons.csv
mpirun -np "$ranks" hpcgnn predict run/ --nodes persons.csv --probabilities --out groups.csv

# 5. The result.
python - <<'PYTHON'
import csv

true = {row["person"]: row["label_affiliation"] for row in csv.DictReader(open("testSet.tsv"), delimiter="\t")}
rows = list(csv.DictReader(open("groups.csv")))
for row in rows[:3]:
    print(f"{row['node']} is in {row['class']}")
right = sum(row["class"] == true[row["node"]] for row in rows)
print(f"correct: {right} of {len(rows)} persons")
PYTHON
