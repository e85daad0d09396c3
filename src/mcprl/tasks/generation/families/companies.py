"""Easy: who a company is, what it earned, and what is written about it."""

from __future__ import annotations

from collections.abc import Callable

from mcprl.records import Difficulty
from mcprl.tasks.generation.drafts import Draft, Family, Step, asked, choice
from mcprl.tasks.generation.material import Material
from mcprl.world.facts import Period, Statement

__all__ = ["FAMILIES"]

_OF_STATEMENT: tuple[tuple[str, Callable[[Statement], int]], ...] = (
    ("revenue", lambda statement: statement.revenue),
    ("gross profit", lambda statement: statement.gross_profit),
    ("operating income", lambda statement: statement.operating_income),
    ("net income", lambda statement: statement.net_income),
)

_PLACES = ("newest", "second newest", "third newest")

_PERIODS = ((Period.ANNUAL, "last fiscal year"), (Period.QUARTERLY, "latest quarter"))


def _chief(material: Material) -> Draft:
    company = material.company()
    return Draft(
        entities=(company.symbol,),
        slots={"name": company.name, "symbol": company.symbol},
        steps=(Step(tool="fmp_get_company_profile", matters={"symbol": company.symbol}),),
        answer=choice(company.ceo, (other.ceo for other in material.market.companies)),
        says=f"The CEO of {company.symbol} is {company.ceo}.",
    )


def _staff(material: Material) -> Draft | None:
    company = material.company()
    if company.employees is None:
        return None
    return Draft(
        entities=(company.symbol,),
        slots={"name": company.name, "symbol": company.symbol},
        steps=(Step(tool="polygon_get_ticker_details", matters={"ticker": company.symbol}),),
        answer=asked(company.employees, 0),
        says=f"{company.name} has {company.employees} employees.",
    )


def _listed_name(material: Material) -> Draft:
    company = material.company()
    names = (other.name.removesuffix(".") for other in material.market.companies)
    return Draft(
        entities=(company.symbol,),
        slots={"symbol": company.symbol},
        steps=(Step(tool="fmp_search_ticker", matters={"query": company.symbol}),),
        answer=choice(company.name.removesuffix("."), names),
        says=f"{company.symbol} is the ticker of {company.name}",
    )


def _earnings(material: Material) -> Draft | None:
    company, (what, read), (period, when) = (
        material.company(),
        material.one(_OF_STATEMENT),
        material.one(_PERIODS),
    )
    statements = material.market.statements(company.symbol, period, 1)
    if not statements:
        return None
    value = read(statements[0])
    matters = {"symbol": company.symbol}
    if period is not Period.ANNUAL:
        matters["period"] = period.value
    return Draft(
        entities=(company.symbol, what, when),
        slots={"name": company.name, "symbol": company.symbol, "what": what, "when": when},
        steps=(Step(tool="fmp_get_income_statement", matters=matters),),
        answer=asked(value, 0),
        says=f"The {what} of {company.symbol} in its {when} was ${value}.",
    )


def _headline(tool: str, argument: str) -> Callable[[Material], Draft | None]:
    def draw(material: Material) -> Draft | None:
        company, place = material.company(), material.draws.integer(0, len(_PLACES) - 1)
        titles = [article.title for article in material.market.news([company.symbol], 10)]
        if len(titles) <= place or titles.count(titles[place]) > 1:
            return None
        return Draft(
            entities=(company.symbol, _PLACES[place]),
            slots={"name": company.name, "symbol": company.symbol, "place": _PLACES[place]},
            steps=(Step(tool=tool, matters={argument: company.symbol}),),
            answer=choice(titles[place], titles),
            says=f"The headline is: {titles[place]}",
        )

    return draw


FAMILIES = (
    Family(
        name="chief",
        difficulty=Difficulty.EASY,
        wordings=(
            "Who is the chief executive of {name} ({symbol})?",
            "Name the CEO in the company profile of {symbol}.",
            "I have to write to the head of {name}, ticker {symbol}. What is the CEO's full name?",
            "Look at the profile of {symbol} and tell me who leads the company.",
        ),
        held_out=("Which person runs {symbol} as CEO, going by its profile?",),
        draw=_chief,
    ),
    Family(
        name="staff",
        difficulty=Difficulty.EASY,
        wordings=(
            "How many people work for {name} ({symbol})? Give the whole number from Polygon.",
            "Use Polygon's ticker details to find the number of employees of {symbol}.",
            "What is the headcount of {symbol} according to Polygon's details? The exact number, please.",
            "Polygon lists how many employees {name} ({symbol}) has. What is that number?",
        ),
        held_out=("How large is the staff of {symbol} in Polygon's details? Give the exact count.",),
        draw=_staff,
    ),
    Family(
        name="listed-name",
        difficulty=Difficulty.EASY,
        wordings=(
            "Which company is listed under {symbol}? Give its full name.",
            "Search for the ticker {symbol} and tell me the full company name behind it.",
            "What is the full name of the company with the symbol {symbol}?",
            "I saw {symbol} on the tape. Look up what the company is called in full.",
        ),
        held_out=("{symbol}: whose ticker is that? The full name of the company, please.",),
        draw=_listed_name,
    ),
    Family(
        name="earnings",
        difficulty=Difficulty.EASY,
        wordings=(
            "What was the {what} of {symbol} in its {when}? Answer in whole dollars.",
            "From the income statement of {name} ({symbol}): {what} of the {when}, in whole dollars.",
            "Tell me the {what} that {symbol} reported for the {when}, exactly, in dollars.",
            "Look up {symbol}'s income statement and give the {what} for the {when} in whole dollars.",
        ),
        held_out=("How many dollars of {what} did {name} ({symbol}) report for the {when}? The exact figure, please.",),
        draw=_earnings,
    ),
    Family(
        name="headline",
        difficulty=Difficulty.EASY,
        wordings=(
            "What is the {place} headline about {symbol}? Quote it word for word, and no other.",
            "Give me the title of the {place} piece of stock news on {name} ({symbol}), exactly as written.",
            "Find the {place} news item tagged {symbol} and repeat only its headline, verbatim.",
            "Check the stock news for {symbol}: how does the {place} headline read, word for word?",
        ),
        held_out=("What did the press write about {symbol}? I want the exact title of the {place} article only.",),
        draw=_headline("fmp_get_stock_news", "tickers"),
    ),
    Family(
        name="polygon-headline",
        difficulty=Difficulty.EASY,
        wordings=(
            "Use Polygon news: what is the {place} headline on {symbol}, word for word?",
            "According to Polygon's news for {name} ({symbol}), what is the {place} article called? Quote that title "
            "only.",
            "Quote the title of the {place} Polygon article about {symbol} exactly, and nothing else.",
            "Fetch Polygon's news for {symbol} and repeat the {place} headline verbatim.",
        ),
        held_out=("Polygon's {place} story on {name} ({symbol}): give its title exactly as printed.",),
        draw=_headline("polygon_get_news", "ticker"),
    ),
)
