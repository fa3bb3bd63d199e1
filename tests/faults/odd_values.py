"""Values that options and files were not made for."""

from typing import Any

NUMBERS = [
    "0", "-0", "1", "2", "7", "-1", "-7", "1.5", "1e3", "0x10", "1_0", "00", "+1", "--1", " 3 ",
    "\u0663", "\uff11", "\u00bd", "\u00b2", "nan", "NaN", "-nan", "inf", "-inf", "Infinity",
    "1e999", "-1e999", "1e-999", "1e-45", "1e39", "1e308", "2147483648", "4294967296",
    "9223372036854775808", "-9223372036854775809", "9" * 400, "9" * 5000, "-" + "9" * 5000,
    "0." + "0" * 5000 + "1",
]  # fmt: skip
POPULATIONS = [
    "0", "1", "2", "3-2", "-1", "3-", "-3", "3-2-1", "1000000", "99999-1", "0-2", "2-0", "1--2",
    "1,2", "1.0", "3_2", "3\u20132", "\u0661", "two", "", "1-" + "9" * 50, "-".join("1" * 300),
]  # fmt: skip
NAMES = [
    "grassland", "food-collection", "chess", "Grassland", "epc", "maddpg", "mean-field",
    "attention", "scripted", "random", "local", ":", "a:", ":b", "a:b:c", "..:x", "os:path",
    "no.such:Thing", "json:JSONDecoder", "epcx.games:Game", "epcx.learners:Learner",
    "tests.es_learner:ES", "raises:Game", "exits:Game", "hollow:Game", "hollow:Game.b.c",
    "hollow:Game\x1b[2J",
]  # fmt: skip
TEXTS = [
    "", " ", "-", "--", "---", "x", "%s %(x)d {0} {x}", "$(reboot)", "$x_{$", "`x`", "a;b", "a=b",
    "*", "\\", "\x1b[2J\x1b]0;x\x07", "a\nb", "a\rb", "\t", "\x7f\x85", "[bold]x[/]", "[/x]", "<b>",
    "Gr\u00f6\u00dfe", "\u7f8a", "\U0001f411", "\u202eabc", "e\u0301" * 200, "\udcff", "\u2028",
    "'\"", "=1+1", "null", "x" * 300, "x" * 5000, "\u00fc" * 200, "a/" * 1500 + "a", "a/" * 3000,
]  # fmt: skip
# A folder has all of these; or has not, where they are meant to be missing.
NOT_THERE = ["missing", "missing/deeper", "dangling", "file.txt/x", "run/agents/9", "/dev/null/x"]
NO_FOLDERS = ["file.txt", "pipe", "zeros", "loop", "loop/x", "/dev/null", "/dev/full", "/proc/1/x"]
FOLDERS = ["", ".", "..", "/", "empty", "run/agents", "run/", "./run/../run", "/proc/self", "~"]
FILES = ["a.html", "a.png", "a.gif", "a.avi", "pipe.json", "zeros.json", "other.json", "loop.json"]
PLACES = ["run@1", "run@9", "run@", "@", "@1", "run@1:0", "run@1:9", "run@2:x", "run@2:-1"]
PATHS = [*NOT_THERE, *NO_FOLDERS, *FOLDERS, *FILES, *PLACES]
EVERYTHING = [*NUMBERS, *POPULATIONS, *NAMES, *TEXTS, *PATHS]
# Never the device: a program that writes over it takes it away from the machine.
OUTPUTS = [text for text in [*PATHS, *TEXTS] if not text.startswith("zeros")]
FOLDER_NAMES = [
    "x", "0", "1", "2", "4", "7", "00", "000099", "-1", "1-", "0-0", "3-2", "\u0663", "\u00b2",
    "9" * 200, "\x1b[2J", "[x]", "\udcff", ".x", "x.tmp", ".writing-x", "x.safetensors",
]  # fmt: skip


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else []


IN_JSON = [
    None, True, False, 0, -1, 2, 3, 1.5, -0.0, 2**31, 2**63, -(2**63) - 1, 10**400, 1e308, -1e308,
    1e-320, float("nan"), float("inf"), float("-inf"), "", "x", "0", "1", "1-", "3-2", "collector",
    "collector-0.0", "collector-1.0", "random", "finished", "9.9.9", "9" * 5000, "x" * 5000,
    "\x1b[2J\x1b]0;x\x07", "a\nb", "\ud800", "\u202ex", "[/x]", "[bold]", "<b>", "=1+1", "$x_{$",
    "%s", "\\", "../../x", "/dev/zero", "no.such:Thing", "os:path", [], {}, [None], [[]], {"x": {}},
    ["1", "2", "4"], [0] * 1000, nested(300),
]  # fmt: skip
