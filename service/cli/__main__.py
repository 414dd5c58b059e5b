"""`python -m service.cli`: runs the `grpo` command with this interpreter."""

from service.cli.main import run

if __name__ == "__main__":
    run()
