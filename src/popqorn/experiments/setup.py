"""What every experiment is given."""

from dataclasses import dataclass
from pathlib import Path

from popqorn.experiments.tracking import Track


@dataclass(frozen=True)
class Setup:
    """Where data is read from and networks are kept, how much to do, and whom to tell how far it is.

    `quick` asks for a version of a few minutes: fewer networks and shorter samples, the same outputs.
    """

    data: Path
    networks: Path
    samples: int
    quick: bool
    track: Track
