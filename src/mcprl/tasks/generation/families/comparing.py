"""Medium: facts of one or two stocks put together, mostly with Python."""

from __future__ import annotations

from mcprl.records import Difficulty
from mcprl.tasks.generation.drafts import Draft, Family, Step, asked, python
from mcprl.tasks.generation.material import Material

__all__ = ["FAMILIES"]


def _price_gap(material: Material) -> Draft:
    first, second = material.several(2)
    price, other = material.quote(first).price, material.quote(second).price
    gap = (price - other) / other * 100
    return Draft(
        entities=(first.symbol, second.symbol),
        slots={"symbol": first.symbol, "other": second.symbol, "name": first.name, "other_name": second.name},
        steps=(
            Step(tool="fmp_get_quote", matters={"symbol": first.symbol}),
            Step(tool="fmp_get_quote", matters={"symbol": second.symbol}),
            python(f"({price} - {other}) / {other} * 100"),
        ),
        answer=asked(gap),
        says=f"A share of {first.symbol} costs {gap:+.2f}% compared with {second.symbol}.",
        in_any_order=True,
    )


def _larger_value(material: Material) -> Draft | None:
    first, second = material.several(2)
    values = [material.quote(company).market_cap for company in (first, second)]
    if values[0] is None or values[1] is None or values[0] == values[1]:
        return None
    winner, value = (first, values[0]) if values[0] > values[1] else (second, values[1])
    return Draft(
        entities=tuple(sorted((first.symbol, second.symbol))),
        slots={"symbol": first.symbol, "other": second.symbol, "name": first.name, "other_name": second.name},
        steps=(
            Step(tool="fmp_get_quote", matters={"symbol": first.symbol}),
            Step(tool="fmp_get_quote", matters={"symbol": second.symbol}),
        ),
        # One number only: who gives both values has not said which is the larger one.
        answer=asked(value, 0, at_most=1),
        says=f"{winner.name} is worth more: ${value}.",
        in_any_order=True,
    )


def _net_margin(material: Material) -> Draft:
    company = material.company()
    statement = material.statements(company)[0]
    margin = statement.net_income / statement.revenue * 100
    return Draft(
        entities=(company.symbol,),
        slots={"symbol": company.symbol, "name": company.name},
        steps=(
            Step(tool="fmp_get_income_statement", matters={"symbol": company.symbol}),
            python(f"{statement.net_income} / {statement.revenue} * 100"),
        ),
        answer=asked(margin),
        says=f"The net margin of {company.symbol} was {margin:.2f}%.",
    )


def _price_target(material: Material) -> Draft:
    company = material.company()
    close = material.quote(company).previous_close
    target = round(close * material.draws.between(0.8, 1.3))
    move = (target - close) / close * 100
    return Draft(
        entities=(company.symbol, str(target)),
        slots={"symbol": company.symbol, "name": company.name, "target": str(target)},
        steps=(
            Step(tool="fmp_get_previous_close", matters={"symbol": company.symbol}),
            python(f"({target} - {close}) / {close} * 100"),
        ),
        answer=asked(move),
        says=f"From its previous close {company.symbol} would have to move {move:+.2f}%.",
    )


def _name_to_price(material: Material) -> Draft | None:
    company = material.company()
    if [found.symbol for found in material.market.search(company.name, 10)][:1] != [company.symbol]:
        return None
    price = material.quote(company).price
    return Draft(
        entities=(company.symbol,),
        slots={"name": company.name},
        steps=(
            Step(tool="fmp_search_ticker", free={"query": company.name}),
            Step(tool="fmp_get_quote", matters={"symbol": company.symbol}),
        ),
        answer=asked(price),
        says=f"{company.name} ({company.symbol}) trades at ${price:.2f}.",
    )


def _price_if_open(material: Material) -> Draft:
    company = material.company()
    quote = material.quote(company)
    is_open = material.market.status().session == "open"
    live, last = ("fmp_get_quote", quote.price), ("fmp_get_previous_close", quote.previous_close)
    (tool, value), (other, _) = (live, last) if is_open else (last, live)
    return Draft(
        entities=(company.symbol,),
        slots={"symbol": company.symbol, "name": company.name},
        steps=(Step(tool="polygon_get_market_status"), Step(tool=tool, matters={"symbol": company.symbol})),
        answer=asked(value, at_most=2),
        says=f"The market is {'open' if is_open else 'closed'}; {company.symbol} stands at ${value:.2f}.",
        also=(other,),
    )


FAMILIES = (
    Family(
        name="price-gap",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "By how many percent is the price of {symbol} above (+) or below (-) that of {other}? Compute it with "
            "Python, signed, to two decimals.",
            "Compare the current prices of {name} ({symbol}) and {other_name} ({other}) with Python: how far is the "
            "first from the second, in percent of the second, signed, two decimals?",
            "Get both quotes, then use Python: (price of {symbol} - price of {other}) / price of {other}, in percent "
            "with two decimals.",
            "How much more expensive is a share of {symbol} than one of {other}, in percent? Use Python; a minus sign "
            "if it is cheaper; two decimals.",
        ),
        held_out=(
            "Take the price of {other} as 100%. Using Python, how far above or below it is {symbol} now? Signed, in "
            "percent, two decimals.",
        ),
        draw=_price_gap,
    ),
    Family(
        name="larger-value",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Which is worth more by market cap, {symbol} or {other}? Name it with its market cap in whole dollars, and "
            "give no other figure.",
            "Compare the market capitalisations of {name} ({symbol}) and {other_name} ({other}). State the larger one "
            "in whole dollars, and no other number.",
            "{symbol} against {other}: whose market cap is bigger? Answer with the bigger figure alone, in dollars.",
            "Look at the quotes of {symbol} and {other} and report only the higher of the two market caps, in whole "
            "dollars.",
        ),
        held_out=(
            "I want to know which of {other} and {symbol} the market values higher. Give just that company and its "
            "market cap in whole dollars.",
        ),
        draw=_larger_value,
    ),
    Family(
        name="net-margin",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "What was the net margin of {symbol} in its last fiscal year? Use Python; percent, two decimals.",
            "Work out with Python how many percent of its revenue {name} ({symbol}) kept as net income in the last "
            "fiscal year, to two decimals.",
            "Get the annual income statement of {symbol} and divide net income by revenue in Python. Percent, two "
            "decimals.",
            "Net income as a percentage of revenue for {symbol}, latest annual statement: compute it in Python and "
            "round to two decimals.",
        ),
        held_out=(
            "Of every 100 dollars that {name} ({symbol}) took in last fiscal year, how many were profit after "
            "everything? Compute in Python, two decimals.",
        ),
        draw=_net_margin,
    ),
    Family(
        name="price-target",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Starting from its previous close, by how many percent must {symbol} move to reach ${target}? Use Python; "
            "signed, two decimals.",
            "Fetch the previous close of {name} ({symbol}) and compute in Python the percentage change if the price "
            "goes to ${target}. Signed, two decimals.",
            "My target for {symbol} is ${target}. How far is that from the previous close in percent? Compute it with "
            "Python, with the sign and two decimals.",
            "With Python: the move in percent from {symbol}'s previous close to ${target}, signed, to two decimals.",
        ),
        held_out=(
            "Suppose {symbol} traded at ${target}. Relative to where it last closed, what change is that? Python, "
            "percent with sign, two decimals.",
        ),
        draw=_price_target,
    ),
    Family(
        name="name-to-price",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Find the ticker of {name}, then tell me what it trades at, to two decimals.",
            "I don't know the symbol of {name}. Look it up and give me the current price to the cent.",
            "Search for {name} and quote its current share price with two decimals.",
            "What does one share of {name} cost now? You will have to find its ticker first. Two decimals.",
        ),
        held_out=("Price check on {name}: look up its symbol, then report the current price in dollars and cents.",),
        draw=_name_to_price,
    ),
    Family(
        name="price-if-open",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Check whether the market is open. If it is, give the current price of {symbol}; if not, its previous "
            "close. Two decimals.",
            "Is the stock market trading? If so I want the live price of {name} ({symbol}), otherwise its last close, "
            "to the cent.",
            "Look at the market status first. Market open: report {symbol}'s current price. Market closed: report its "
            "previous close. Two decimals.",
            "Depending on whether the market is open right now, tell me {symbol}'s current price (open) or previous "
            "close (closed), to two decimals.",
        ),
        held_out=(
            "First see if trading is on. During trading hours I need {symbol}'s price now, outside of them the "
            "previous close, in dollars and cents.",
        ),
        draw=_price_if_open,
    ),
)
