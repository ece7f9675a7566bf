"""The names of `torch_geometric.profile`, for any model, with or without PyG.

Each works as PyG's does, or better where `docs/pyg.md` says so.
"""

from kinetoscope.integrations.pyg import checks, memory, profiling, recording
from kinetoscope.integrations.pyg.checks import *  # noqa: F403
from kinetoscope.integrations.pyg.memory import *  # noqa: F403
from kinetoscope.integrations.pyg.profiling import *  # noqa: F403
from kinetoscope.integrations.pyg.recording import *  # noqa: F403

__all__ = [*checks.__all__, *memory.__all__, *profiling.__all__, *recording.__all__]  # noqa: PLE0604
