"""The scenarios by name."""

from ablations import ablations
from by_hand import sql
from claimers import claimers
from crowds import crowds
from drain import drain
from enqueue import enqueue, enqueue_many
from gate import gate
from harness import Scenario
from peers import peers
from pickup import load, pickup
from pinned import pinned, pinned_load
from renewals import renewals

# In the order in which they run by default.
SCENARIOS: dict[str, Scenario] = {
    "drain": drain,
    "sql": sql,
    "enqueue": enqueue,
    "enqueue_many": enqueue_many,
    "gate": gate,
    "pickup": pickup,
    "load": load,
    "pinned": pinned,
    "pinned_load": pinned_load,
    "crowds": crowds,
    "claimers": claimers,
    "ablations": ablations,
    "renewals": renewals,
    "peers": peers,
}
# What neither run takes by itself: it needs an environment of its own.
PEERS = "peers"
IN_FULL = [name for name in SCENARIOS if name != PEERS]
IN_SHORT = [name for name in IN_FULL if name not in {"ablations", "renewals"}]
