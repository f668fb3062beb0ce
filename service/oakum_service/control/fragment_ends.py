"""Ends fragments, and adds what each has trained to sums that are kept when its row is deleted, so that totals
need not be computed from all rows."""

from __future__ import annotations

from sqlalchemy.orm import Session

from oakum_service.control import idle_time
from oakum_service.control.ledger import charge_fragment
from oakum_service.db.after_commit import after_commit
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.trainers import Trainer
from oakum_service.db.models.usage import Harvest
from oakum_service.instruments import FRAGMENT_ENDS
from oakum_service.orders.quotas import add_to_week

_DAY_S = 24 * 3600.0


def end_fragment(session: Session, fragment: Fragment, now: float) -> None:
    """Mark the fragment as ended at `now` (Unix seconds), and add its time to the sums of its trainer, of its
    user's month and week, of the day and of the hour. The fragment has its `cause` by now."""
    fragment.state, fragment.ended_at = FragmentState.ENDED, now
    after_commit(session, lambda: FRAGMENT_ENDS.labels(fragment.cause or "unknown").inc())
    trainer = session.get_one(Trainer, fragment.trainer_id)
    slots = fragment.num_slots
    trainer.past_node_s += slots * max(0.0, now - fragment.launched_at)
    trainer.past_warm_up_node_s += slots * max(0.0, (fragment.training_at or now) - fragment.launched_at)
    charge_fragment(session, trainer.user_name, fragment, now)
    if fragment.cause != "never started":  # it had no node
        add_to_week(session, trainer.user_name, fragment.launched_at, now, slots)
        if fragment.training_at is None:
            idle_time.lose(session, now, start_up_node_s=slots * (now - fragment.launched_at))
    if fragment.training_at is not None:
        harvest = session.get(Harvest, int(now // _DAY_S))
        if harvest is None:
            harvest = Harvest(day=int(now // _DAY_S), node_s=0.0)
            session.add(harvest)
            session.flush()  # another fragment that ends in this turn finds it
        harvest.node_s += slots * max(0.0, now - fragment.training_at)
