"""The pages as people see them: in Airflow's UI, narrow and wide, light and dark, with rights and without."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamwarden.quality.gate_state import gate_state
from streamwarden.runtime.operation_lock import operations_of
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from tests.browser.conftest import DELETED, JOB, Visitor

pytestmark = pytest.mark.long

Visit = Callable[..., Visitor]


@pytest.fixture
def addresses(place: Workspace) -> dict[str, str]:
    """Every kind of page, with real data."""
    hold = gate_state(place, "trips").record.hold
    operation = next(operations_of(JobDocuments(place.storage, JOB)))
    assert hold is not None
    stream = f"/streams/{JOB}"
    return {
        "streams": "/streams", "stream": stream, "batches": f"{stream}/batches", "spec": f"{stream}/spec",
        "advice": f"{stream}/advice", "logs": f"{stream}/logs", "operations": "/operations",
        "operation": f"/operations/{JOB}/{operation.id}", "savepoints": "/savepoints",
        "savepoints-of-one": f"/savepoints?job={JOB}", "quality": "/quality", "held": "/quality/trips",
        "check": f"/quality/trips/{hold.run}", "act": f"/act/rescale?job={JOB}&memory=1g",
        "deleted": f"/streams/{DELETED}",
        "never-ran": "/streams/zone_windows",
        "nothing-fits": "/streams?q=nothing-like-it", "not-found": "/streams/nobody",
    }  # fmt: skip


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 800])
def test_every_page_fits_and_is_accessible(visit: Visit, addresses: dict[str, str], width: int, dark: bool) -> None:
    from axe_playwright_python.sync_playwright import Axe

    visitor = visit(width=width, dark=dark)
    found: dict[str, Any] = {}
    for name, path in addresses.items():
        visitor.go(path)
        visitor.page.locator("h1").wait_for()
        wide = visitor.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} is {wide} px too wide"
        assert visitor.page.evaluate("document.documentElement.classList.contains('dark')") == dark
        audit = Axe().run(visitor.page).response
        assert len(audit["passes"]) > 10
        serious = [one for one in audit["violations"] if one["impact"] in ("serious", "critical")]
        if serious:
            found[name] = [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in serious]
    assert found == {}
    # A missing page is an answer of 404, which the console reports.
    assert [one for one in visitor.errors if "404" not in one] == []
    assert {re.sub(r"^(\w+://[^/]+).*", r"\1", one) for one in visitor.requests} <= {visitor.url, "data:,"}


def test_inside_airflow_pages_follow_its_theme_and_have_addresses(visit: Visit) -> None:
    visitor = visit()
    frame = visitor.inside("/streams")
    frame.get_by_role("link", name=JOB, exact=True).click()
    frame.locator(f"h1:has-text('{JOB}')").wait_for()
    visitor.page.wait_for_url(f"**/plugin/streams/streamwarden/streams/{JOB}**")
    assert frame.locator(".uplot").count() >= 3
    before = frame.locator("body").evaluate("one => getComputedStyle(one).backgroundColor")
    visitor.page.evaluate("document.documentElement.classList.replace('light', 'dark')")
    visitor.page.wait_for_timeout(500)
    assert frame.locator("body").evaluate("one => getComputedStyle(one).backgroundColor") != before
    visitor.page.reload()
    visitor.page.frame_locator("iframe").first.locator(f"h1:has-text('{JOB}')").wait_for()


def test_a_jobs_dag_has_its_stream_as_a_tab(visit: Visit) -> None:
    visitor = visit()
    visitor.page.goto(f"{visitor.url}/dags/job_{JOB}/plugin/stream", timeout=120_000)
    visitor.page.frame_locator("iframe").first.locator(f"h1:has-text('{JOB}')").wait_for(timeout=120_000)


def test_data_docs_open_inside_airflow(visit: Visit, addresses: dict[str, str]) -> None:
    visitor = visit()
    frame = visitor.inside(addresses["check"])
    frame.get_by_role("link", name="the check", exact=True).click()
    frame.get_by_text("Expectation Validation Result").wait_for()
    # Its style sheets are there, and hide the passed expectations without a script.
    assert frame.locator(".alert").first.evaluate("one => getComputedStyle(one).borderRadius") == "4px"
    shown = frame.locator("tr:visible").count()
    frame.get_by_label("Failed only").check()
    assert 0 < frame.locator("tr:visible").count() < shown
    frame.get_by_role("link", name="Expectation suite").click()
    frame.get_by_text("A collection of Expectations").wait_for()
    frame.get_by_role("link", name="Home").click()
    frame.locator("h1:has-text('Data quality')").wait_for()
    assert visitor.errors == []
    # Airflow's own UI has addresses of blobs.
    asked = {one.removeprefix("blob:") for one in visitor.requests}
    assert {re.sub(r"^(\w+://[^/]+).*", r"\1", one) for one in asked} <= {visitor.url, "data:,"}


def test_pages_work_below_a_prefix(visit: Visit, prefixed: str) -> None:
    visitor = visit(url=prefixed)
    frame = visitor.inside("/streams")
    frame.get_by_role("link", name=JOB, exact=True).click()
    frame.locator(f"h1:has-text('{JOB}')").wait_for()
    visitor.page.wait_for_url(f"{prefixed}/plugin/streams/air/streamwarden/streams/{JOB}**")
    frame.locator(".uplot").first.wait_for()
    visitor.page.reload()
    frame = visitor.page.frame_locator("iframe").first
    frame.get_by_role("link", name="DAG", exact=True).click()
    visitor.page.wait_for_url(f"{prefixed}/dags/job_{JOB}**")
    visitor.page.goto(f"{prefixed}/dags/job_{JOB}/plugin/stream", timeout=120_000)
    visitor.page.frame_locator("iframe").first.locator(f"h1:has-text('{JOB}')").wait_for(timeout=120_000)


def test_an_act_leads_into_airflows_own_form(visit: Visit) -> None:
    visitor = visit()
    frame = visitor.inside(f"/act/rescale?job={JOB}&memory=1g")
    conf = frame.locator("#conf").inner_text()
    frame.get_by_role("link", name="rescale").click()
    # The outer page follows, not the frame.
    visitor.page.wait_for_url("**/dags/rescale**")
    assert visitor.page.locator("iframe").count() == 0
    visitor.page.get_by_test_id("trigger-dag-button").click()
    visitor.page.get_by_role("dialog").wait_for()
    assert '"memory": "1g"' in conf


def test_a_viewer_sees_and_an_operator_acts(visit: Visit) -> None:
    for user, may in (("vera", False), ("otto", True)):
        visitor = visit(user)
        visitor.go(f"/streams/{JOB}")
        assert (visitor.page.get_by_role("link", name="Rescale", exact=True).count() == 1) is may
        visitor.go(f"/act/stop?job={JOB}")
        assert ("You may not trigger" in visitor.page.locator("main").inner_text()) is not may


def test_nobody_is_asked_to_log_in(visit: Visit, addresses: dict[str, str]) -> None:
    visitor = visit(None)
    for path in [*addresses.values(), "/static/pages.js", "/static/uplot.min.js"]:
        answer = visitor.page.context.request.get(f"{visitor.url}/streamwarden{path}")
        assert answer.status == 401 and JOB not in answer.text()


def test_a_dead_driver_is_diagnosed(visit: Visit) -> None:
    visitor = visit()
    visitor.go(f"/streams/{JOB}")
    text = visitor.page.locator("#trouble").inner_text()
    assert "Diagnosis" in text and "What to do" in text and "streamwarden" in text


def test_a_held_table_shows_the_failing_rows(visit: Visit) -> None:
    visitor = visit()
    visitor.go("/quality/trips")
    held = visitor.page.locator("section.note.warn")
    assert "Held: version" in held.inner_text() and held.locator("tbody tr").count() >= 1
    held.get_by_role("link", name="The check in full").click()
    assert "Not met" in visitor.page.locator("main").inner_text()


def test_a_page_says_when_it_is_not_current_and_recovers(visit: Visit) -> None:
    visitor = visit()
    visitor.go("/streams")
    visitor.page.route("**/streams*", lambda route: route.abort())
    visitor.page.locator("#fresh.stale").wait_for(timeout=20_000)
    assert "does not answer" in visitor.page.locator("#fresh").inner_text()
    visitor.page.unroute("**/streams*")
    visitor.page.locator("#fresh:not(.stale)").wait_for(timeout=60_000)


def test_a_page_that_stays_open_asks_seldom_and_does_not_grow(visit: Visit) -> None:
    visitor = visit()
    visitor.page.clock.install()
    visitor.go(f"/streams/{JOB}")
    visitor.page.locator(".uplot").first.wait_for()

    def nodes() -> int:
        return int(visitor.page.evaluate("document.querySelectorAll('*').length"))

    def answered(times: int) -> None:
        for _ in range(times):
            with visitor.page.expect_response("**/streams/**"):
                visitor.page.clock.run_for(5_000)

    answered(2)
    first, asked = nodes(), len(visitor.requests)
    answered(20)
    # 100 seconds of the page's clock: a request each 5 s at most, and no more elements than before.
    assert len(visitor.requests) - asked <= 21
    assert nodes() <= first


def test_the_keyboard_reaches_everything(visit: Visit) -> None:
    visitor = visit()
    visitor.go("/streams")
    visitor.page.keyboard.press("Tab")
    assert visitor.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    visitor.page.keyboard.press("Enter")
    for _ in range(40):
        visitor.page.keyboard.press("Tab")
        if visitor.page.evaluate("document.activeElement.textContent") == JOB:
            break
    visitor.page.keyboard.press("Enter")
    visitor.page.locator(f"h1:has-text('{JOB}')").wait_for()


def test_pictures(visit: Visit, addresses: dict[str, str], tmp_path: Path) -> None:
    """Take the pictures of docs/pages.md; ``STREAMWARDEN_PICTURES`` names their folder."""
    folder = Path(os.environ.get("STREAMWARDEN_PICTURES") or tmp_path)
    visitor = visit()
    for name in ("stream", "held", "operation"):
        visitor.page.set_viewport_size({"width": 1280, "height": 1700 if name == "stream" else 900})
        visitor.inside(addresses[name])
        visitor.page.wait_for_timeout(1_500)
        visitor.page.screenshot(path=folder / f"pages-{name}.png")
        assert (folder / f"pages-{name}.png").stat().st_size > 10_000
