"""`python -m service.cli`: the `grpo` command of this very interpreter."""

from service.cli.main import run

if __name__ == "__main__":
    run()
