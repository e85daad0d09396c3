"""The engine behind the Tinker API: SkyRL's server, in an environment of its own, and the way to ask it."""
