"""epcx grows large teams of agents by Evolutionary Population Curriculum."""

from epcx import games
from epcx.errors import InputError

__version__ = "0.1.0"
__all__ = ["InputError", "__version__", "games"]
