"""Tabular Q-learning for agents with reward machines, each on its own or all as one learner."""
