"""Chat of a team: its channels, their messages, and posting to them."""
