#!/usr/bin/env bash
# Dynamic link prediction: train on daily snapshots of meetings, then predict who meets whom on the next day.
#   bash examples/further/next_meetings.sh [FOLDER]        # RANKS=4 in front of it: four MPI ranks
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-runs/next_meetings}
ranks=${RANKS:-2}
mkdir -p "$folder"
cd "$folder"

# 1. Data: meetings.csv, a row per meeting, with the day. Replace this line by your file.
python "$here/further_data.py" meetings

# 2. Convert: every day becomes a snapshot.
hpcgnn snapshots tables meetings.csv meetings.h5 --time day --overwrite

# 3. Partition, and train. In the test, each meeting is ranked among all people at both ends.
hpcgnn partition meetings.h5 parts/ --parts 4 --overwrite
rm -rf run/
mpirun -np "$ranks" hpcgnn train --recipe evolvegcn --data.path parts/ --output.dir run/ \
    --model.kind gconv_gru --model.layers 1 --node_embedding.dim 32 --task.decoder dot --task.loss softmax \
    --eval.ranking filtered --data.val_snapshots 4 --data.test_snapshots 1 --train.epochs 10 --train.lr 0.02

# 4. Predict: the most likely meetings of every person on the day after the last one, with the score of each pair.
mpirun -np "$ranks" hpcgnn predict run/ --top_k 4 --out best.csv

# 5. The result.
python - <<'PYTHON'
import csv
import json

for row in csv.DictReader(open("best.csv")):
    if row["src"] == "Ada0" != row["dst"]:  # a person may be an answer to itself
        print(f"Ada0 may meet {row['dst']} (score {float(row['score']):.2f})")
test = [json.loads(line) for line in open("run/metrics.jsonl")][-1]
print(f"last day: MRR {test['test_mrr']:.4f}, hits@10 {test['test_hits@10']:.4f}")
PYTHON
