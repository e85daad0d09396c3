"""Medium: a figure found and then passed on, to a channel or to the kept results."""

from __future__ import annotations

from mcprl.goals import ExpectedState
from mcprl.records import Difficulty
from mcprl.tasks.generation.drafts import Draft, Family, Step, asked, posted, posting
from mcprl.tasks.generation.material import Material

__all__ = ["FAMILIES"]


def _post_price(material: Material) -> Draft:
    company, room = material.company(), material.room()
    price = material.quote(company).price
    return Draft(
        entities=(company.symbol, room.name),
        slots={"symbol": company.symbol, "name": company.name, "room": room.name},
        steps=(
            Step(tool="fmp_get_quote", matters={"symbol": company.symbol}),
            posting(room, f"{company.symbol} trades at ${price:.2f}."),
        ),
        answer=asked(price),
        says=f"Posted to #{room.name}: {company.symbol} trades at ${price:.2f}.",
        state=(posted(room, price, 2, company.symbol),),
    )


def _post_change(material: Material) -> Draft:
    company, room = material.company(), material.room()
    change = material.quote(company).change_percent
    return Draft(
        entities=(company.symbol, room.name),
        slots={"symbol": company.symbol, "name": company.name, "purpose": room.purpose},
        steps=(
            Step(tool="list_slack_channels"),
            Step(tool="fmp_get_change_percent", matters={"symbol": company.symbol}),
            posting(room, f"{company.symbol} has moved {change:+.2f}% today."),
        ),
        answer=asked(change),
        says=f"I told #{room.name} that {company.symbol} has moved {change:+.2f}% today.",
        state=(posted(room, change, 2, company.symbol),),
        in_any_order=True,
    )


def _keep_price(material: Material) -> Draft:
    company = material.company()
    price = material.quote(company).price
    key = f"{company.symbol.lower()}_price"
    return Draft(
        entities=(company.symbol,),
        slots={"symbol": company.symbol, "name": company.name, "key": key},
        steps=(
            Step(tool="fmp_get_quote", matters={"symbol": company.symbol}),
            Step(tool="store_execution_result", matters={"context_key": key}, free={"data": f"{price:.2f}"}),
            Step(tool="get_execution_context", matters={"context_key": key}),
        ),
        answer=asked(price),
        says=f"{price:.2f} is stored under {key}.",
        state=(
            ExpectedState(
                tool="get_execution_context",
                arguments={"context_key": key},
                texts=(asked(price, at_most=None),),
            ),
        ),
    )


FAMILIES = (
    Family(
        name="post-price",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Post the current price of {symbol} to #{room}, with its ticker and two decimals, and tell me the price "
            "too.",
            "Get the price of {name} ({symbol}) and send it to #{room} on Slack (ticker and price, two decimals). Then "
            "report it here.",
            "Let #{room} know what {symbol} trades at, to the cent and with the ticker. Repeat the price to me.",
            "Look up {symbol}'s price, write it with the ticker to the channel #{room}, two decimals, and answer with "
            "the price.",
        ),
        held_out=(
            "The people in #{room} want to know what {symbol} costs right now. Tell them there (ticker, two decimals), "
            "and tell me.",
        ),
        draw=_post_price,
    ),
    Family(
        name="post-change",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            'Find the Slack channel whose purpose is "{purpose}" and post today\'s percent change of {symbol} there: '
            "ticker, sign, two decimals. Tell me the figure too.",
            "How has {name} ({symbol}) moved today, in percent? Post it with the ticker, signed, two decimals, to the "
            'channel for "{purpose}", and report it here.',
            "Get {symbol}'s change in percent (signed, two decimals) and send it with the ticker to the channel that "
            'is meant for "{purpose}". Repeat the figure to me.',
            'One of our Slack channels has the purpose "{purpose}". Post {symbol} and its percent change of today '
            "there, signed, two decimals, and answer with the figure.",
        ),
        held_out=(
            "Today's move of {symbol} (ticker, signed percent, two decimals) belongs in the channel described as "
            '"{purpose}". Post it there and tell me the number.',
        ),
        draw=_post_change,
    ),
    Family(
        name="keep-price",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Store the current price of {symbol} (two decimals) under the key {key}, read it back to be sure, and tell "
            "me the stored value.",
            "Get the price of {name} ({symbol}), keep it as {key}, then fetch {key} again and report what is in it. "
            "Two decimals.",
            "Save what {symbol} trades at now, to the cent, in the execution context as {key}. Then load {key} and "
            "give me the number.",
            "Put {symbol}'s price with two decimals into {key}, check it by reading {key} back, and answer with it.",
        ),
        held_out=(
            "I will need {symbol}'s price later: remember it to the cent under {key}, retrieve it once to check, and "
            "tell me what you retrieved.",
        ),
        draw=_keep_price,
    ),
)
