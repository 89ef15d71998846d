"""DAT105 decoding-in-loop: files read and decoded by the process that trains.

Finds       Image.open, imread, torchaudio.load, librosa.load, json.loads, np.load and the like in a training loop, or
            in __getitem__ where all loaders of the project have no workers.
Why slow    The GPU waits while one core reads and decodes.
Example     for path in paths: image = to_tensor(Image.open(path)); loss = model(image)...
Instead     Decode in __getitem__ and let a DataLoader with workers run it ahead of the step.
Gain        time to decode / step time.
Fix         none: the loop's data need a dataset of their own.
Source      PyTorch tutorial "Writing custom datasets, dataloaders and transforms".
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, HotPath, Priority
from whet_audit.hot_paths import TRAINS, HeatKind
from whet_audit.loader_setup import loaders
from whet_audit.rule_context import RuleContext, is_known

CODE = "DAT105"
NAME = "decoding-in-loop"
PRIORITY = Priority.HIGH
PREVIEW = True
_GAIN = Gain(0.05, 0.7, "time to read and decode a batch / time of a step")
_DECODERS = (
    "PIL.Image.open",
    "cv2.imread",
    "cv2.imdecode",
    "cv2.VideoCapture",
    "imageio.imread",
    "imageio.v2.imread",
    "imageio.v3.imread",
    "skimage.io.imread",
    "torchvision.io.read_image",
    "torchvision.io.decode_image",
    "torchvision.io.read_video",
    "torchaudio.load",
    "librosa.load",
    "soundfile.read",
    "scipy.io.wavfile.read",
    "scipy.io.loadmat",
    "nibabel.load",
    "json.loads",
    "json.load",
    "numpy.load",
    "numpy.loadtxt",
    "pickle.load",
    "pandas.read_csv",
    "pandas.read_parquet",
)
_PIECES = ("json.loads", "json.load", "numpy.load", "pickle.load")  # quick: no finding in __getitem__


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls of decoders whose input changes from step to step."""
    without_workers: bool | None = None
    for call in context.calls_to(*_DECODERS):
        hot = context.hot(call)
        if hot is None or hot.guard or not call.args or is_known(context.constant(call.args[0])):
            continue
        if HeatKind(hot.kind) in TRAINS:
            yield _hit(context, call, hot, "while the training step waits", Confidence.HIGH)
        elif hot.kind == HeatKind.DATA and context.dotted(call.func) not in _PIECES:
            if without_workers is None:
                without_workers = _have_no_workers(context)
            if without_workers:
                yield _hit(context, call, hot, "in the training process: no loader has workers", Confidence.MEDIUM)


def _hit(context: RuleContext, call: ast.Call, hot: HotPath, where: str, confidence: Confidence) -> Hit:
    return Hit(
        at=call, hot=hot, message=f"{context.shown(call)} reads and decodes {where}", confidence=confidence, gain=_GAIN
    )


def _have_no_workers(context: RuleContext) -> bool:
    """Whether the module makes loaders, and none with workers."""
    made = list(loaders(context))
    counts = [(context.constant(w) if (w := loader.arguments.get("num_workers")) is not None else 0) for loader in made]
    return bool(made) and all(loader.is_complete for loader in made) and all(count == 0 for count in counts)
