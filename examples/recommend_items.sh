#!/usr/bin/env bash
# Recommendation: train GraphSAGE on users and artists, then find 20 new artists for every user.
#   bash examples/recommend_items.sh [FOLDER]      # RANKS=4 in front of it: four MPI ranks
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-runs/recommend_items}
ranks=${RANKS:-2}
mkdir -p "$folder"
cd "$folder"

# 1. Data: user_artists.dat, a row per user and artist. Replace this line by your file.
python "$here/recommend_items_data.py"

# 2. Convert: the columns userID and artistID become users, artists and their edges, in both directions.
cat > plays.yaml <<'YAML'
files:
  plays: {delimiter: "\t"}
nodes:
  - {type: user}
  - {type: artist}
edges:
  - {relation: user.plays.artist, file: plays, src: userID, dst: artistID, reverse: played_by}
YAML
hpcgnn convert --spec plays.yaml --set plays=user_artists.dat --overwrite plays.h5

# 3. Split: 80 % of the edges for training, 10 % for validation, 10 % for the test.
hpcgnn split plays.h5 split.h5 --relation user.plays.artist --overwrite

# 4. Derive: join artists that three users play in training.
hpcgnn derive split.h5 ready.h5 --relation user.plays.artist --overwrite

# 5. Partition: cut the graph into 8 parts. The same parts serve 1 to 8 ranks.
hpcgnn partition ready.h5 parts/ --parts 8 --overwrite

# 6. Train. At the end, the artists of each user in the test are ranked among all artists, the ones of training left out.
rm -rf run/
mpirun -np "$ranks" hpcgnn train --recipe bipartite --data.path parts/ --output.dir run/ \
    --task.relation user.plays.artist --model.hidden 32 --train.batch_size 512 --train.epochs 6

# 7. Predict: the 20 best artists of every user that the user does not play yet.
mpirun -np "$ranks" hpcgnn predict run/ --top_k 20 --new_only --out best.csv

# 8. The result.
python - <<'PYTHON'
import csv
import json

best = [row for row in csv.DictReader(open("best.csv")) if row["src"] == "7"]
print("best artists for user 7:", *(row["dst"] for row in best[:8]), "...")
test = [json.loads(line) for line in open("run/metrics.jsonl")][-1]
print(f"test: recall@20 {test['test_recall@20']:.4f}")
PYTHON
