"""The families of generated tasks: enough wordings, and prompts that cannot be answered by reading them."""

from __future__ import annotations

import string

import pytest

from mcprl.goals import HasAll, HasNumber
from mcprl_market.generation import FAMILIES, TOOLS, offer
from mcprl_market.generation.drafts import asked, choice, split_material
from mcprl_market.world import open_market, open_workspace
from mcprl_market.world.draws import Draws

WORLD = 7


def drafts_of(family, count=12):
    train, validation = split_material(open_market(WORLD), open_workspace(WORLD), 0)
    drawn = []
    for material in (train, validation):
        material = material.drawing(Draws(3, "test", family.name))
        found = [draft for draft in (family.draw(material) for _ in range(count)) if draft is not None]
        assert found
        drawn += found
    return drawn


def test_families_have_names_of_their_own():
    assert len({family.name for family in FAMILIES}) == len(FAMILIES) >= 25


def test_a_family_has_four_wordings_and_one_that_is_held_out():
    for family in FAMILIES:
        assert len(set(family.wordings)) >= 4
        assert len(set(family.held_out)) >= 1
        assert not set(family.wordings) & set(family.held_out)


def test_every_wording_names_what_tells_one_task_from_another():
    """Each slot that a draft fills stands in each wording, names aside: who reads the prompt knows what is asked."""
    for family in FAMILIES:
        names = {"name", "other_name"}
        for draft in drafts_of(family):
            telling = set(draft.slots)
            if not {"symbol", "symbols", "holdings"}.isdisjoint(telling):
                telling -= names
            for wording in (*family.wordings, *family.held_out):
                used = {slot for _, slot, _, _ in string.Formatter().parse(wording) if slot}
                assert telling <= used | ({"symbol"} if "name" in used else set()), wording
                assert wording.format(**draft.slots)


def test_a_prompt_does_not_hold_its_answer():
    for family in FAMILIES:
        for draft in drafts_of(family):
            for wording in (*family.wordings, *family.held_out):
                prompt = wording.format(**draft.slots)
                match draft.answer:
                    case HasNumber(value=value):
                        assert f"{value:g}" not in prompt.replace(",", "").split()
                    case HasAll(members=members):
                        assert not any(member.lower() in prompt.lower() for member in members)
                    case _:
                        pytest.fail(f"{family.name} has an answer that nobody checks")


def test_a_number_is_asked_for_with_its_rounding():
    for family in FAMILIES:
        hints = ("decimals", "to the cent", "and cents", "whole", "exact", "year", "number", "dollars")
        for draft in drafts_of(family):
            if isinstance(draft.answer, HasNumber):
                assert all(
                    any(hint in wording.lower() for hint in hints) for wording in (*family.wordings, *family.held_out)
                )


def test_tolerance_is_half_a_unit_of_the_last_digit_and_a_little_slack():
    assert asked(12.3449, 2) == HasNumber(value=12.3449, tolerance=0.0051)
    assert asked(12400, 0).tolerance == 0.51
    for rounded, right in ((12.34, True), (12.35, False), (12.33, False)):
        assert (abs(rounded - 12.3441) <= asked(12.3441).tolerance) is right


def test_a_number_halfway_may_be_rounded_up_or_down():
    assert all(abs(rounded - 0.125) <= asked(0.125).tolerance for rounded in (0.12, 0.13))


def test_a_choice_excludes_all_other_candidates():
    assert choice("Ana", ["Bo", "Ana", "Cy", "Bo"]) == HasAll(members=("Ana",), none_of=("Bo", "Cy"))


def test_no_distractor_replaces_a_needed_tool():
    for needed in TOOLS:
        twins = {
            "fmp_get_previous_close": {
                "polygon_get_previous_close",
                "polygon_get_aggs",
                "fmp_get_quote",
                "tavily_qna_search",
            },
            "fmp_get_company_profile": {"polygon_get_ticker_details", "tavily_search", "fmp_get_stock_news"},
            "polygon_get_news": {"fmp_get_stock_news"},
            "execute_python": {"process_mcp_data", "create_data_pipeline", "analyze_financial_data"},
        }
        for number in range(20):
            offered = offer([needed], 3, Draws(number, "offer"))
            assert len(offered) == len(set(offered)) == 4
            assert needed in offered
            assert not set(offered) & twins.get(needed, set())
