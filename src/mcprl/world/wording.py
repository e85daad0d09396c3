"""How numbers stand in the texts of the world: exact, so that a text and a tool never state two values of one fact."""

from __future__ import annotations

__all__ = ["dollars", "millions", "slug", "up_or_down"]


def dollars(amount: float) -> str:
    """A price: dollars(1234.5) is "$1,234.50"."""
    return f"${amount:,.2f}"


def millions(amount: int) -> str:
    """An amount of a statement: millions(4_213_400_000) is "$4,213.4 million". A loss is written without its sign."""
    return f"${abs(amount) // 100_000 / 10:,.1f} million"


def up_or_down(percent: float, up: str, down: str) -> str:
    """up_or_down(-1.5, "rise", "fall") is "fall 1.50%"."""
    return f"{up if percent >= 0 else down} {abs(percent):.2f}%"


def slug(text: str) -> str:
    """For addresses: slug("Valdixen Systems Inc.") is "valdixen-systems-inc"."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())
