"""Stocks as Polygon tells them: series of prices, news, details of tickers, and whether the market is open."""
