"""Tideline's images, built from `docker/` without a container engine: a base from Debian's packages, buildah, archives in the
cache."""
