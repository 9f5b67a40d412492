"""The dashboard: `jobq dashboard`, or `streamlit run app.py` with DATABASE_URL set.

Where things are: `queries` asks the database, `actions` calls its verbs, `data` holds the
connections and what was read, `ui` is what the screens share, and each screen only draws.
"""

from pathlib import Path

import streamlit as st

import queries
import questions
from data import Away, read, rights
from entry import admitted, tell_who
from ui import literal

INTERVALS = ["1 s", "2 s", "5 s", "10 s", "30 s", "off"]

# The toolbar of a data frame offers a CSV that a spreadsheet would run as formulas; ours are safe.
_STYLE = """
<style>
[data-testid="stElementToolbar"] { display: none; }
[data-testid="stMainBlockContainer"] { padding: 3rem clamp(1rem, 2.5vw, 5rem) 4rem; }
</style>
"""


def main() -> None:
    """Draw the frame and the chosen screen."""
    # A named icon would be fetched from another host.
    st.set_page_config("jobq", page_icon=Path(__file__).with_name("icon.svg"), layout="wide")
    st.html(_STYLE)
    if not admitted():
        return
    page = st.navigation(
        {
            "Queue": [
                st.Page(
                    "screens/overview.py",
                    title="Overview",
                    icon=":material/dashboard:",
                    default=True,
                ),
                st.Page("screens/jobs.py", title="Jobs", icon=":material/list:"),
                st.Page("screens/failures.py", title="Failures", icon=":material/error:"),
                st.Page("screens/job.py", title="Job", icon=":material/timeline:"),
                st.Page("screens/new_job.py", title="New job", icon=":material/add_circle:"),
            ],
            "Capacity": [
                st.Page("screens/workers.py", title="Workers", icon=":material/engineering:"),
                st.Page("screens/kinds.py", title="Kinds", icon=":material/category:"),
            ],
            "System": [
                st.Page("screens/database.py", title="Database", icon=":material/database:"),
                st.Page("screens/sql_api.py", title="SQL API", icon=":material/code:"),
            ],
        }
    )
    with st.sidebar:
        st.selectbox(
            "Refresh every",
            INTERVALS,
            index=2,
            key="refresh",
            bind="query-params",
            persist_state="session",
        )
        _tell_where()
        tell_who()
    st.title(page.title)
    questions.withdraw(page.url_path, str(st.query_params.get("job", "")))
    page.run()


def _tell_where() -> None:
    """Which database this is, who looks at it, and whether anything can be done here."""
    try:
        where = read(queries.where).data
        may = rights()
    except Away as away:
        st.error(literal(away, 500), icon=":material/cloud_off:")
        return
    st.caption(
        f"database **{literal(where['database'])}** on PostgreSQL {literal(where['version'])},"
        f" as {literal(where['role'])}"
    )
    if may.reason and not may.steer:
        st.caption(f":material/lock: {literal(may.reason, 500)}")


main()
