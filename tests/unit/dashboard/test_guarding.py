"""Who may ask the dashboard, and what its answers allow a browser to do."""
# R29

from __future__ import annotations

import asyncio

import pytest
from shown_runs import ADDRESS, TOKEN, browser_of, client_of

from mcprl_dashboard.app import make_app
from mcprl_dashboard.open_run import RunList

pytestmark = pytest.mark.slow

PATHS = ("/", "/api/runs", "/api/runs/shown/episodes", "/api/nothing", "/assets/none.js")


@pytest.mark.parametrize(
    "host", ["example.com", "127.0.0.1", "127.0.0.1:1", "localhost:81230", "127.0.0.1:8123.evil.com", "[::1]:8123", ""]
)
def test_a_request_for_another_host_is_refused(client, host):
    answer = client.get("/api/runs", headers={"host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign-host")


@pytest.mark.parametrize(
    "origin",
    ["http://example.com", "null", "https://127.0.0.1:8123", "http://127.0.0.1:8123@evil.com", "http://["],
)
def test_a_request_from_another_page_is_refused(client, origin):
    answer = client.get("/api/runs", headers={"origin": origin})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign-origin")


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST"])
def test_its_own_page_may_ask(client, name):
    headers = {"host": f"{name}:8123", "origin": f"http://{name}:8123"}
    assert client.get("/api/runs", headers=headers).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_looking_is_allowed(client, method):
    assert client.request(method, "/api/runs").status_code == 405


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_forbids_scripts_frames_and_guessing_of_types(client, path):
    for headers in ({}, {"host": "evil.com"}, {"origin": "http://evil.com"}):
        answer = client.get(path, headers=headers)
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in answer.headers


def test_a_fault_of_the_dashboard_itself_tells_nothing_and_has_the_headers_too(folder, monkeypatch):
    runs: list[RunList] = []
    client_of(folder.path.parent, runs)
    monkeypatch.setattr(runs[0], "cards", lambda: 1 // 0)
    broken = browser_of(make_app(runs[0], asyncio.Event(), token=TOKEN), raise_server_exceptions=False)
    answer = broken.get("/api/runs")
    assert (answer.status_code, answer.text) == (500, "Internal Server Error")
    assert "content-security-policy" in answer.headers


def test_a_large_answer_is_compressed(client):
    answer = client.get("/api/runs/shown", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert str(answer.url).startswith(ADDRESS)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("given", [None, "", "wrong", TOKEN[:-1], f"{TOKEN}x", "t\u00f6ken"])
def test_nothing_is_answered_without_the_token(client, path, given):
    client.cookies.clear()
    if given is None:
        answer = client.get(path)
    else:
        answer = client.get(path, params={"token": given})
        assert "set-cookie" not in answer.headers
        answer = client.get(path, headers={"cookie": f"mcprl-8123={given}".encode()})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "no-token")


def test_the_printed_link_sets_a_cookie_and_leaves_no_token_in_the_address(client):
    client.cookies.clear()
    answer = client.get("/api/runs", params={"token": TOKEN, "q": "a b", "x": "1"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/api/runs?q=a+b&x=1")
    assert answer.headers["cache-control"] == "no-store"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert client.get("/api/runs").status_code == 200


def test_the_token_opens_nothing_for_another_page_or_host(client):
    for headers in ({"host": "evil.com"}, {"origin": "http://evil.com"}):
        assert client.get("/api/runs", params={"token": TOKEN}, headers=headers).status_code == 403
