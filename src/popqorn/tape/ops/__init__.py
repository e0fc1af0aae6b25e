"""The operations of a tape, one record each."""
