"""A container engine: this machine's, or Debian's packages unpacked into a folder and started there.

The engine is from Debian 12. Its version of Compose cannot read the compose file, so the command line,
Compose and buildx are from Debian 13. Nothing is installed, and everything that was started is ended.
"""

import os
import platform
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

ENGINE = (
    *("docker.io", "containerd", "runc", "tini", "debootstrap", "iptables", "libxtables12", "libip4tc2"),
    *("libip6tc2", "libnetfilter-conntrack3", "libnfnetlink0", "libnftnl11", "libmnl0"),
)
CLIENT = ("docker-cli", "docker-compose", "docker-buildx")
LIBRARIES = Path(f"usr/lib/{platform.machine()}-linux-gnu")
TABLES = ("filter", "nat")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
"""Setting that the daemon turns on."""
START_SECONDS = 60
END_SECONDS = 60


@contextmanager
def container_engine(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which `docker` and `docker compose` work."""
    if _works(os.environ):
        yield dict(os.environ)
        return
    root = folder / "engine"
    if not (root / "usr/sbin/dockerd").exists():
        _unpack("bookworm", ENGINE, folder)
        _unpack("trixie", CLIENT, folder)
        _link(root / "usr/bin/docker-init", "tini-static")
        _link(root / "usr/sbin/iptables", "iptables-legacy")
    environment = _environment(folder, root)
    rules = "".join(run(environment, "iptables-legacy-save", "--table", each) for each in TABLES)
    forwarding = FORWARDING.read_text()
    try:
        with _daemon(folder, environment):
            yield environment
    finally:
        subprocess.run(["iptables-legacy-restore"], env=environment, input=rules, text=True, check=True)
        FORWARDING.write_text(forwarding)
        _remove_leftovers(folder)


def debian_mirror() -> str:
    """The package mirror that apt uses on this machine."""
    found = run(os.environ, "apt-get", "indextargets", "--format", "$(RELEASE) $(SITE)")
    sites = [line.split()[1] for line in found.splitlines() if line.split()[0] == "bookworm"]
    if not sites:
        raise RuntimeError("no container engine is installed, and this is no Debian 12 that could unpack one")
    return sites[0]


def _works(environment: Mapping[str, str]) -> bool:
    with suppress(OSError):
        commands = (["docker", "info"], ["docker", "compose", "version"])
        return all(
            subprocess.run(each, env=environment, capture_output=True).returncode == 0 for each in commands
        )
    return False


def _unpack(suite: str, wanted: tuple[str, ...], folder: Path) -> None:
    """Download packages of a Debian release, which apt verifies, and unpack them into `folder`/engine."""
    own = folder / "apt" / suite
    for name in ("lists/partial", "cache/archives/partial", "packages"):
        (own / name).mkdir(parents=True, exist_ok=True)
    signed = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    (own / "sources.list").write_text(f"deb {signed} {debian_mirror()} {suite} main\n")
    dirs = {"Etc::SourceList": own / "sources.list", "Etc::SourceParts": "/dev/null"}
    dirs |= {"State::Lists": own / "lists", "Cache": own / "cache"}
    apt = ["apt-get", *(f"--option=Dir::{name}={path}" for name, path in dirs.items())]
    run(os.environ, *apt, "update")
    run(os.environ, *apt, "download", *wanted, cwd=own / "packages")
    for archive in (own / "packages").iterdir():
        run(os.environ, "dpkg-deb", "-x", archive, folder / "engine")


def _link(path: Path, target: str | Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _environment(folder: Path, root: Path) -> dict[str, str]:
    plugins = folder / "config" / "cli-plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    for name in ("docker-compose", "docker-buildx"):
        _link(plugins / name, root / "usr/libexec/docker/cli-plugins" / name)
    return {
        **os.environ,
        "PATH": f"{root}/usr/sbin:{root}/usr/bin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(root / LIBRARIES),
        "XTABLES_LIBDIR": str(root / LIBRARIES / "xtables"),
        "DEBOOTSTRAP_DIR": str(root / "usr/share/debootstrap"),
        "DOCKER_HOST": f"unix://{folder}/docker.sock",
        "DOCKER_CONFIG": str(folder / "config"),
    }


@contextmanager
def _daemon(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    own = {"--data-root": "data", "--exec-root": "exec", "-p": "docker.pid"}
    options = [word for name, path in own.items() for word in (name, str(folder / path))]
    command = ["dockerd", *options, "-H", environment["DOCKER_HOST"], "--mtu", "1400"]
    with (folder / "dockerd.log").open("ab") as log:
        # in its own session, so that Ctrl-C does not end it before the containers
        daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _works(environment):
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the container engine does not start; see {folder}/dockerd.log")
            time.sleep(0.2)
        yield
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(END_SECONDS)


def _remove_leftovers(folder: Path) -> None:
    """Remove what the daemon leaves behind: mounts of its network namespaces, and its bridge."""
    with suppress(OSError):
        subprocess.run(["ip", "link", "delete", "docker0"], check=False)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", mount], check=True)


def run(environment: Mapping[str, str], *command: str | Path, cwd: Path | None = None) -> str:
    """Standard output of a command. Raises RuntimeError with the end of its other output."""
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr[-2000:]}")
    return done.stdout
