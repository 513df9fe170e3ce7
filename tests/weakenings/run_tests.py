"""Pytest as a program of its own: it is run in a fork of a process that has imported the libraries of the tests."""

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:]))
