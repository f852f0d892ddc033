"""The one setting pyproject.toml has no key for: the cffi module."""

from setuptools import setup

setup(cffi_modules=["sector/_udt/_build.py:ffi"])
