"""The standard analyses, against the same figures computed with the standard library."""
# R14

from __future__ import annotations

import statistics

import pytest

pytest.importorskip("pandas", reason="pandas is missing: run scripts/setup")

from mcprl_market.python.analyses import correlation, summary, trend

CLOSES = [192.25, 194.03, 194.35, 195.87, 194.48, 193.03]
VOLUMES = [5.0, 3.0, 8.0, 1.0, 9.0, 2.0]
RECORDS = [
    {"date": f"2024-04-{day:02}", "symbol": "VLKN", "close": close, "volume": volume}
    for day, close, volume in zip(range(20, 26), CLOSES, VOLUMES, strict=True)
]
FORMS = {
    "records": RECORDS,
    "records out of order": [RECORDS[n] for n in (3, 0, 5, 1, 4, 2)],
    "records under a key": {"results": RECORDS},
    "columns": {"close": CLOSES, "volume": VOLUMES},
    "numbers as texts": [{**record, "close": str(record["close"])} for record in RECORDS],
}


@pytest.mark.parametrize("form", FORMS)
def test_a_summary_has_the_figures_of_each_column(form):
    found = summary(FORMS[form])
    assert found["rows"] == 6
    assert set(found["columns"]) == {"close", "volume"}
    close = found["columns"]["close"]
    assert close["count"] == 6
    assert close["mean"] == pytest.approx(statistics.fmean(CLOSES), abs=1e-6)
    assert close["std"] == pytest.approx(statistics.stdev(CLOSES), abs=1e-6)
    assert (close["min"], close["max"]) == (min(CLOSES), max(CLOSES))
    assert close["50%"] == pytest.approx(statistics.median(CLOSES), abs=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_trend_goes_from_the_first_day_to_the_last(form):
    close = trend(FORMS[form])["columns"]["close"]
    line = statistics.linear_regression(range(6), CLOSES)
    assert (close["first"], close["last"], close["direction"]) == (192.25, 193.03, "up")
    assert close["change"] == pytest.approx(0.78)
    assert close["change_percent"] == pytest.approx(100 * 0.78 / 192.25, abs=1e-6)
    assert close["slope"] == pytest.approx(line.slope, abs=1e-6)
    assert close["r_squared"] == pytest.approx(statistics.correlation(range(6), CLOSES) ** 2, abs=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_correlation_is_pearsons(form):
    found = correlation(FORMS[form])["correlation"]
    assert found["close"]["volume"] == pytest.approx(statistics.correlation(CLOSES, VOLUMES), abs=1e-6)
    assert found["close"]["close"] == found["volume"]["volume"] == 1


def test_numbers_alone_and_a_single_record_are_tables_too():
    assert summary([1, 2, 3])["columns"]["value"]["mean"] == 2
    assert trend([3, 3])["columns"]["value"] == {
        "first": 3, "last": 3, "change": 0, "change_percent": 0, "slope": 0, "r_squared": None, "direction": "flat"
    }  # fmt: skip
    assert summary({"symbol": "VLKN", "pe": 55.79})["columns"] == summary([{"symbol": "VLKN", "pe": 55.79}])["columns"]


@pytest.mark.parametrize(
    ("analysis", "data", "message"),
    [
        (summary, [], "data must be a list of records"),
        (summary, "words", "data must be a list of records"),
        (summary, [{"name": "x"}], "no column of numbers"),
        (trend, [1], "column 'value' has 1 values; a trend needs 2"),
        (correlation, [1, 2], "needs 2 columns of numbers"),
    ],
)
def test_what_cannot_be_analysed_is_refused_with_the_reason(analysis, data, message):
    with pytest.raises(ValueError, match=message):
        analysis(data)
