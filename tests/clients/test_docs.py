"""The Python blocks of the documents that need the extra `clients`: see tests/test_docs.py."""

import pytest

from tests.test_docs import run_blocks, with_blocks_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PettingZoo in TorchRL is tested using version"),
]


@pytest.mark.parametrize("document", with_blocks_of("clients"))
def test_python_blocks_run(document, tmp_path):
    run_blocks(document, "clients", tmp_path)
