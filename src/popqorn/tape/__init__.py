"""The tape: networks as straight lists of operations."""
