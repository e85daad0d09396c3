"""Recorded tool calls: the file that holds them, and how recorded conversations become one."""
