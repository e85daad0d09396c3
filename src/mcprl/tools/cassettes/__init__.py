"""Recorded tool calls: the cassette file, and importing recorded conversations into one."""
