"""The SkyRL engine: a client of the Tinker API, and SkyRL's server in a separate environment."""
