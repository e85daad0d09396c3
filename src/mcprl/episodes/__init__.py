"""Episodes: the environment, the episode loop, the rewards, the judge, and the collector of complete groups."""

from mcprl.episodes.collector import Collector, RunsEpisodes, episode_metrics
from mcprl.episodes.demonstrations import Demonstrator, Trial, play, play_gold, require_solutions
from mcprl.episodes.environment import Action, Environment, StepResult, require_grammar, require_tools, require_worlds
from mcprl.episodes.judge import Judge
from mcprl.episodes.loop import EpisodeRunner
from mcprl.episodes.rewards import require_judge, require_scorable, succeeded

__all__ = [
    "Action",
    "Collector",
    "Demonstrator",
    "Environment",
    "EpisodeRunner",
    "Judge",
    "RunsEpisodes",
    "StepResult",
    "Trial",
    "episode_metrics",
    "play",
    "play_gold",
    "require_grammar",
    "require_judge",
    "require_scorable",
    "require_solutions",
    "require_tools",
    "require_worlds",
    "succeeded",
]
