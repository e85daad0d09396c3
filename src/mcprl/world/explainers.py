"""Pages of the world's web that are about no company: explanations of finance, and pages about other things."""

from __future__ import annotations

__all__ = ["EXPLAINERS", "OTHER_PAGES"]

# Title and content of each page.
EXPLAINERS = (
    (
        "What is a price-to-earnings ratio?",
        "The price-to-earnings ratio, or P/E ratio, divides the price of a share by the earnings a share of the "
        "last four quarters. A high ratio means that buyers expect profits to grow; a company that loses money "
        "has no P/E ratio.",
    ),
    (
        "What is market capitalization?",
        "Market capitalization is the price of a share times the number of shares. It says what the stock market "
        "would pay for the whole company, debts aside.",
    ),
    (
        "What do earnings per share mean?",
        "Earnings per share, or EPS, are the net income of a period divided by the number of shares. They can be "
        "negative: then the company made a loss.",
    ),
    (
        "How to read an income statement",
        "An income statement starts with revenue. Less the cost of what was sold it gives gross profit, less the "
        "cost of running the business operating income, and less interest and taxes net income.",
    ),
    (
        "What is a moving average?",
        "A moving average is the mean of the closing prices of the last days, drawn anew each day. Traders "
        "compare a short one with a long one to see a trend.",
    ),
    (
        "What is volatility?",
        "Volatility is how much a price moves around its mean, most often the standard deviation of daily "
        "returns. High volatility means more risk in both directions.",
    ),
    (
        "When do the New York stock exchanges trade?",
        "The exchanges in New York trade from 9:30 in the morning to 4 in the afternoon, Monday to Friday, except "
        "on holidays. Trading before is called pre-market and trading after is called after-hours.",
    ),
    (
        "What is a dividend?",
        "A dividend is a part of the profit that a company pays to its shareholders, often each quarter. The "
        "dividend yield divides a year of dividends by the price of the share.",
    ),
    (
        "What is diversification?",
        "Diversification means to hold stocks of several sectors, so that bad news for one of them does little to "
        "the whole. Stocks of one sector tend to move together.",
    ),
    (
        "What is a previous close?",
        "The previous close is the last price of the last full trading day. The change of a day and its "
        "percentage are measured against it.",
    ),
    (
        "What is trading volume?",
        "Volume is the number of shares that changed hands in a period. A price move on high volume is taken more "
        "seriously than one on low volume.",
    ),
    (
        "What is a fiscal year?",
        "A fiscal year is the year over which a company reports its results. It may end in any month; the "
        "quarters are counted from its start, so that the fourth quarter ends with the year.",
    ),
)

OTHER_PAGES = (
    (
        "How to prune apple trees",
        "Prune apple trees in late winter, before the buds open. Take out dead wood first, then branches that "
        "cross, and leave the centre of the tree open to the light.",
    ),
    (
        "A short history of lighthouses",
        "Early lighthouses burned wood on open platforms. Lenses of glass rings made the light visible from far "
        "away, and most lights now run without a keeper.",
    ),
    (
        "Sourdough bread for beginners",
        "A sourdough needs flour, water, salt and patience. Feed the starter the evening before, fold the dough "
        "every half hour, and bake it in a hot pot.",
    ),
    (
        "Why the sky is blue",
        "Air scatters short waves of light more than long ones. So blue light reaches the eye from all sides, "
        "while at sunset only the red is left.",
    ),
    (
        "Rules of the road for cyclists",
        "Cyclists ride on the same side as cars, signal before they turn, and use lights after dark. A helmet "
        "should sit level and close to the brows.",
    ),
    (
        "Stock for soup",
        "A good stock starts with bones or vegetables in cold water. Let it simmer for hours, never boil, and "
        "take off the foam. A stock keeps for three days in the refrigerator.",
    ),
    (
        "Bonds between atoms",
        "Atoms form bonds when they share electrons or pass them on. The strength of a bond decides how much "
        "energy it takes to break it.",
    ),
    (
        "Choosing a tent",
        "A tent for two has room for one and a bag. Look at the weight, at the height of the floor's rim, and at "
        "whether it stands without pegs.",
    ),
)
