"""The sectors of the world: their industries, what their companies are called, and what these make."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SECTORS", "Industry", "Sector"]


@dataclass(frozen=True, slots=True)
class Industry:
    """Industry("Semiconductors", ("Semiconductor", "Devices"), ("power chips", "image sensors"), "car makers")"""

    name: str
    surnames: tuple[str, ...]
    products: tuple[str, ...]
    customers: str


@dataclass(frozen=True, slots=True)
class Sector:
    """A sector; `revenue_per_employee` is in thousands of dollars, `volatility` is that of a day's return."""

    name: str
    revenue_per_employee: int
    volatility: float
    gross_margin: float
    industries: tuple[Industry, ...]


SECTORS = (
    Sector(
        "Technology",
        520,
        0.019,
        0.58,
        (
            Industry(
                "Semiconductors",
                ("Semiconductor", "Microsystems"),
                ("power management chips", "image sensors", "radio chips", "memory controllers"),
                "makers of cars and phones",
            ),
            Industry(
                "Software",
                ("Software", "Systems"),
                ("accounting software", "warehouse software", "a database for sensor data", "design software"),
                "mid-sized businesses",
            ),
            Industry(
                "Computer Hardware",
                ("Computing", "Devices"),
                ("storage arrays", "rugged tablets", "network switches", "liquid-cooled servers"),
                "data centres and hospitals",
            ),
        ),
    ),
    Sector(
        "Healthcare",
        430,
        0.018,
        0.62,
        (
            Industry(
                "Biotechnology",
                ("Therapeutics", "Biosciences"),
                ("enzyme therapies", "vaccines", "gene assays", "antibody treatments"),
                "hospitals and clinics",
            ),
            Industry(
                "Medical Devices",
                ("Medical", "Diagnostics"),
                ("infusion pumps", "heart monitors", "blood analysers", "surgical lights"),
                "hospitals and laboratories",
            ),
        ),
    ),
    Sector(
        "Financial Services",
        480,
        0.013,
        0.66,
        (
            Industry(
                "Banks",
                ("Bancorp", "Financial"),
                ("mortgages", "business loans", "savings accounts", "treasury services"),
                "households and small firms",
            ),
            Industry(
                "Insurance",
                ("Insurance", "Mutual"),
                ("home insurance", "cargo insurance", "crop insurance", "liability cover"),
                "households, farms and shippers",
            ),
        ),
    ),
    Sector(
        "Energy",
        950,
        0.017,
        0.38,
        (
            Industry(
                "Oil and Gas",
                ("Petroleum", "Energy"),
                ("natural gas", "crude oil", "marine fuel", "lubricants"),
                "refineries and utilities",
            ),
            Industry(
                "Renewable Energy",
                ("Renewables", "Power"),
                ("wind turbines", "solar trackers", "grid batteries", "heat pumps"),
                "utilities and cities",
            ),
        ),
    ),
    Sector(
        "Industrials",
        310,
        0.014,
        0.34,
        (
            Industry(
                "Machinery",
                ("Machinery", "Robotics"),
                ("packaging robots", "industrial pumps", "cranes", "milling machines"),
                "factories and ports",
            ),
            Industry(
                "Logistics",
                ("Logistics", "Freight"),
                ("container transport", "cold storage", "parcel delivery", "rail freight"),
                "retailers and manufacturers",
            ),
        ),
    ),
    Sector(
        "Consumer Cyclical",
        260,
        0.016,
        0.42,
        (
            Industry(
                "Retail",
                ("Stores", "Outfitters"),
                ("outdoor clothing", "furniture", "kitchenware", "running shoes"),
                "families and sports clubs",
            ),
            Industry(
                "Auto Parts",
                ("Automotive", "Mobility"),
                ("brake systems", "electric drivetrains", "car seats", "charging stations"),
                "car makers and fleets",
            ),
        ),
    ),
    Sector(
        "Basic Materials",
        540,
        0.015,
        0.31,
        (
            Industry(
                "Chemicals",
                ("Chemicals", "Materials"),
                ("coatings", "fertiliser", "adhesives", "recycled plastics"),
                "farmers and builders",
            ),
            Industry(
                "Metals",
                ("Metals", "Mining"),
                ("copper", "lithium carbonate", "aluminium sheet", "rare earth oxides"),
                "makers of batteries and cables",
            ),
        ),
    ),
    Sector(
        "Communication Services",
        410,
        0.016,
        0.55,
        (
            Industry(
                "Telecom",
                ("Telecom", "Networks"),
                ("fibre connections", "mobile plans", "satellite links", "business telephony"),
                "households and public offices",
            ),
            Industry(
                "Media",
                ("Media", "Interactive"),
                ("puzzle games", "a streaming service", "podcasts", "regional newspapers"),
                "readers, listeners and players",
            ),
        ),
    ),
)
