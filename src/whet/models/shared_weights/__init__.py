"""Share the weights of a model between processes: the first one packs them into a file, and all map it read-only."""

from whet.models.shared_weights.opening import open_shared
from whet.models.shared_weights.places import Measured

__all__ = ["Measured", "open_shared"]
