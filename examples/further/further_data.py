"""Write small data that stand in for yours, for the programs of this folder.

python further_data.py entities     # triples.nt, trainingSet.tsv, testSet.tsv, in the form of AIFB
python further_data.py meetings     # meetings.csv: who met whom on which day
"""

import csv
import sys

import numpy as np

rng = np.random.default_rng(0)


def entities(num_persons=160, num_papers=400):
    """Persons of four groups write papers, mostly with others of their group. The group is to be predicted."""
    base = "http://example.org/"
    group = rng.integers(0, 4, num_persons)
    lines = []
    for paper in range(num_papers):
        subject = f"<{base}paper{paper}>"
        own = rng.integers(4)
        authors = rng.choice(np.flatnonzero(group == own), 2, replace=False)
        guest = rng.integers(num_persons)
        for person in {*authors, guest}:
            lines.append(f"{subject} <{base}onto#author> <{base}person{person}> .\n")
        lines.append(f"{subject} <{base}onto#project> <{base}project{3 * own + rng.integers(3)}> .\n")
        lines.append(f'{subject} <{base}onto#year> "{1995 + rng.integers(10)}" .\n')
    with open("triples.nt", "w") as file:
        file.writelines(lines)
    order = rng.permutation(num_persons)
    for name, rows in (("training", order[:120]), ("test", order[120:])):
        with open(f"{name}Set.tsv", "w", newline="") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(["person", "id", "label_affiliation"])
            writer.writerows([f"{base}person{row}", row, f"{base}group{group[row]}"] for row in rows)


def meetings(num_people=60, num_days=30):
    """People meet the four others of their team on most days, and now and then anybody else."""
    names = [f"{first}{second}" for first in ("Ada", "Ben", "Cem", "Dan", "Eva", "Fay") for second in range(10)]
    with open("meetings.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["src", "dst", "day"])
        for day in range(num_days):
            for person in range(num_people):
                team = [other for other in range(person // 5 * 5, person // 5 * 5 + 5) if other != person]
                met = {other for other in team if rng.random() < 0.7} | {int(rng.integers(num_people))} - {person}
                writer.writerows([names[person], names[other], day] for other in sorted(met))


if __name__ == "__main__":
    {"entities": entities, "meetings": meetings}[sys.argv[1]]()
