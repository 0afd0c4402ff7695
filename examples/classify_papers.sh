#!/usr/bin/env bash
# Node classification: predict the missing topics of papers from their words and citations.
#   bash examples/classify_papers.sh [FOLDER]      # RANKS=4 in front of it: four MPI ranks
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-runs/classify_papers}
ranks=${RANKS:-2}
mkdir -p "$folder"
cd "$folder"

# 1. Data: papers.csv, words.npy and cites.csv. Replace this line by your files.
python "$here/classify_papers_data.py"

# 2. Convert: tables become one graph file.
hpcgnn convert --spec "$here/classify_papers.yaml" --overwrite \
    --set papers=papers.csv --set words=words.npy --set cites=cites.csv papers.h5

# 3. Split: 60 % of the papers for training, 20 % for validation, 20 % for the test, the same shares in every topic.
hpcgnn split papers.h5 split.h5 --nodes paper --fractions 0.6,0.2,0.2 --stratify --overwrite

# 4. Partition: cut the graph into 8 parts. The same parts serve 1 to 8 ranks.
hpcgnn partition split.h5 parts/ --parts 8 --overwrite

# 5. Train GraphSAGE, on a sample of the neighbors of each mini-batch.
rm -rf run/
mpirun -np "$ranks" hpcgnn train --recipe sage --data.path parts/ --output.dir run/ --sampling.fanouts '[10, 10]' \
    --model.layers 2 --model.hidden 32 --train.batch_size 100 --train.epochs 20 --train.lr 0.01

# 6. Predict the class of every paper, by its name.
mpirun -np "$ranks" hpcgnn predict run/ --out topics.csv

# 7. The result: how many of the papers without a topic are classified correctly?
python - <<'PYTHON'
import csv

predicted = {row["node"]: row["class"] for row in csv.DictReader(open("topics.csv"))}
answers = list(csv.DictReader(open("answers.csv")))
right = sum(predicted[row["id"]] == row["topic"] for row in answers)
for row in answers[:5]:
    print(f"{row['id']:10} predicted {predicted[row['id']]:12} true {row['topic']}")
print(f"correct: {right} of {len(answers)} papers without a topic ({100 * right / len(answers):.0f} %)")
PYTHON
