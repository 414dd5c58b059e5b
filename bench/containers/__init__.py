"""Builds the images and runs the compose deployment (`make containers`).

On a Debian machine without a container engine, root unpacks one into a work folder. If there is no registry,
base images are made from Debian's packages. Boundary: no measurement; `make test` does not run it.
"""
