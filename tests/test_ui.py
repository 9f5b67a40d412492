"""What the screens share: text that stays text, times of any year, CSV that calculates nothing."""

import csv
import io
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

import ui
from ui import csv_of, literal, span, when

JOINER = "\u2060"
LAST = datetime.max.replace(tzinfo=UTC)
FIRST = datetime.min.replace(tzinfo=UTC)


def joined(text: str) -> str:
    """The text as a page shows it: without escapes, "|" for what cannot be seen."""
    return literal(text).replace("\\", "").replace(JOINER, "|")


class TestLiteral:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            (":material/delete:", ":|material/delete:"),
            (":material_delete: :streamlit:", ":|material_delete: :|streamlit:"),
            ("a -> b <- c -- d >= e <= f ~= g", "a -|> b <|- c -|- d >|= e <|= f ~|= g"),
            ("<->", "<|->"),
            ("x <-> -> y", "x <|-> -|> y"),
            ("\ufeff-> y", "\ufeff-|> y"),
            ("see https://evil.example/x", "see https:|//evil.example/x"),
            ("HTTP://x.y or WWW.x.y", "HTTP:|//x.y or WWW|.x.y"),
            ("ada@example.org", "ada@|example.org"),
        ],
    )
    def test_what_would_be_rewritten_after_unescaping_is_broken_up(
        self, text: str, shown: str
    ) -> None:
        assert joined(text) == shown

    @pytest.mark.parametrize(
        "text",
        ["a->b", "f()-> ;", "x--", "--- ", "--flag", ">== <> >> -= ~~ ~>", "a: b", ":red[x]",
         "material/x", "a @ b", "a@b", "wwwx", "http:/x"],
    )  # fmt: skip
    def test_other_text_has_nothing_put_in(self, text: str) -> None:
        assert joined(text) == text.strip()


class TestWhen:
    @pytest.mark.parametrize(
        ("zone", "moment", "text"),
        [
            ("Asia/Tokyo", LAST, "9999-12-31 23:59:59.999 UTC"),
            ("America/New_York", LAST, "9999-12-31 18:59:59.999 EST"),
            ("America/New_York", FIRST, "0001-01-01 00:00:00.000 UTC"),
        ],
    )
    def test_a_time_beyond_the_viewers_calendar_is_told_in_utc(
        self, monkeypatch: pytest.MonkeyPatch, zone: str, moment: datetime, text: str
    ) -> None:
        monkeypatch.setattr(ui, "viewer_zone", lambda: ZoneInfo(zone))
        assert when(moment).rjust(27, "0") == text


def value_of(text: str) -> str:
    """The value as a spreadsheet takes it from the file."""
    (_, row) = csv.reader(io.StringIO(csv_of([{"x": text}], ["x"])))
    return row[0]


class TestCsv:
    @pytest.mark.parametrize(
        ("text", "harmless"),
        [
            ("=1+1", "'=1+1"),
            ("  @x", "'  @x"),
            ("\t=1", "'\t'=1"),
            ("\uff1d1", "'\uff1d1"),
            ("\uff0b1;\uff0d1;\uff201", "'\uff0b1;'\uff0d1;'\uff201"),
            ("x;=1+1", "x;'=1+1"),
            ("x\t+1\r-1\n@1", "x\t'+1\r'-1\n'@1"),
            ("x, =1", "x,' =1"),
            ('x;"=1+1";y', "x;'\"=1+1\";y"),
        ],
    )  # fmt: skip
    def test_what_a_spreadsheet_would_calculate_gets_a_quote(
        self, text: str, harmless: str
    ) -> None:
        assert value_of(text) == harmless

    @pytest.mark.parametrize("text", ["a=1", "a - b", "x; y=1", "E: no, a-b", "", "1;2"])
    def test_other_text_is_left_as_it_is(self, text: str) -> None:
        assert value_of(text) == text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0081, "8.1 ms"), (0.9994, "999 ms"), (0.9996, "1 s"), (59.94, "59.9 s"),
        (59.97, "60 s"), (245, "4 min 5 s"), (-3.25, "-3.25 s"),
    ],
)  # fmt: skip
def test_a_duration_is_told_in_units_of_its_size(seconds: float, words: str) -> None:
    assert span(seconds) == words
