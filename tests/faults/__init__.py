"""A campaign of faults: what users, machines and clusters do to a training, by one seed.

`python -m tests.faults --seed 0` prints what was tried and what held. A short one is in the tests.
"""
