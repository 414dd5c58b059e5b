"""Each family's model, made once for a process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.families.catalogue import FAMILIES
from tests.engine.families.models import make_family


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = make_family(tmp_path_factory.mktemp(family) / family, FAMILIES[family])
        return made[family]

    return folder
