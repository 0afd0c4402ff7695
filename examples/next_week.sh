#!/usr/bin/env bash
# A trained model on new data: TGN learns the events of the first weeks, and scores the ones of the next week.
#   bash examples/next_week.sh [FOLDER]            # RANKS=4 in front of it: four MPI ranks
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-runs/next_week}
ranks=${RANKS:-2}
mkdir -p "$folder"
cd "$folder"

# 1. Data: before.csv has the events until now, next_week.csv the ones after them. Replace these lines by your files.
python "$here/tgn_on_events_data.py"
head -n 5101 events.csv > before.csv
(head -n 1 events.csv && tail -n +5102 events.csv) > next_week.csv

# 2. Now: convert, partition and train.
hpcgnn convert --preset csv-temporal --set events=before.csv --overwrite before.h5
hpcgnn partition before.h5 before-parts/ --parts 8 --overwrite
rm -rf run/
mpirun -np "$ranks" hpcgnn train --recipe tgn_pair --data.path before-parts/ --output.dir run/ \
    --train.epochs 3 --train.batch_size 200 --memory.dim 32 --model.hidden 32 --model.time_dim 16

# 3. A week later: convert and partition all events, old and new. Nothing is trained.
hpcgnn convert --preset csv-temporal --set events=events.csv --overwrite all.h5
hpcgnn partition all.h5 all-parts/ --parts 8 --overwrite

# 4. Predict: the score of each new event, from the events before it.
mpirun -np "$ranks" hpcgnn predict run/ --data.path all-parts/ --pairs next_week.csv --out scores.csv

# 5. Evaluate: each event of the test, the last 15 % of all, is ranked among all items.
mpirun -np "$ranks" hpcgnn evaluate run/ --data.path all-parts/ --eval all > metrics.json

# 6. The result: the least likely events of the next week, and the metrics.
python - <<'PYTHON'
import csv
import json

rows = sorted(csv.DictReader(open("scores.csv")), key=lambda row: float(row["score"]))
for row in rows[:3]:
    print(f"unusual: user {row['src']:2} bought item {row['dst']} at {row['time']} (score {float(row['score']):.2f})")
test = json.loads(open("metrics.json").read().splitlines()[-1])
print(f"next week: {len(rows)} events, MRR {test['test_mrr']:.4f}, hits@10 {test['test_hits@10']:.4f}")
PYTHON
