"""The pages of the dashboard in a real browser: live, fast, safe, and usable by everyone."""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from urllib.parse import quote

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
sys.path.append(str(Path(__file__).parent))

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: run scripts/setup venv")

from dashboard_browser import dashboard, visit  # noqa: E402
from dashboard_runs import kept_run, record_a_step  # noqa: E402
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright  # noqa: E402

from dashboards.generated_runs import make_run  # noqa: E402
from dashboards.hostile import TASK_ID, add_hostile_episodes  # noqa: E402
from mcprl.episodes.rewards import PENALTIES  # noqa: E402
from mcprl.runs.folder import RunFolder  # noqa: E402

pytestmark = pytest.mark.process

LARGE, SMALL, HOSTILE = 100_000, 1_600, 100
expect.set_options(timeout=30_000)  # what is timed is timed by itself: all else may wait for a busy machine
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module", autouse=True)
def _built(root):
    if not (root / "packages/dashboard/src/mcprl_dashboard/static/index.html").is_file():
        pytest.skip("the pages of the dashboard are not built: run scripts/setup dashboard")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def model(root) -> Path:
    found = root / ".cache" / "models" / "tiny-qwen3"
    if not found.exists():
        pytest.skip(".cache/models/tiny-qwen3 is missing: run scripts/setup")
    return found


@pytest.fixture(scope="module")
def outputs(tmp_path_factory, model) -> Path:
    """Three runs; the first has a hundred hostile episodes in its last step."""
    folder = tmp_path_factory.mktemp("outputs")
    make_run(folder / "first", model=model, episodes=SMALL, steps_ahead=10)
    add_hostile_episodes(folder / "first", HOSTILE)
    make_run(folder / "second", model=model, episodes=400, seed=6)
    make_run(folder / "live", model=model, episodes=800, steps_ahead=10, seed=7)
    return folder


@pytest.fixture(scope="module")
def link(outputs) -> Iterator[str]:
    with dashboard(outputs) as served:
        yield served


@pytest.fixture(scope="module")
def paths(outputs) -> dict[str, str]:
    """The address of each page, with something to show on it."""
    task = json.loads((outputs / "first" / "tasks.jsonl").read_text().splitlines()[0])["id"]
    return {
        "runs": "/",
        "run": "/runs/first",
        "compare": "/compare?runs=first,second",
        "episodes": "/runs/first/episodes",
        "task": f"/runs/first/tasks/{quote(task, safe='')}",
    }


def _first_episode(page: Page) -> str:
    link = page.locator("table.episodes tbody a").first
    href = link.get_attribute("href")
    assert href is not None
    return href


def _settled(page: Page) -> None:
    """Until the page shows what it asked for."""
    expect(page.locator("main h1")).to_be_visible()
    page.wait_for_load_state("load")
    expect(page.get_by_text("Reading…")).to_have_count(0)


def test_a_step_that_is_recorded_shows_by_itself(browser, link, outputs, record_property):
    with visit(browser, link) as seen, RunFolder.open(outputs / "live") as folder:
        page = seen.open("/runs/live")
        expect(page.locator(".live")).to_have_text("Live")
        expect(page.locator("[data-figure=steps]")).to_have_text("2 of 12")
        expect(page.locator("main .badge").first).to_have_text("running")
        waits: list[float] = []
        for step, reward in ((2, 0.4242), (3, 0.5353), (4, 0.6464)):
            record_a_step(folder, step, reward)
            began = time.monotonic()
            page.wait_for_function(
                "want => document.querySelector('[data-figure=reward]').textContent === want", arg=f"+{reward:.3f}"
            )
            waits.append(time.monotonic() - began)
        record_property("live_s", round(median(waits), 3))
        expect(page.locator("[data-figure=steps]")).to_have_text("5 of 12")
        expect(page.locator("[aria-label^='Reward, steps 1 to 5']")).to_be_visible()
        expect(page.get_by_role("button", name="dead groups, warn, steps 3 to 5")).to_be_visible()


@pytest.mark.alone
def test_a_hundred_thousand_episodes_are_opened_filtered_and_searched(browser, root, model, record_property):
    run = kept_run(root, model, LARGE)
    with dashboard(run.parent) as served, visit(browser, served) as seen:
        page = seen.open(f"/runs/{run.name}/episodes")
        page.wait_for_selector(".result-line[data-total='100000']")
        page.wait_for_function("() => !document.body.textContent.includes('still being read')", timeout=120_000)
        # Of a run that the server has read; bench/dashboard.py times the first opening, while it reads.
        openings = [_time_to_open(page) for _ in range(3)]
        result = page.locator(".result-line")
        expect(result).to_contain_text("100,000 episodes")
        filters = [
            _time_until_another_total(page, lambda: page.get_by_label("solved", exact=True).check(force=True)),
            _time_until_another_total(page, lambda: page.get_by_label("Tool").select_option("get_quote")),
            _time_until_another_total(page, lambda: page.get_by_label("With a fault").check()),
        ]
        page.get_by_role("button", name="Clear").click()
        expect(result).to_contain_text("100,000 episodes")
        search = page.get_by_label("Search all text")
        words = ("meeting moved", "FLUX costs", "not there at all")
        searches = [_time_until_another_total(page, lambda word=word: search.fill(word)) for word in words]
        record_property("page_s", round(max(median(openings), median(filters), median(searches)), 3))


def _time_to_open(page: Page) -> float:
    began = time.monotonic()
    page.reload(wait_until="commit")
    page.wait_for_selector("table.episodes tbody tr")
    return time.monotonic() - began


def _time_until_another_total(page: Page, act) -> float:
    before = page.locator(".result-line").get_attribute("data-total")
    began = time.monotonic()
    act()
    page.wait_for_function(
        "before => { const line = document.querySelector('.result-line');"
        " return line.dataset.loading === 'false' && line.dataset.total !== before; }",
        arg=before,
    )
    return time.monotonic() - began


def test_a_hundred_hostile_episodes_execute_nothing(browser, link):
    with visit(browser, link) as seen:
        page = seen.open(f"/runs/first/episodes?task={quote(TASK_ID)}")
        expect(page.locator(".result-line")).to_contain_text("100 of")
        page = seen.open(_first_episode(page))
        columns = page.locator(".column")
        expect(columns).to_have_count(HOSTILE)
        for member in (*range(0, HOSTILE, 2), HOSTILE - 1):
            columns.nth(member).scroll_into_view_if_needed()
        expect(page.locator(".column .turn")).to_have_count(HOSTILE, timeout=240_000)
        assert "<script>window.hacked=1</script>" in columns.nth(0).inner_text()
        assert "U+202E" in page.locator(".column", has_text="U+202E").first.inner_text()
        for more in page.get_by_role("button", name="more characters").all()[:20]:
            more.click()
        for view in ("one", "tokens"):
            expect(page.locator("main h1")).to_contain_text("hostile <img")
            page.goto(page.url.split("?")[0] + f"?view={view}")
            _settled(page)
        seen.open(f"/runs/first/tasks/{quote(TASK_ID, safe='')}")
        _settled(page)
        assert page.evaluate("typeof window.hacked + typeof ({}).hacked") == "undefinedundefined"
        assert page.locator("main :is(script, iframe, object, embed, base, meta, link, form, img, video)").count() == 0


PREAMBLE = [
    {"role": "system", "content": "Use the tools."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "find_person", "arguments": {}}}],
    },
]


def test_an_episode_shows_its_question_first_and_penalties_as_losses(browser, link):
    def with_preamble_and_penalties(route: Route) -> None:
        answer = route.fetch()
        shown = answer.json()
        shown["task"]["preamble"] = PREAMBLE
        shown["episode"]["reward_parts"] = {"answer": 1.0, **dict.fromkeys(PENALTIES, 1.0)}
        route.fulfill(response=answer, json=shown)

    with visit(browser, link) as seen:
        page = seen.open("/runs/second/episodes?sort=step&order=asc")
        expect(page.locator("table.episodes tbody td").first).to_have_text("1")
        page.route("**/episode?*", with_preamble_and_penalties)
        page = seen.open(f"{_first_episode(page)}?view=one")
        expect(page.locator(".step-switch")).to_contain_text("step 1")
        expect(page.locator(".task-card .message").first).to_have_class("message user")
        call = page.locator(".task-card .call-name", has_text="find_person")
        expect(call).to_be_hidden()
        page.get_by_text("Preamble, 2 messages").click()
        expect(call).to_be_visible()
        expect(page.locator(".parts dd .figures.down")).to_have_text(["−1.00"] * len(PENALTIES))
        expect(page.locator(".parts dd .figures:not(.down)")).to_have_text("+1.00")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_page(browser, link, paths, root, theme):
    source = root / "packages/dashboard/web/node_modules/axe-core/axe.min.js"
    if not source.is_file():
        pytest.skip("axe-core is missing: run scripts/setup dashboard")
    axe = source.read_text()
    with visit(browser, link, theme=theme) as seen:
        found: dict[str, list[str]] = {}
        for name, path in paths.items():
            page = seen.open(path)
            _settled(page)
            found[name] = seen.faults(axe)
        episode = _first_episode_of(seen.open(paths["episodes"]))
        for view in ("group", "one", "tokens"):
            page = seen.open(f"{episode}?view={view}")
            _settled(page)
            found[view] = seen.faults(axe)
        assert {name: faults for name, faults in found.items() if faults} == {}


def _first_episode_of(page: Page) -> str:
    page.get_by_label("Task").fill("market-0000")
    expect(page.locator(".task-cell").first).to_contain_text("market-0000")
    return _first_episode(page)


def test_everything_can_be_reached_with_keys(browser, link, paths):
    with visit(browser, link) as seen:
        page = seen.open(paths["episodes"])
        expect(page.locator("table.episodes tbody tr")).to_have_count(50)
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        expect(page.locator("tr.chosen")).to_have_count(1)
        expect(page.locator("table.episodes tbody tr").nth(1)).to_have_class("chosen")
        page.keyboard.press("/")
        expect(page.get_by_label("Search all text")).to_be_focused()
        page.keyboard.type("costs")
        expect(page).to_have_url(f"{seen.address}{paths['episodes']}?q=costs")
        page.keyboard.press("Escape")
        expect(page).to_have_url(f"{seen.address}{paths['episodes']}")
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_have_count(0)
        episode = _first_episode_of(page)
        seen.open(episode)
        expect(page.locator(".member.chosen")).to_contain_text("#0")
        page.keyboard.press("l")
        expect(page.locator(".member.chosen")).to_contain_text("#1")
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".member.chosen")).to_contain_text("#0")
        page.keyboard.press("t")
        expect(page.locator(".tokens")).to_be_visible()
        page.locator(".tokens").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".token-figures")).to_contain_text("logprob")


def test_a_view_can_be_passed_on_by_its_address(browser, link, paths):
    with visit(browser, link) as seen:
        page = seen.open(paths["episodes"] + "?outcome=solved&sort=reward&order=asc")
        expect(page.get_by_label("solved", exact=True)).to_be_checked()
        expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", "ascending")
        page.get_by_role("link", name="Overview").click()
        expect(page.locator("[data-figure=steps]")).to_be_visible()
        page.go_back()
        expect(page.get_by_label("solved", exact=True)).to_be_checked()


def test_the_chosen_theme_stays_chosen(browser, link):
    with visit(browser, link) as seen:
        page = seen.open("/")
        page.get_by_role("button", name="Use the dark theme").click()
        seen.open("/runs/first")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_a_phone_shows_every_page_without_scrolling_sideways(browser, link, paths):
    with visit(browser, link, **PHONE) as seen:
        wide: dict[str, int] = {}
        episode = _first_episode_of(seen.open(paths["episodes"]))
        views = {view: f"{episode}?view={view}" for view in ("group", "one", "tokens")}
        for name, path in {**paths, **views}.items():
            page = seen.open(path)
            _settled(page)
            wide[name] = page.evaluate("document.documentElement.scrollWidth")
        assert {name: width for name, width in wide.items() if width > PHONE["width"]} == {}
