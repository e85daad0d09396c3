"""The tools of third-party servers, as their processes list them, are held by grammars without a keyword left out."""
# R7, R14

import pytest

from schema_walks import held_or_named, walker_of

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]


async def test_its_tools_are_held_by_grammars(server, toolbox, smollm2, record_property):
    walker = walker_of(smollm2)
    verdicts = {tool.name: held_or_named(walker, tool.parameters, 7) for tool in toolbox.catalog}
    record_property(f"slowest_compile_s_{server.name}", max(verdict.compile_s for verdict in verdicts.values()))
    assert {name: verdict.unheld for name, verdict in verdicts.items() if verdict.unheld} == {}
    assert {verdict.num_calls for verdict in verdicts.values()} == {3}
