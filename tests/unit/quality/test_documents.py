import json
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.quality.documents import latest_runs, read_run, remove_old_runs, write_run
from streamwarden.quality.report import render_index, render_report
from streamwarden.storage import LocalStorage
from tests.unit.quality.made import expectation, run, table

pytestmark = pytest.mark.unit

HOSTILE = "<script>alert('x')</script><img src=\"http://evil.example/x.png\" onerror=alert(1)>"


class Page(HTMLParser):
    """What a browser would see: elements, what they would load, and the text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.loads, self.handlers, self.texts = [], [], [], []
        self.ids = set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "srcset", "data", "poster", "action", "href"):
                self.loads.append(value)
            if name.startswith("on") or (name == "style"):
                self.handlers.append((tag, name))
            if name == "id":
                self.ids.add(value)

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def hostile_run():
    bad = expectation(
        HOSTILE,
        success=False,
        type=HOSTILE,
        columns=(HOSTILE,),
        description=HOSTILE,
        notes=HOSTILE,
        arguments={HOSTILE: HOSTILE},
        examples=({HOSTILE: HOSTILE, "zones": [HOSTILE]},),
    )
    broken = expectation("b", success=False, severity="warning", error=HOSTILE)
    passed = expectation("p", observed=HOSTILE, unexpected_count=None)
    one = table("failed", bad, broken, passed, name=HOSTILE, what=HOSTILE, notes=HOSTILE)
    return run(one, table("not_found", name="v", what=HOSTILE), tables_dir=HOSTILE, spark=HOSTILE)


@pytest.mark.parametrize("render", [render_report, lambda found: render_index([found])])
def test_a_page_escapes_whatever_the_data_holds(render):
    page = Page(render(hostile_run()))
    assert not {"script", "img", "iframe", "object", "link", "base", "form"} & set(page.tags)
    assert page.handlers == []
    assert HOSTILE in page.text


@pytest.mark.parametrize("render", [render_report, lambda found: render_index([found])])
def test_a_page_loads_nothing(render):
    found = run(table("failed", expectation(success=False, examples=({"a": None},))), table("passed", expectation()))
    html = render(found)
    assert "http:" not in html
    assert "https:" not in html
    assert "@import" not in html
    assert "url(" not in html
    page = Page(html)
    assert all(link.startswith(("#", "../index.html", "results.json", "2026")) for link in page.loads), page.loads
    assert "prefers-color-scheme: dark" in html


def test_links_within_the_report_lead_somewhere():
    page = Page(
        render_report(run(table("failed", expectation(success=False)), table("passed", expectation(), name="u")))
    )
    targets = {link.removeprefix("#") for link in page.loads if link.startswith("#")}
    assert targets == {"t", "u"}
    assert targets <= page.ids


def test_failing_tables_and_expectations_come_first():
    good = table("passed", expectation("good", description="Good."), name="aaa")
    warned = table("warned", expectation("w", success=False, severity="warning"), name="bbb")
    bad = table(
        "failed",
        expectation("x", description="Passed one."),
        expectation("y", success=False, severity="warning", description="Warned one."),
        expectation("z", success=False, description="Failed one."),
        name="ccc",
    )
    text = Page(render_report(run(good, warned, bad))).text
    assert text.index("ccc") < text.index("bbb") < text.index("aaa")
    assert text.index("Failed one.") < text.index("Warned one.") < text.index("Passed one.")
    assert "1 of 3 tables do not meet their expectations" in text


@pytest.mark.parametrize(
    ("tables", "headline"),
    [
        ([table("passed", expectation())], "All tables meet their expectations"),
        ([table("warned", expectation(success=False, severity="warning"))], "1 has warnings"),
        ([table("no_rows", rows=0, what="no rows at all")], "1 of 1 table does not meet its expectations"),
    ],
)
def test_the_headline_is_the_verdict(tables, headline):
    assert headline in Page(render_report(run(*tables))).text


def test_examples_are_shown_with_how_many_there_are():
    text = Page(
        render_report(
            run(table("failed", expectation(success=False, examples=({"k": 1, "a": None}, {"k": 2, "a": "x" * 5000}))))
        )
    ).text
    assert "2 of 3 failing rows" in text
    assert "null" in text
    assert "x" * 200 in text
    assert "x" * 201 not in text


def test_documents_are_written_and_read_back(tmp_path):
    storage = LocalStorage(tmp_path)
    found = run(table("failed", expectation(success=False, examples=({"a": None},))))
    write_run(storage, "quality", found)
    folder = tmp_path / "quality" / found.run_id
    document = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert document["format"] == 1
    assert document["success"] is False
    assert document["tables"][0]["version"] == 7
    assert document["tables"][0]["success"] is False
    assert document["tables"][0]["expectations"][0]["examples"] == [{"a": None}]
    assert read_run(storage, "quality", found.run_id) == found
    assert (folder / "report.html").read_text(encoding="utf-8") == render_report(found)
    # Whole files under their final names only.
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "results.json"]


def test_the_list_of_runs_is_newest_first_and_survives_a_broken_one(tmp_path):
    storage = LocalStorage(tmp_path)
    for day in ("02", "01", "03"):
        write_run(storage, "quality", run(table("passed", expectation()), run_id=f"202601{day}T000000Z-aaaaaa"))
    storage.write("quality/20260104T000000Z-aaaaaa/results.json", b"{")
    storage.write("quality/20260105T000000Z-aaaaaa/results.json", b'{"format": 2}')
    assert [item.run_id[:8] for item in latest_runs(storage, "quality")] == ["20260103", "20260102", "20260101"]
    assert [item.run_id[:8] for item in latest_runs(storage, "quality", 3)] == ["20260103"]
    html = (tmp_path / "quality" / "index.html").read_text(encoding="utf-8")
    assert html.index("20260103") < html.index("20260102") < html.index("20260101")


def test_a_run_is_listed_without_reading_the_results_of_others(tmp_path):
    class Counting(LocalStorage):
        def __init__(self, root):
            super().__init__(root)
            self.results = 0

        def read(self, key):
            self.results += key.endswith("results.json")
            return super().read(key)

        def list(self, prefix):
            raise AssertionError("a listing of thousands of runs for each of them")

    write_run(LocalStorage(tmp_path), "quality", run(table("passed", expectation())))
    storage = Counting(tmp_path)
    for number in range(3):
        write_run(storage, "quality", run(table("passed", expectation()), run_id=f"20260103T00000{number}Z-aaaaaa"))
    assert storage.results == 0
    html = (tmp_path / "quality" / "index.html").read_text(encoding="utf-8")
    assert html.count("report.html") == 4


def test_old_runs_are_removed_and_taken_off_the_list(tmp_path):
    storage = LocalStorage(tmp_path)
    for day in range(1, 6):
        write_run(storage, "quality", run(table("passed", expectation()), run_id=f"2026010{day}T000000Z-aaaaaa"))
    (tmp_path / "quality" / "notes").mkdir()
    now, used = datetime(2026, 1, 5, 12, tzinfo=UTC), {"20260101T000000Z-aaaaaa"}
    removed = remove_old_runs(storage, tmp_path, "quality", timedelta(days=2), used=used, now=now)
    assert removed == ["20260102T000000Z-aaaaaa", "20260103T000000Z-aaaaaa"]
    left = sorted(path.name[:8] for path in (tmp_path / "quality").iterdir() if path.is_dir())
    assert left == ["20260101", "20260104", "20260105", "notes"]
    html = (tmp_path / "quality" / "index.html").read_text(encoding="utf-8")
    assert "20260103" not in html and "20260104" in html and "20260101" in html
    assert remove_old_runs(storage, tmp_path, "quality", timedelta(days=2), used=used, now=now) == []


def test_a_run_that_is_not_there_is_said(tmp_path):
    with pytest.raises(StreamwardenError) as caught:
        read_run(LocalStorage(tmp_path), "quality", "gone")
    assert caught.value.code == "DOCUMENT_INVALID"
