"""Planning: what a run will take, before it is started. Pure functions on figures; docs/scaling.md has the formulas."""

from mcprl.planning.cluster import Cluster, Rate, make_cluster
from mcprl.planning.forecast import Forecast, Load, Part, forecast, parts_of
from mcprl.planning.growth import FACTORS, Growth, grow
from mcprl.planning.makespan import Station, collect_time_s
from mcprl.planning.measured import Constants, Measurement, read_constants
from mcprl.planning.model_size import ModelSize, model_size
from mcprl.planning.plan import Assumption, Plan, make_plan, plan_json
from mcprl.planning.shapes import SHAPE_FIELDS, EpisodeShape, assumed_shape
from mcprl.planning.workload import Counts, ServerLoad, Workload, step_counts, workload_of

__all__ = [
    "FACTORS",
    "SHAPE_FIELDS",
    "Assumption",
    "Cluster",
    "Constants",
    "Counts",
    "EpisodeShape",
    "Forecast",
    "Growth",
    "Load",
    "Measurement",
    "ModelSize",
    "Part",
    "Plan",
    "Rate",
    "ServerLoad",
    "Station",
    "Workload",
    "assumed_shape",
    "collect_time_s",
    "forecast",
    "grow",
    "make_cluster",
    "make_plan",
    "model_size",
    "parts_of",
    "plan_json",
    "read_constants",
    "step_counts",
    "workload_of",
]
