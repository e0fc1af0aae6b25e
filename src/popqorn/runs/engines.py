"""Who does the work, by name: this process, several, or a cluster."""

from typing import Any

from popqorn.runs.cluster import Cluster
from popqorn.runs.engine import Engine
from popqorn.runs.local import Local, Processes


def read_engine(engine: Any, workers: int | None = None, address: str | None = None, device: str = "cpu") -> Engine:
    """By name, or as it is; `device` is where it will compute."""
    if engine == "local":
        return Local()
    if engine == "processes":
        return Processes() if workers is None else Processes(workers)
    if engine == "ray":
        return Cluster(workers, address, device)
    if not isinstance(engine, Engine):
        raise ValueError(f"engine is {engine!r}; pass 'local', 'processes', 'ray', or an object with `workers` and `work`")
    return engine
