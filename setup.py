"""What pyproject.toml has no key for: the cffi module, the wheel's tag, and Twisted's plugin folder."""

import os
import sys
import sysconfig

from setuptools import Distribution, setup

PLUGINS = "plugins/twisted/plugins"


def plugin_folder() -> str:
    """Where Twisted looks for plugins in this installation, as seen from its prefix."""
    paths = sysconfig.get_paths()
    return os.path.join(os.path.relpath(paths["purelib"], paths["data"]), "twisted", "plugins")


class WithData(Distribution):
    """setuptools' editable_wheel asks has_data, which exists under another name only."""

    def has_data(self) -> bool:
        """Are there data files?"""
        return bool(self.data_files)


# The module keeps to the stable ABI (sector/_udt/_build.py): one wheel serves every Python from 3.11 on, and
# where there is no compiler it does not matter with which of them it was built. A free-threaded Python has no
# such ABI; cffi builds for that one alone.
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

# A wheel carries the plugin as a module. An editable install links no modules into packages of others: there
# the file itself is put beside Twisted's own plugins.
editable = "editable_wheel" in sys.argv
setup(
    distclass=WithData,
    options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp311"}},
    cffi_modules=["sector/_udt/_build.py:ffi"],
    package_dir={"twisted.plugins": PLUGINS},
    py_modules=[] if editable else ["twisted.plugins.sector_udt"],
    data_files=[(plugin_folder(), [f"{PLUGINS}/sector_udt.py"])] if editable else [],
)
