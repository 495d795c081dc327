import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    """No test touches the user's cache."""
    os.environ["HEDDLE_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def engine(cache_folder):
    import heddle
    return heddle.Engine("cpu")
