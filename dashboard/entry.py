"""Who gets in: everybody who reaches the port, or with [auth] in secrets.toml who has logged in."""

from collections.abc import Mapping

import streamlit as st

from ui import literal

__all__ = ["admitted", "tell_who"]


def admitted() -> bool:
    """Whether the viewer may look; else draws the way to log in."""
    # Streamlit has the key if and only if [auth] is there.
    if st.user.get("is_logged_in", True):
        return True
    st.title("jobq")
    st.markdown("This dashboard is for those who have an account.")
    for provider in _providers():
        label = f"Log in with {literal(provider)}" if provider else "Log in"
        if st.button(label, icon=":material/login:", key=f"login_{provider}"):
            st.login(provider)
    return False


def tell_who() -> None:
    """Say who has logged in, with a way out."""
    if "is_logged_in" not in st.user:
        return
    st.caption(literal(st.user.get("email") or st.user.get("name") or "logged in"))
    st.button("Log out", icon=":material/logout:", on_click=st.logout)


def _providers() -> list[str | None]:
    section = st.secrets.get("auth", {})
    named: list[str | None] = [
        name for name, value in section.items() if isinstance(value, Mapping)
    ]
    return [None, *named] if "client_id" in section or not named else named
