"""Web search: pages that fit a query, and short answers to questions."""
