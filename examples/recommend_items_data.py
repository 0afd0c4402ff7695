"""Write small data of plays that stand in for yours, in the form of lastfm: user_artists.dat.

300 users play artists; columns userID, artistID and weight (the number of plays), with tabs. An artist has one of 12
styles, and users mostly play the artists of two styles.
"""

import csv

import numpy as np

rng = np.random.default_rng(0)
num_users, num_artists, num_styles = 300, 240, 12
style = rng.integers(0, num_styles, num_artists)

with open("user_artists.dat", "w", newline="") as file:
    writer = csv.writer(file, delimiter="\t", lineterminator="\n")
    writer.writerow(["userID", "artistID", "weight"])
    for user in range(num_users):
        liked = rng.choice(num_styles, 2, replace=False)
        weight = np.where(np.isin(style, liked), 1.0, 0.02)
        for artist in np.sort(rng.choice(num_artists, 15, replace=False, p=weight / weight.sum())):
            writer.writerow([2 + user, 1000 + artist, rng.integers(1, 500)])
