"""Whose a file or folder is: whether another account may have made or changed it."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection

ROOT = 0
"""The account that may write any file anyway."""
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def other_owner(state: os.stat_result, trusted: Collection[int] = ()) -> str | None:
    """Which account owns what has this state; None for this account, root, and the `trusted` ones."""
    if state.st_uid in (os.geteuid(), ROOT, *trusted):
        return None
    return f"it belongs to another account (uid {state.st_uid})"


def stranger(state: os.stat_result, trusted: Collection[int] = ()) -> str | None:
    """Who beside the accounts of `other_owner` may have written what has this state; None if nobody."""
    if state.st_mode & _WRITABLE_BY_OTHERS:
        others = f"other accounts may write it (mode {stat.S_IMODE(state.st_mode):04o})"
        return other_owner(state, trusted) or others
    return other_owner(state, trusted)


def may_replace(folder: os.stat_result) -> str | None:
    """Who beside this account and root may put something else in the place of what is in the folder; None if
    nobody. That its owner shares it with a group is the owner's choice."""
    is_open = folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX
    all_may = f"all accounts may write it (mode {stat.S_IMODE(folder.st_mode):04o})" if is_open else None
    return other_owner(folder) or all_may
