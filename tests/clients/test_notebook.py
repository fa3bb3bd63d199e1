"""The render mode `human` in a real notebook: the picture in its output is the last frame."""

import base64
import io

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from PIL import Image

from epcx.adapters.pettingzoo import parallel_env

pytestmark = pytest.mark.slow

PLAY = """
env = parallel_env("grassland", "3-2", render_mode={mode!r})
env.reset(seed=3)
for _ in range(4):
    env.step(dict.fromkeys(env.agents, 1))
frame = env.render()
"""


def test_notebook_shows_the_last_frame_in_one_picture(tmp_path):
    code = "from epcx.adapters.pettingzoo import parallel_env\n" + PLAY.format(mode="human")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=str(tmp_path))
    pictures = [out for out in notebook.cells[0].outputs if out.output_type == "display_data"]
    (picture,) = pictures
    shown = Image.open(io.BytesIO(base64.b64decode(picture.data["image/png"])))
    variables = {"parallel_env": parallel_env}
    exec(PLAY.format(mode="rgb_array"), variables)
    np.testing.assert_array_equal(np.asarray(shown), variables["frame"])
