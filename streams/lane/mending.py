"""What becomes of a lane's store after an error."""

from __future__ import annotations

import structlog

from streams.errors import StoreBroken, StoreFailed
from streams.ports import Store
from streams.staging.changes import POSITIONS

log = structlog.get_logger(__name__)


def place_of(store: Store | None) -> dict[bytes, bytes] | None:
    """The positions at which a lane has failed; None where its store cannot tell them."""
    if store is None:
        return None
    try:
        return dict(store.scan(POSITIONS))
    except StoreFailed:
        return None


def mended(store: Store | None, error: StoreFailed, lane: int) -> Store | None:
    """Wipe a store that is damaged. Close one that cannot be used, which keeps its copy: None, the lane opens
    it again.
    """
    if store is None:
        return None
    if isinstance(error, StoreBroken):
        log.warning("store_broken", lane=lane, error=str(error), action="wiped, rebuilt from the changelog")
        try:
            store.wipe()
        except StoreFailed as failed:
            log.warning("store_not_wiped", lane=lane, error=str(failed), action="tried again")
        else:
            return store
    store.close()
    return None
