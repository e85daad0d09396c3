"""Hard: several stocks, a computation in Python, and a report in the right channel."""

from __future__ import annotations

from mcprl.records import Difficulty
from mcprl.tasks.generation.drafts import Draft, Family, Step, asked, posted, posting, python
from mcprl.tasks.generation.families.trading import bars_step, closes_of
from mcprl.tasks.generation.material import Material

__all__ = ["FAMILIES"]

# Two results closer than this are no clear question.
_CLEAR = 0.02


def _portfolio(material: Material) -> Draft:
    companies, room = material.several(3), material.room()
    shares = [material.draws.integer(2, 60) * 5 for _ in companies]
    prices = [material.quote(company).price for company in companies]
    value = sum(count * price for count, price in zip(shares, prices, strict=True))
    sum_of = " + ".join(f"{count} * {price}" for count, price in zip(shares, prices, strict=True))
    holdings = [f"{count} shares of {company.symbol}" for count, company in zip(shares, companies, strict=True)]
    return Draft(
        entities=tuple(sorted(company.symbol for company in companies)),
        slots={"holdings": f"{holdings[0]}, {holdings[1]} and {holdings[2]}", "room": room.name},
        steps=(
            *(Step(tool="fmp_get_quote", matters={"symbol": company.symbol}) for company in companies),
            python(sum_of),
            posting(room, f"The portfolio is worth ${value:.2f}."),
        ),
        answer=asked(value),
        says=f"The portfolio is worth ${value:.2f}; I posted that to #{room.name}.",
        state=(posted(room, value, 2),),
        in_any_order=True,
    )


def _growth_duel(material: Material) -> Draft | None:
    companies, room = material.several(2), material.room()
    pairs = [tuple(statement.revenue for statement in material.statements(company)[:2]) for company in companies]
    growths = [(new / old - 1) * 100 for new, old in pairs]
    if abs(growths[0] - growths[1]) < _CLEAR:
        return None
    winner = max((0, 1), key=lambda i: growths[i])
    symbol, growth = companies[winner].symbol, growths[winner]
    return Draft(
        entities=tuple(sorted(company.symbol for company in companies)),
        slots={
            "symbol": companies[0].symbol,
            "other": companies[1].symbol,
            "name": companies[0].name,
            "other_name": companies[1].name,
            "room": room.name,
        },
        steps=(
            *(Step(tool="fmp_get_income_statement", matters={"symbol": company.symbol}) for company in companies),
            python(*(f"({new} / {old} - 1) * 100" for new, old in pairs)),
            posting(room, f"{symbol} grew more: revenue {growth:+.2f}%."),
        ),
        answer=asked(growth),
        says=f"{symbol} grew more, by {growth:+.2f}%; I told #{room.name}.",
        state=(posted(room, growth, 2, symbol, instead_of=(companies[1 - winner].symbol,)),),
        in_any_order=True,
    )


def _best_week(material: Material) -> Draft | None:
    companies, room, week = material.several(3), material.room(), material.one(material.weeks)
    ends = [(closes[0], closes[-1]) for closes in (closes_of(material, company, week) for company in companies)]
    gains = [(last / first - 1) * 100 for first, last in ends]
    best = max(range(3), key=lambda i: gains[i])
    if any(i != best and gains[best] - gain < _CLEAR for i, gain in enumerate(gains)):
        return None
    symbols = [company.symbol for company in companies]
    return Draft(
        entities=(*sorted(symbols), week[0].isoformat()),
        slots={
            "symbols": f"{symbols[0]}, {symbols[1]} and {symbols[2]}",
            "start": week[0].isoformat(),
            "end": week[1].isoformat(),
            "purpose": room.purpose,
        },
        steps=(
            *(bars_step(company, week) for company in companies),
            python(*(f"({last} / {first} - 1) * 100" for first, last in ends)),
            Step(tool="list_slack_channels"),
            posting(room, f"Best of the three: {symbols[best]} with {gains[best]:+.2f}%."),
        ),
        answer=asked(gains[best], at_most=8),
        says=f"{symbols[best]} did best with {gains[best]:+.2f}%; I posted that to #{room.name}.",
        state=(posted(room, gains[best], 2, symbols[best], instead_of=[s for s in symbols if s != symbols[best]]),),
        in_any_order=True,
    )


def _post_by_direction(material: Material) -> Draft | None:
    company = material.company()
    up, down = material.draws.some(material.rooms, 2)
    quote = material.quote(company)
    if quote.change == 0 or [found.symbol for found in material.market.search(company.name, 10)] != [company.symbol]:
        return None
    room, word = (up, "up") if quote.change > 0 else (down, "down")
    return Draft(
        entities=(company.symbol,),
        slots={"name": company.name, "up": up.name, "down": down.name},
        steps=(
            Step(tool="fmp_search_ticker", free={"query": company.name}),
            Step(tool="fmp_get_change_percent", matters={"symbol": company.symbol}),
            Step(tool="fmp_get_quote", matters={"symbol": company.symbol}),
            posting(room, f"{company.symbol} is {word} today, at ${quote.price:.2f}."),
        ),
        answer=asked(quote.price),
        says=f"{company.symbol} is {word} today, at ${quote.price:.2f}; I told #{room.name}.",
        state=(posted(room, quote.price, 2, company.symbol),),
        in_any_order=True,
    )


FAMILIES = (
    Family(
        name="portfolio",
        difficulty=Difficulty.HARD,
        wordings=(
            "I hold {holdings}. Get the current prices, compute the total value in Python to two decimals, post it to "
            "#{room}, and tell me the value.",
            "What are {holdings} worth together right now? Use Python for the sum (two decimals), send the total to "
            "#{room} and report it here.",
            "Value this portfolio at current prices: {holdings}. Compute with Python, two decimals; post the result in "
            "#{room} and repeat it to me.",
            "Tell #{room} on Slack what a portfolio of {holdings} is worth at the moment, computed in Python to the "
            "cent, and answer with the same figure.",
        ),
        held_out=(
            "Someone owns {holdings}. Work out in Python, from current quotes, how much money that is (two decimals), "
            "let #{room} know, and let me know.",
        ),
        draw=_portfolio,
    ),
    Family(
        name="growth-duel",
        difficulty=Difficulty.HARD,
        wordings=(
            "Which grew its revenue more from the fiscal year before last to the last one, {symbol} or {other}? "
            "Compute with Python; post only the winner's ticker and its growth in percent (signed, two decimals) to "
            "#{room}, and tell me that growth.",
            "Compare the annual revenue growth of {name} ({symbol}) and {other_name} ({other}) over their last two "
            "income statements with Python. Send the better one's ticker and growth (signed percent, two decimals) to "
            "#{room}, without naming the other, and report it here.",
            "{symbol} against {other}: whose annual revenue grew by more percent? Use Python. Announce just the winner "
            "in #{room} with its signed growth to two decimals, and answer with the growth.",
            "From the last two annual income statements of {symbol} and {other}, compute revenue growth in Python. "
            "Post the ticker and growth of the faster one (signed percent, two decimals), not the other, to #{room}; "
            "repeat the figure to me.",
        ),
        held_out=(
            "I am choosing between {other} and {symbol}. Take the one whose revenue rose more in percent in the last "
            "fiscal year (Python, two decimals, signed), name only that ticker with its growth in #{room}, and give me "
            "the growth.",
        ),
        draw=_growth_duel,
    ),
    Family(
        name="best-week",
        difficulty=Difficulty.HARD,
        wordings=(
            "Which of {symbols} had the best return from the close of {start} to the close of {end}? Compute with "
            "Python, then post only the best one's ticker and return (signed percent, two decimals) to the channel for "
            '"{purpose}", and tell me the return.',
            "Compare {symbols} by their change between the closes of {start} and {end}, in Python. Find the Slack "
            'channel with the purpose "{purpose}", announce there just the winner with its signed percent (two '
            "decimals), and report the figure.",
            "Get daily bars from {start} to {end} for {symbols}. Use Python to see which gained most from first close "
            "to last, and send that ticker alone with its percentage (signed, two decimals) to the channel meant for "
            '"{purpose}". Answer with the percentage.',
            'For the channel described as "{purpose}": the best of {symbols} from the {start} close to the {end} '
            "close, with its return as a signed percentage to two decimals and without the others. Compute in Python, "
            "post it, and repeat the return to me.",
        ),
        held_out=(
            "Rank {symbols} by return, close of {start} to close of {end}, with Python. The top ticker and its return "
            "(signed percent, two decimals), and no other ticker, go to the Slack channel whose purpose is "
            '"{purpose}". Then tell me that return.',
        ),
        draw=_best_week,
    ),
    Family(
        name="post-by-direction",
        difficulty=Difficulty.HARD,
        wordings=(
            "Find the ticker of {name} and its percent change today. If it is up, post ticker and current price (two "
            "decimals) to #{up}, otherwise to #{down}. Tell me the price too.",
            "Look up the symbol of {name}, check today's percent change, and get the price. Up: send ticker and price "
            "to #{up}. Down: to #{down}. Two decimals; repeat the price to me.",
            "#{up} wants to hear of stocks that rose today, #{down} of those that fell. Find {name}'s ticker, check "
            "its percent change, post ticker and current price (two decimals) where it belongs, and report the price.",
            "Depending on whether {name} has gained or lost today (look up ticker and percent change), write its "
            "ticker and price, two decimals, to #{up} (gained) or #{down} (lost). Answer with the price.",
        ),
        held_out=(
            "Is {name} in plus or in minus today? You need its ticker and percent change. In plus: ticker and current "
            "price to #{up}; in minus: to #{down}. Two decimals, and tell me the price.",
        ),
        draw=_post_by_direction,
    ),
)
