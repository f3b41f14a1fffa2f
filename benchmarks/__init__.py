"""Measurements of Gradweave: experiments, their records, and the tables and claims from these.

An experiment is `experiments/NAME.py`, usually a call of `experiment.run` with cases and a function
that measures one of them. It is recorded in `results/NAME.json`; `render.py` writes the tables of
README and docs from the records, and `claims` compares the figures in their sentences with them.
"""
