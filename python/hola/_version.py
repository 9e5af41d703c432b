"""The version of the package; the same as HOLA_VERSION of include/hola.h, which the build and the tests compare."""

__version__ = "0.1.0"
