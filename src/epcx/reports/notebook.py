"""Pictures that move in the output of a notebook's cell, while an episode is played."""

import time

from PIL import Image

from epcx.errors import InputError


class NotebookDisplay:
    """A picture that each `show` replaces, at most `fps` times per second."""

    def __init__(self, fps: int) -> None:
        try:
            from IPython import get_ipython
        except ImportError:
            get_ipython = None
        if get_ipython is None or not hasattr(get_ipython(), "kernel"):
            raise InputError(
                "render_mode 'human' shows its frames in notebooks, and this is none: use "
                "'rgb_array', whose frames render() returns"
            )
        self.pause = 1 / fps
        self.last = 0.0
        self.handle = None

    def show(self, picture: Image.Image) -> None:
        from IPython.display import display

        time.sleep(max(0.0, self.last + self.pause - time.monotonic()))
        self.last = time.monotonic()
        if self.handle is None:
            self.handle = display(picture, display_id=True)
        else:
            self.handle.update(picture)

    def close(self) -> None:
        """Leaves the picture where it is; the next one is a new one."""
        self.handle = None
