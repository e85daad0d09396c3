import mcprl


@mcprl.reward(per="turn")
def one_call(episode: mcprl.EpisodeView) -> list[float]:
    """1 for a turn with one call or none, 0 for a turn that calls several tools at once."""
    return [float(len(turn.calls) <= 1) for turn in episode.turns]


@mcprl.reward(per="group")
def brief(episodes: list[mcprl.EpisodeView]) -> list[float]:
    """1 for the shortest answer of the group, 0 for the others and for no answer."""
    lengths = [len(episode.answer) if episode.answer else 10**9 for episode in episodes]
    return [float(length == min(lengths) < 10**9) for length in lengths]
