"""What `make containers` reads from the files of the project; itself it needs a container engine."""

from bench.containers.base_images import STAND_INS, base_images
from bench.containers.run import guide_commands


def test_each_base_image_of_the_project_has_a_stand_in() -> None:
    images = base_images()
    assert {name.split(":")[0] for name in images} == {"python", "postgres", "redis"}
    assert len(images) == 3
    assert {path.name for path in STAND_INS.glob("*.Dockerfile")} == {
        f"{name.split(':')[0]}.Dockerfile" for name in images
    }


def test_the_guide_has_commands_for_a_backup_its_restoration_and_an_upgrade() -> None:
    backup, restoration, upgrade = guide_commands()
    assert ("pg_dump" in backup, "pg_restore" in restoration, "migrate" in upgrade) == (True, True, True)
