"""Episodes: the environment, the loop of one episode, the rewards, and the collector of whole groups."""

from mcprl.episodes.collector import Collector
from mcprl.episodes.environment import Action, Environment, StepResult
from mcprl.episodes.loop import EpisodeRunner
from mcprl.episodes.metrics import episode_metrics

__all__ = ["Action", "Collector", "Environment", "EpisodeRunner", "StepResult", "episode_metrics"]
