"""Runs all checks concurrently, each with a time limit; a check that hangs becomes a finding."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from service.ops.doctor import machine, model, serving, software, stores
from service.ops.doctor.findings import Finding, failure
from service.platform.logs import mask
from service.settings import Settings

CHECK_SECONDS = 10.0
SERVERS = ("database", "broker", "storage", "model servers")
OF_A_SERVER = "It accepts connections but does not respond: check that server, and the network."
OF_THIS_MACHINE = "Check this machine's load, free memory and file systems, and run `grpo doctor` again."
OF_ITS_THREADS = "Raise this user's limit of processes (ulimit -u), or its container's limit of pids."
Check = Callable[[], Iterable[Finding]]


class _Examined(threading.Thread):
    """One check in a daemon thread, so that one that hangs does not keep the process alive."""

    def __init__(self, name: str, check: Check) -> None:
        super().__init__(name=name, daemon=True)
        self.findings: list[Finding] = []
        self._check = check
        try:
            self.start()
        except RuntimeError as error:
            self.findings.append(failure(name, f"the check was not started: {error}", OF_ITS_THREADS))

    def run(self) -> None:
        try:
            for finding in self._check():
                self.findings.append(finding)
        except Exception as error:  # noqa: BLE001 - the other checks go on
            found = f"the check failed: {type(error).__name__}: {error}"
            self.findings.append(
                failure(self.name, found, "See its settings in docs/reference/configuration.md.")
            )


def examine(
    settings: Settings, seconds: float = CHECK_SECONDS, *, model_name: str | None = None
) -> Iterator[Finding]:
    """Findings in a fixed order, with passwords masked; `model_name`: a model to load in the engine."""
    checks: dict[str, Check] = {
        "packages": software.packages,
        "settings": lambda: software.settings_found(settings),
        "database": lambda: stores.database(settings),
        "broker": lambda: stores.broker(settings),
        "storage": lambda: stores.storage(settings),
        "disk": lambda: stores.disk(settings),
        "model servers": lambda: serving.model_servers(settings),
        "models": lambda: machine.models(settings),
        "sandbox": lambda: machine.sandbox(settings),
        "engine": lambda: software.engine(settings),
    }
    limits = {"engine": software.ENGINE_SECONDS + 1, "model": model.MODEL_SECONDS + 1}
    if model_name is not None:
        checks["model"] = lambda: model.model(settings, model_name)
    started = time.monotonic()
    examined = [_Examined(name, check) for name, check in checks.items()]
    for each in examined:
        limit = limits.get(each.name, seconds)
        if each.ident is not None:
            each.join(max(0.0, started + limit - time.monotonic()))
        findings = list(each.findings)
        if each.is_alive():
            advice = OF_A_SERVER if each.name in SERVERS else OF_THIS_MACHINE
            findings.append(failure(each.name, f"no answer within {limit:g} s", advice))
        yield from (finding._replace(found=mask(finding.found)) for finding in findings)
