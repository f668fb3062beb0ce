"""The header of the copy of the state in a node's memory, for callers that ask only whether there is a copy.

    bytes 0-7    1 + the copy's step; 0 while there is none or one is being written
    bytes 8-15   length of the JSON document that follows the header

Imports without torch.
"""

from __future__ import annotations

import os
import struct

HEADER = struct.Struct("<QQ")


def has_copy(descriptor: int) -> bool:
    """Whether the file `descriptor` holds a whole copy of the state."""
    header = os.pread(descriptor, HEADER.size, 0)
    return len(header) == HEADER.size and HEADER.unpack(header)[0] > 0
