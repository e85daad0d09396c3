"""Recorded tool calls: the cassette file, and the import of recorded conversations into a cassette."""
