#!/usr/bin/env bash
# Temporal link prediction: train TGN on a CSV of events, then find the items that a user will buy next.
#   bash examples/tgn_on_events.sh [FOLDER]        # RANKS=4 in front of it: four MPI ranks
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-runs/tgn_on_events}
ranks=${RANKS:-2}
mkdir -p "$folder"
cd "$folder"

# 1. Data: events.csv with the columns src, dst and time. Replace this line by your file.
python "$here/tgn_on_events_data.py"

# 2. Convert: the CSV file becomes a graph file. The ids stay as they are.
hpcgnn convert --preset csv-temporal --set events=events.csv --overwrite events.h5

# 3. Partition: cut the graph into 8 parts. The same parts serve 1 to 8 ranks.
hpcgnn partition events.h5 parts/ --parts 8 --overwrite

# 4. Train TGN on the first 70 % of the events; validation and test follow in time. The decoder "pair" of this recipe
#    also compares the recent neighbors of a user and an item, which finds repeated purchases.
rm -rf run/
mpirun -np "$ranks" hpcgnn train --recipe tgn_pair --data.path parts/ --output.dir run/ \
    --train.epochs 4 --train.batch_size 200 --memory.dim 32 --model.hidden 32 --model.time_dim 16

# 5. Predict: the five best items of user 7 for a purchase after the last event.
printf 'src\n7\n' > queries.csv
mpirun -np "$ranks" hpcgnn predict run/ --top_k 5 --sources queries.csv --out best.csv

# 6. The result: the last purchases of the user, and the five items with the highest scores.
python - <<'PYTHON'
import csv

bought = [row["dst"] for row in csv.DictReader(open("events.csv")) if row["src"] == "7"]
print("last items of user 7:", *bought[-3:])
print("best items for the next purchase:")
for row in csv.DictReader(open("best.csv")):
    print(f"item {row['dst']}: score {float(row['score']):6.2f}, bought {bought.count(row['dst'])} times before")
PYTHON
