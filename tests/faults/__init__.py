"""Faults in real jobs, and what must follow: `bash tests/soak.sh` prints the table, test_faults.py has some rows."""
