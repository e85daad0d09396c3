import mcprl


def says_whom_if_asked(episode: mcprl.EpisodeView) -> str | None:
    """Called after each answer. Returns what the user says to it, or None if the user is content."""
    wanted = episode.task.metadata
    return None if episode.answer and wanted["zone"] in episode.answer else f"I mean {wanted['person']}'s."
