"""Stocks as Financial Modeling Prep tells them: quotes, profiles, income statements, movers, search and news."""
