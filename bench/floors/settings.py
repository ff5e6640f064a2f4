"""Our own settings, with the floor's views and its one table in the place of ours."""

from inclavate.settings import *  # noqa: F403
from inclavate.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "bench.floors"]
ROOT_URLCONF = "bench.floors.views"
