"""How bytes reach a tool server: its process, its standard streams, HTTP, and what is said where an answer fails."""
