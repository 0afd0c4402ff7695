#!/usr/bin/env bash
# Knowledge graph completion: train DistMult on facts, then find the best tails of a head and a relation.
#   bash examples/knowledge_graph.sh [FOLDER]      # RANKS=4 in front of it: four MPI ranks
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-runs/knowledge_graph}
ranks=${RANKS:-2}
mkdir -p "$folder"
cd "$folder"

# 1. Data: train.txt, valid.txt and test.txt in the folder facts/. Replace this line by your files.
python "$here/knowledge_graph_data.py"

# 2. Convert: the files become one graph file. The ids and the names of relations stay as they are.
hpcgnn convert --preset kg-links --set facts=facts/ --overwrite facts.h5

# 3. Partition: cut the graph into 8 parts. The same parts serve 1 to 8 ranks.
hpcgnn partition facts.h5 parts/ --parts 8 --overwrite

# 4. Train DistMult. At the end, each test fact is ranked among all entities, known facts left out.
rm -rf run/
mpirun -np "$ranks" hpcgnn train --recipe distmult --data.path parts/ --output.dir run/ \
    --model.hidden 32 --task.negatives 64 --train.batch_size 256 --train.epochs 8 --train.eval_every 4

# 5. Predict: the three best tails of two queries, facts that are known already left out.
printf 'src,rel\n00001740,_hypernym\n00001800,_similar_to\n' > queries.csv
mpirun -np "$ranks" hpcgnn predict run/ --top_k 3 --sources queries.csv --new_only --out tails.csv

# 6. The result: the filtered ranking of the test facts, and the answers.
python - <<'PYTHON'
import csv
import json

for row in csv.DictReader(open("tails.csv")):
    print(f"{row['src']} {row['rel']:12} -> {row['dst']} (score {float(row['score']):.2f})")
test = [json.loads(line) for line in open("run/metrics.jsonl")][-1]
print(f"test: filtered MRR {test['test_mrr']:.4f}, hits@10 {test['test_hits@10']:.4f}")
PYTHON
