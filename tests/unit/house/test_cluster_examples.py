"""The examples for clusters: each has the fields that its tool knows, and starts a run that mcprl can read."""
# R24

from __future__ import annotations

import re
import shlex
from typing import Any

import jsonschema
import pytest
import typer.main
import yaml
from source_files import ROOT

from mcprl.cli import app
from mcprl.config import RunConfig
from mcprl.recipe import load_recipe

EXAMPLES = ROOT / "docs" / "examples"
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"


def mapping(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """A mapping with these fields and no others."""
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


def texts(pattern: str) -> dict[str, Any]:
    """A mapping of any names to texts of this form."""
    return {"type": "object", "additionalProperties": {"type": "string", "pattern": pattern}}


NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
COUNT = {"type": "integer", "minimum": 0}
TEXT = {"type": "string", "minLength": 1}
QUANTITY = texts(r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$")
CONTAINER = mapping(
    ("name", "image", "resources"),
    name=NAME,
    image=TEXT,
    env={"type": "array", "items": mapping(("name", "value"), name=TEXT, value={"type": "string"})},
    resources=mapping(("limits",), requests=QUANTITY, limits=QUANTITY),
    volumeMounts={"type": "array", "items": mapping(("name", "mountPath"), name=NAME, mountPath=TEXT)},
)
VOLUME = mapping(
    ("name", "persistentVolumeClaim"), name=NAME, persistentVolumeClaim=mapping(("claimName",), claimName=NAME)
)
POD = mapping(
    ("spec",),
    spec=mapping(
        ("containers",),
        containers={"type": "array", "minItems": 1, "items": CONTAINER},
        volumes={"type": "array", "items": VOLUME},
    ),
)
RAY_JOB = mapping(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=mapping(("name",), name=NAME),
    spec=mapping(
        ("entrypoint", "rayClusterSpec"),
        entrypoint=TEXT,
        entrypointNumCpus={"type": "number", "minimum": 0},
        entrypointNumGpus={"type": "number", "minimum": 0},
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode"]},
        backoffLimit=COUNT,
        activeDeadlineSeconds={"type": "integer", "minimum": 1},
        shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished=COUNT,
        rayClusterSpec=mapping(
            ("rayVersion", "headGroupSpec"),
            rayVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
            authOptions=mapping(("mode",), mode={"const": "token"}),
            headGroupSpec=mapping(("rayStartParams", "template"), rayStartParams=texts(""), template=POD),
            workerGroupSpecs={
                "type": "array",
                "items": mapping(
                    ("groupName", "rayStartParams", "template"),
                    groupName=NAME,
                    replicas=COUNT,
                    minReplicas=COUNT,
                    maxReplicas=COUNT,
                    rayStartParams=texts(""),
                    template=POD,
                ),
            },
        ),
    ),
)
SKY_TASK = mapping(
    ("name", "resources", "run"),
    name=TEXT,
    workdir=TEXT,
    num_nodes={"type": "integer", "minimum": 1},
    resources=mapping(
        infra=TEXT,
        accelerators={"type": "string", "pattern": r"^[A-Za-z0-9-]+(:\d+)?$"},
        cpus={"type": ["string", "integer"], "pattern": r"^\d+\+?$"},
        memory={"type": ["string", "integer"], "pattern": r"^\d+\+?$"},
        disk_size=COUNT,
        use_spot={"type": "boolean"},
        autostop=mapping(("idle_minutes",), idle_minutes=COUNT),
    ),
    envs=texts(""),
    setup=TEXT,
    run=TEXT,
)
SCHEMAS = {"kuberay.yaml": RAY_JOB, "skypilot.yaml": SKY_TASK}


def example(name: str) -> dict[str, Any]:
    return yaml.safe_load((EXAMPLES / name).read_text())


def scripts(name: str) -> str:
    """What an example runs."""
    shown = example(name)
    return shown["spec"]["entrypoint"] if name == "kuberay.yaml" else shown["run"]


def commands(script: str, variables: dict[str, str]) -> list[list[str]]:
    """The command lines of mcprl in a script, as the program would get them."""
    lines = re.split(r"\n|&&", script.replace("\\\n", " "))
    ours = [line.strip() for line in lines if line.strip().startswith("mcprl ")]
    return [shlex.split(re.sub(r"\$\{?(\w+)\}?", lambda found: variables[found[1]], line)) for line in ours]


def config_of(name: str) -> RunConfig:
    """The configuration of the run that an example starts, its command line read by mcprl itself."""
    ((_, *arguments),) = commands(scripts(name), {"HEAD_IP": "10.0.0.2", "WORKERS": "16"})
    assert arguments[0] == "train"
    command = typer.main.get_command(app).get_command(None, "train")
    parsed = command.make_context("train", list(arguments[1:])).params
    return load_recipe(ROOT / parsed["recipe"], parsed["overrides"])


def test_every_example_has_a_schema():
    assert {path.name for path in EXAMPLES.glob("*.yaml")} == set(SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_example_has_the_fields_that_its_tool_knows(name):
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    jsonschema.validate(example(name), SCHEMAS[name])


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_misspelt_field_is_found(name):
    spoilt = example(name)
    (spoilt["spec"] if "spec" in spoilt else spoilt["resources"])["acelerators"] = 1
    with pytest.raises(jsonschema.ValidationError, match="acelerators"):
        jsonschema.validate(spoilt, SCHEMAS[name])


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_run_of_an_example_is_one_that_mcprl_can_start(name):
    config = config_of(name)
    assert config.workers.count > 0


def test_the_pods_of_the_kuberay_example_hold_what_the_run_asks_for():
    config, cluster = config_of("kuberay.yaml"), example("kuberay.yaml")["spec"]["rayClusterSpec"]
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert int(head["resources"]["limits"]["nvidia.com/gpu"]) >= config.learner.processes
    groups = cluster["workerGroupSpecs"]
    cores = sum(
        group["replicas"] * int(group["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"])
        for group in groups
    )
    assert cores >= config.workers.count


def test_the_kuberay_example_names_the_ray_that_is_installed():
    (pinned,) = re.findall(r"^ray==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE)
    assert example("kuberay.yaml")["spec"]["rayClusterSpec"]["rayVersion"] == pinned


def test_every_volume_that_a_pod_mounts_is_one_of_its_own():
    cluster = example("kuberay.yaml")["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_skypilot_example_has_a_core_for_every_worker_and_gpus_for_the_learner():
    task, config = example("skypilot.yaml"), config_of("skypilot.yaml")
    assert int(task["resources"]["accelerators"].split(":")[1]) >= config.learner.processes
    assert task["num_nodes"] * int(task["resources"]["cpus"].rstrip("+")) >= config.workers.count


def test_the_commands_of_the_examples_leave_nothing_to_the_shell_that_is_not_there():
    known = {"SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "HEAD_IP", *example("skypilot.yaml")["envs"]}
    assert set(re.findall(r"\$\{?(\w+)", scripts("skypilot.yaml"))) <= known
