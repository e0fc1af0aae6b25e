"""Regions: what the adversary may do."""
