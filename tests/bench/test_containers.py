"""What `make containers` reads from the files of the project; itself it needs a container engine."""

from bench.containers.base_images import STAND_INS, base_images


def test_each_base_image_of_the_project_has_a_stand_in() -> None:
    images = base_images()
    assert {name.split(":")[0] for name in images} == {"python", "postgres", "redis"}
    assert len(images) == 3
    assert {path.name for path in STAND_INS.glob("*.Dockerfile")} == {
        f"{name.split(':')[0]}.Dockerfile" for name in images
    }
