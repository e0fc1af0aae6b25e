"""Specs: what must hold."""
