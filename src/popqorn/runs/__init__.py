"""Many samples, one model: rows that survive anything, on one process or many."""
