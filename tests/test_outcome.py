import threading
from collections.abc import Callable

import pytest
from helpers import wait_until

from jobq import _outcome
from jobq._outcome import error_text


class Stuck(Exception):
    """Its text comes when it may."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()

    def __str__(self) -> str:
        self.asked.set()
        self.go.wait(60)
        return "at last"


def with_note(note: object) -> Exception:
    exc = ValueError()
    exc.__notes__ = [note]  # type: ignore[list-item]
    return exc


@pytest.mark.parametrize("make", [lambda stuck: stuck, with_note], ids=["text", "note"])
def test_an_error_whose_text_does_not_come_keeps_no_other_one(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[Stuck], Exception]
) -> None:
    monkeypatch.setattr(_outcome, "FORMATTING_SECONDS", 0.1, raising=False)
    stuck, texts = Stuck(), list[str]()
    try:
        for exc in (make(stuck), ValueError("another"), ValueError("and another")):
            # In threads, as in a worker: else a failure of this test would hang.
            threading.Thread(target=lambda e=exc: texts.append(error_text(e)), daemon=True).start()
            wait_until(stuck.asked.is_set)
        wait_until(lambda: len(texts) == 2, timeout=10)
    finally:
        stuck.go.set()
    assert set(texts) == {"ValueError: another", "ValueError: and another"}
    wait_until(lambda: len(texts) == 3)
    assert texts[2].endswith("at last")
    assert error_text(ValueError("later")) == "ValueError: later"
