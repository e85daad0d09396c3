import mcprl


async def is_in_zone_of(episode: mcprl.EpisodeView) -> float:
    """Whether the answer is the time zone that the directory has now, whatever it had when the task was written."""
    person = await episode.probe("find_person", name=episode.task.metadata["person"])
    return float(bool(episode.answer) and episode.answer.strip(". ") in person.text)
