"""Tasks from any MCP server, proven by execution, and from recorded conversations. No language model is needed.

World (recorded calls) ──▶ Exploration (values and links) ──▶ Plan (steps, question, goal) ──▶ verified Task
"""
