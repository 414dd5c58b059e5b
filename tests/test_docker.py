"""Checks of the compose files that need no container engine.

They parse, contain no secret, and their commands exist here. `make containers` runs them.
"""

import errno
import importlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from bench.service.deployment import DurablePostgres
from service.cli.main import app as grpo
from tests.support import container_profile
from tests.test_docker_images import DOCKERFILES, instructions

ROOT = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("grpo-")]
BUILT = {"grpo-api": "api", "grpo-worker": "worker"}
"""Image → the one service that builds it."""
NEVER = {
    *(
        "ptrace",
        "setns",
        "chroot",
        "keyctl",
        "add_key",
        "request_key",
        "bpf",
        "perf_event_open",
        "userfaultfd",
    ),
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "io_uring_setup"),
    *("open_by_handle_at", "quotactl", "swapon", "swapoff", "reboot", "syslog", "acct", "settimeofday"),
    *("clock_settime", "iopl", "ioperm", "move_mount", "fsopen", "open_tree", "mount_setattr", "clone3"),
}
SECRETS = ("POSTGRES_PASSWORD", "REDIS_PASSWORD")


def commands() -> dict[str, list[str]]:
    """All commands of the project's images: of compose, health checks and the images' defaults."""
    found = {f"{name} in compose": SERVICES[name]["command"] for name in OURS}
    for name in OURS:
        if "healthcheck" in SERVICES[name]:
            found[f"{name} health check"] = SERVICES[name]["healthcheck"]["test"][1:]
    for path in DOCKERFILES:
        found[path.name] = json.loads(dict(instructions(path))["CMD"])
    return found


def mounts(service: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(source, target) of each volume."""
    for each in service.get("volumes", []):
        yield (each["source"], each["target"]) if isinstance(each, dict) else tuple(each.split(":")[:2])


def resolve(name: str) -> object:
    module, _, attribute = name.partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def check_celery(arguments: list[str]) -> None:
    assert arguments == ["-A", "worker.app", "worker", "--loglevel=INFO"]
    # in another process: the module reads its settings and connects Celery's signals when imported
    program = "from worker.app import app; print(app.main, *(name for name in app.tasks if name == 'wake'))"
    env = {**os.environ, "GRPO_BROKER_URL": "redis://127.0.0.1:9/0", "GRPO_MODE": "embedded"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("grpo wake\n", "")


def check_python(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        package = resolve(arguments[1])
        program = package if "main" in vars(package) else resolve(f"{arguments[1]}.__main__")
        assert callable(vars(program)["main"])
    else:
        assert arguments[0] == "-c"
        compile(arguments[1], "healthcheck", "exec")


def check_grpo(arguments: list[str]) -> None:
    assert arguments[0] in vars(get_command(grpo))["commands"]


CHECKS = {"celery": check_celery, "python": check_python, "grpo": check_grpo}


@pytest.mark.parametrize("where", commands())
def test_every_command_exists(where: str) -> None:
    program, *arguments = commands()[where]
    CHECKS[program](arguments)


def test_the_deployment_has_six_services() -> None:
    assert set(SERVICES) == {"postgres", "redis", "migrate", "api", "worker", "maintenance"}


def test_migrations_run_once_before_services_that_need_the_schema() -> None:
    assert SERVICES["migrate"]["restart"] == "no"
    for name in ("api", "worker", "maintenance"):
        assert SERVICES[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


def test_redis_never_evicts_and_survives_a_restart() -> None:
    words = shlex.split(SERVICES["redis"]["command"][-1])
    options = dict(itertools.pairwise(words))
    assert options["--maxmemory-policy"] == "noeviction"
    assert options["--appendonly"] == "yes"
    assert options["--requirepass"] == "$$REDISCLI_AUTH"


def test_redis_starts_through_the_entrypoint_that_leaves_root() -> None:
    words = shlex.split(SERVICES["redis"]["command"][-1])
    assert words[:3] == ["exec", "docker-entrypoint.sh", "redis-server"]


def test_every_secret_comes_from_the_environment_and_has_no_default() -> None:
    text = (ROOT / "docker" / "compose.yaml").read_text()
    for name in SECRETS:
        uses = re.findall(rf"\$\{{{name}([^}}]*)\}}", text)
        assert uses == [f":?set {name}"] * len(uses)
        assert len(uses) >= 2
    values = [value for service in SERVICES.values() for value in service.get("environment", {}).items()]
    for name, value in values:
        if "PASSWORD" in name or "AUTH" in name:
            assert re.fullmatch(r"\$\{[A-Z_]+:\?[^}]+\}", value), name


def test_only_the_api_is_reachable_and_only_from_this_host() -> None:
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"api"}
    assert SERVICES["api"]["ports"] == ["127.0.0.1:${GRPO_PORT:-8000}:8000"]


@pytest.mark.parametrize("name", ["postgres", "redis", "api"])
def test_services_that_others_depend_on_have_health_checks(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")


def test_benchmarks_use_the_database_settings_of_compose() -> None:
    server, *settings = SERVICES["postgres"]["command"]
    assert server == "postgres"
    benched = DurablePostgres()
    shutil.rmtree(benched.folder)  # it is not started
    assert set(settings) <= set(benched.command())


@pytest.mark.parametrize("name", OURS)
def test_containers_have_no_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"][0] == "no-new-privileges:true"
    assert "user" not in service


def test_each_image_is_built_by_one_service_and_never_pulled() -> None:
    built = {SERVICES[name]["image"]: name for name in OURS if "build" in SERVICES[name]}
    assert built == BUILT
    for name in OURS:
        service = SERVICES[name]
        if "build" in service:
            assert (ROOT / "docker" / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        else:
            assert service["pull_policy"] == "never"


def test_variables_of_a_bucket_are_passed_on() -> None:
    guide = (ROOT / "docs" / "operate" / "storage.md").read_text()
    named = set(re.findall(r"`(AWS_[A-Z_]+)`", guide))
    passed_on = {name for name, value in COMPOSE["x-environment"].items() if value is None}
    assert passed_on == named


def test_every_setting_can_be_given_in_an_optional_file() -> None:
    for name in OURS:
        assert SERVICES[name]["env_file"] == [{"path": "grpo.env", "required": False}]


@pytest.mark.parametrize("name", SERVICES)
def test_logs_have_a_size_limit(name: str) -> None:
    logging = SERVICES[name]["logging"]
    assert logging == {"driver": "local", "options": {"max-size": "20m", "max-file": "5"}}


@pytest.mark.parametrize("name", OURS)
def test_a_missing_folder_of_models_is_an_error(name: str) -> None:
    (models,) = [each for each in SERVICES[name]["volumes"] if isinstance(each, dict)]
    assert models["source"] == "${GRPO_MODELS_DIR:?set GRPO_MODELS_DIR}"
    assert (models["target"], models["read_only"]) == ("/models", True)
    assert models["bind"] == {"create_host_path": False}


def test_only_the_worker_may_create_sandbox_namespaces() -> None:
    opened = {name: SERVICES[name]["security_opt"][1:] for name in OURS}
    assert opened.pop("worker") == ["seccomp=seccomp.json", "apparmor=unconfined"]
    assert set(map(tuple, opened.values())) == {()}
    assert container_profile.PROFILE == ROOT / "docker" / "seccomp.json"


def test_the_seccomp_profile_is_an_allow_list() -> None:
    profile = container_profile.read()
    assert (profile["defaultAction"], profile["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 1)
    machines = {each["architecture"]: each["subArchitectures"] for each in profile["archMap"]}
    assert machines == {"SCMP_ARCH_X86_64": [], "SCMP_ARCH_AARCH64": []}
    allowed = [rule for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"]
    (refused,) = [rule for rule in profile["syscalls"] if rule not in allowed]
    assert (refused["names"], refused["errnoRet"]) == (["clone3"], errno.ENOSYS)
    free = [name for rule in allowed if "args" not in rule for name in rule["names"]]
    assert len(free) == len(set(free))
    assert {"mount", "umount2", "pivot_root", "unshare", "clone", "sethostname"} <= set(free)
    assert not NEVER & set(free)
    limited = {name for rule in allowed if "args" in rule for name in rule["names"]}
    assert limited == {"personality", "socket"}


@pytest.mark.parametrize("taken", ["nothing", "mount"])
def test_the_sandbox_works_under_the_profile_and_reports_missing_calls(taken: str) -> None:
    script = "from grpo_engine.sandbox import self_test; print(self_test().available)"
    command = [sys.executable, "-m", "tests.support.container_profile", taken, sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == (f"{taken == 'nothing'}\n", "")


def test_the_worker_has_all_gpus_and_time_for_its_last_checkpoint() -> None:
    (device,) = SERVICES["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert SERVICES["worker"]["stop_grace_period"] == "180s"


def test_the_variant_without_a_gpu_removes_the_devices_and_nothing_else() -> None:
    text = (ROOT / "docker" / "compose.cpu.yaml").read_text()
    assert text.count("devices: !reset []\n") == 1
    (worker,) = yaml.safe_load(text.replace("!reset ", ""))["services"].values()
    arguments = {"TORCH_INDEX_URL": "${TORCH_INDEX_URL:-}"}
    assert worker == {
        "build": {"args": arguments},
        "deploy": {"resources": {"reservations": {"devices": []}}},
    }
    assert ("ARG", "TORCH_INDEX_URL=") in instructions(DOCKERFILES[1])


def test_every_named_volume_is_declared() -> None:
    sources = [source for service in SERVICES.values() for source, _ in mounts(service)]
    assert {source for source in sources if not source.startswith("${")} == set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_a_server_image_is_pinned_to_a_release(name: str) -> None:
    assert re.fullmatch(rf"{name}:\d+\.\d+(\.\d+)?-bookworm", SERVICES[name]["image"])
