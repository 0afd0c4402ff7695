"""Write a small citation graph that stands in for your data: papers.csv, words.npy and cites.csv.

1,000 papers have one of four topics. 200 of them have an empty cell in place of the topic: these are to be classified.
"""

import csv

import numpy as np

TOPICS = ["biology", "chemistry", "physics", "statistics"]
rng = np.random.default_rng(0)
num_papers, num_words = 1000, 40
topic = rng.integers(0, len(TOPICS), num_papers)

# A row per paper, a column per word: 1 if the paper has the word. Ten words are more frequent in each topic.
frequency = np.full((len(TOPICS), num_words), 0.10)
for number in range(len(TOPICS)):
    frequency[number, 10 * number : 10 * number + 10] = 0.22
words = (rng.random((num_papers, num_words)) < frequency[topic]).astype(np.float32)
np.save("words.npy", words)

unknown = rng.random(num_papers) < 0.2
with open("papers.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["id", "topic"])
    for paper in range(num_papers):
        writer.writerow([f"paper{paper}", "" if unknown[paper] else TOPICS[topic[paper]]])

# Three of four citations stay within a topic.
with open("cites.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["citing", "cited"])
    for paper in range(num_papers):
        for _ in range(4):
            same_topic = np.flatnonzero(topic == topic[paper])
            cited = rng.choice(same_topic) if rng.random() < 0.75 else rng.integers(num_papers)
            writer.writerow([f"paper{paper}", f"paper{cited}"])

# The answers, to compare with: your data does not have them.
with open("answers.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["id", "topic"])
    writer.writerows((f"paper{paper}", TOPICS[topic[paper]]) for paper in np.flatnonzero(unknown))
