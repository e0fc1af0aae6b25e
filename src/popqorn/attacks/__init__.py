"""Attacks: upper bounds on the perturbation that changes a decision."""
