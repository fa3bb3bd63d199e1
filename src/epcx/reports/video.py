"""Replays as MP4, encoded by FFmpeg."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from epcx.errors import InputError
from epcx.reports.drawing import GIF_FRAME_MS, GIF_HOLD_MS, animation
from epcx.reports.replay import Replay


def find_ffmpeg() -> str:
    """The program on the PATH, or that of the package imageio-ffmpeg."""
    found = shutil.which("ffmpeg")
    if found:
        return found
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):
        raise InputError(
            "an .mp4 needs ffmpeg, which is not on the PATH: install it, or pip install "
            "'epcx[video]'"
        ) from None


def to_mp4(replay: Replay) -> bytes:
    """The frames of the GIF in H.264, which browsers and slides play; the last one is held."""
    frames = animation(replay)
    frames += frames[-1:] * (GIF_HOLD_MS // GIF_FRAME_MS - 1)
    width, height = frames[0].size
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay.mp4"  # MP4 cannot be written to a pipe
        command = [find_ffmpeg(), "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
        command += ["-s", f"{width}x{height}", "-framerate", f"1000/{GIF_FRAME_MS}", "-i", "-"]
        # Other formats of pixels are not played by most players.
        command += ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(path)]
        pixels = b"".join(frame.tobytes() for frame in frames)
        done = subprocess.run(command, input=pixels, capture_output=True)
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").split()
            raise InputError(f"ffmpeg cannot encode the replay: {' '.join(words)}")
        return path.read_bytes()
