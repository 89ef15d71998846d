"""What names mean in code that uses PyTorch: what a library's function makes, and how people call things."""

import re
from functools import lru_cache

# Functions of torch that make a tensor on the CPU unless they are told a device.
FACTORIES = frozenset(
    (
        "tensor as_tensor zeros ones full empty rand randn randint randperm arange linspace logspace eye from_numpy "
        "normal bernoulli Tensor FloatTensor LongTensor IntTensor BoolTensor ByteTensor DoubleTensor HalfTensor "
        "scalar_tensor tril_indices triu_indices frombuffer stft hann_window hamming_window"
    ).split()
)
_TORCH_NOT_TENSORS = frozenset(
    (
        "device Size Generator no_grad enable_grad inference_mode set_grad_enabled load save manual_seed seed "
        "is_tensor set_num_threads get_num_threads set_default_dtype set_default_device set_float32_matmul_precision "
        "compile is_grad_enabled numel autocast finfo iinfo typename is_floating_point get_default_dtype allclose "
        "equal set_printoptions get_rng_state set_rng_state initial_seed use_deterministic_algorithms is_inference "
        "qscheme get_autocast_gpu_dtype is_autocast_enabled set_anomaly_enabled set_default_tensor_type dtype Stream "
        "Event hub jit onnx fx ops classes library export vmap broadcast_shapes result_type"
    ).split()
)
_MADE = {
    "torch.device": "DEVICE",
    "torch.compile": "SAME",
    "torch.jit.script": "SAME",
    "torch.jit.trace": "SAME",
    "torch.jit.load": "MODEL",
    "torch.nn.Parameter": "TENSOR",
    "torch.nn.parameter.Parameter": "TENSOR",
    "torch.Tensor": "TENSOR",
    "torch.autograd.Variable": "SAME",
    "torch.autograd.grad": "LIST",
    "torch.numel": "NUMBER",
    "torch.hub.load": "MODEL",
    "torch.cuda.amp.GradScaler": "SCALER",
    "torch.amp.GradScaler": "SCALER",
    "torch.amp.grad_scaler.GradScaler": "SCALER",
    "torch.nn.utils.clip_grad_norm_": "TENSOR",
    "torch.nn.utils.rnn.pad_sequence": "TENSOR",
    "torch.nn.DataParallel": "SAME",
    "torch.nn.parallel.DataParallel": "SAME",
    "torch.nn.parallel.DistributedDataParallel": "SAME",
    "torch.nn.parallel.distributed.DistributedDataParallel": "SAME",
    "torch.distributed.fsdp.FullyShardedDataParallel": "SAME",
    "accelerate.Accelerator": "OTHER",
    "timm.create_model": "MODEL",
    "open_clip.create_model": "MODEL",
    "whisper.load_model": "MODEL",
    "clip.load": "MODEL",
    "sentence_transformers.SentenceTransformer": "MODEL",
    "peft.get_peft_model": "SAME",
    "transformers.pipeline": "OTHER",
    "datasets.load_dataset": "DATASET",
    "tiktoken.get_encoding": "TOKENIZER",
    "sentencepiece.SentencePieceProcessor": "TOKENIZER",
    "tokenizers.Tokenizer.from_file": "TOKENIZER",
    "tokenizers.Tokenizer": "TOKENIZER",
    "numpy.random.default_rng": "OTHER",
    "pandas.DataFrame": "FRAME",
    "pandas.read_csv": "FRAME",
}
_LOADERS = ("DataLoader", "PyGDataLoader", "MultiEpochsDataLoader")
_DATASETS = ("Dataset", "IterableDataset", "TensorDataset", "Subset", "ConcatDataset", "ImageFolder", "DatasetFolder")
_MODEL_BASES = ("LightningModule", "PreTrainedModel", "ModelMixin", "GenerationMixin")

ANNOTATIONS = {
    "Tensor": "TENSOR",
    "FloatTensor": "TENSOR",
    "LongTensor": "TENSOR",
    "BoolTensor": "TENSOR",
    "IntTensor": "TENSOR",
    "ndarray": "ARRAY",
    "Module": "MODEL",
    "PreTrainedModel": "MODEL",
    "Optimizer": "OPTIMIZER",
    "DataLoader": "LOADER",
    "Dataset": "DATASET",
    "GradScaler": "SCALER",
    "PreTrainedTokenizer": "TOKENIZER",
    "PreTrainedTokenizerBase": "TOKENIZER",
    "PreTrainedTokenizerFast": "TOKENIZER",
    "AutoTokenizer": "TOKENIZER",
    "int": "NUMBER",
    "float": "NUMBER",
    "bool": "NUMBER",
    "str": "TEXT",
    "list": "LIST",
    "dict": "DICT",
    "device": "DEVICE",
    "dtype": "DTYPE",
    "DataFrame": "FRAME",
}
BUILTINS = {
    **dict.fromkeys(("int", "float", "len", "round", "abs", "ord", "hash", "id"), "NUMBER"),
    **dict.fromkeys(("str", "repr", "input", "format", "chr"), "TEXT"),
    **dict.fromkeys(("dict", "vars", "defaultdict", "OrderedDict", "Counter"), "DICT"),
    **dict.fromkeys(("range", "map", "filter", "zip", "enumerate", "open", "bool", "isinstance", "hasattr"), "OTHER"),
    **dict.fromkeys(("tqdm", "trange", "iter", "list", "tuple", "reversed", "sorted", "set"), "SAME"),
}
DTYPE = re.compile(r"torch\.(float|half|bfloat|int|uint|long|short|bool|double|complex|float8)\w*")
NUMBER_ATTRIBUTES = frozenset(
    "shape ndim is_cuda is_cpu requires_grad dtype layout size itemsize nbytes is_leaf".split()
)
OUTPUT_TENSORS = frozenset(
    (
        "loss logits last_hidden_state pooler_output hidden_states attentions past_key_values start_logits end_logits "
        "sequences scores sample prev_sample image_embeds text_embeds encoder_last_hidden_state logits_per_image"
    ).split()
)
TENSOR_VIEWS = frozenset("T mT H mH real imag grad data".split())
MODEL_SELF = frozenset(
    (
        "to cuda cpu half float double bfloat16 eval train requires_grad_ type apply share_memory compile xpu ipu "
        "to_empty merge_and_unload"
    ).split()
)
# Methods that only tensors have (and those that arrays share with them are left out).
TENSOR_ONLY = frozenset(
    (
        "detach unsqueeze softmax log_softmax requires_grad_ masked_fill masked_fill_ masked_select scatter_ gather "
        "index_select sigmoid tanh relu backward contiguous bmm matmul narrow expand expand_as scatter_add_ topk "
        "index_add_ view_as new_zeros new_ones new_full new_tensor pin_memory type_as logsumexp clamp clamp_ "
        "unsqueeze_ squeeze_ zero_ fill_ copy_ add_ mul_ div_ sub_"
    ).split()
)
NOT_TENSORS = re.compile(
    r"(is|use|do|return|num|n|max|min|with)_.*|.*(_size|_len|_idx|_name|_type|config|cfg|mode)|device|dtype|[a-wz]"
)

GUESSES = (
    (re.compile(r"(\w+_)?(loss|logits?|losses)(_\w+)?"), "TENSOR"),
    (re.compile(r"(\w+_)?(input_ids|attention_mask|pixel_values|hidden_states)"), "TENSOR"),
    (
        re.compile(
            r"(\w*_)?(model|net|network|unet|vae|module|policy_net|target_net|backbone)"
            r"(_(?!proto|path|dir|file|name|config|cfg|args|id|type|key|size|dim|fn|url)\w{1,6})?"
        ),
        "MODEL",
    ),
    (re.compile(r"net[DGF]\w*|discriminator|student|teacher|(text_|image_|vision_)?encoder|decoder"), "MODEL"),
    (re.compile(r"(\w*_)?(criterion|loss_fn|loss_func|loss_function)"), "MODEL"),
    (re.compile(r"(\w*_)?(optim|optimi[sz]er|opt)(_?\w{1,8})?"), "OPTIMIZER"),
    (re.compile(r"(\w*_)?(data_?loader|loader|train_dl|val_dl|test_dl|train_iter)s?"), "LOADER"),
    (re.compile(r"(\w*_)?(tokenizer|tokeniser)"), "TOKENIZER"),
    (re.compile(r"(grad_)?scaler"), "SCALER"),
    (re.compile(r"(\w*_)?(scheduler|lr_sched)"), "SCHEDULER"),
    (re.compile(r"(\w*_)?device"), "DEVICE"),
    (re.compile(r"batch|minibatch|mini_batch"), "BATCH"),
)


@lru_cache(maxsize=4096)
def made_by(dotted: str) -> str | None:
    """What calling (or subclassing) a library's name makes, as the name of a Kind; "SAME": what it was given."""
    if dotted in _MADE:
        return _MADE[dotted]
    first, _, last = dotted.partition(".")[0], "", dotted.rpartition(".")[2]
    if last in _LOADERS:
        return "LOADER"
    if last in _DATASETS and first in ("torch", "torchvision", "torch_geometric"):
        return "DATASET"
    if last in _MODEL_BASES:
        return "MODEL"
    if first == "torch":
        return _of_torch(dotted, last)
    if first in ("numpy", "np"):
        return "ARRAY" if not dotted.startswith("numpy.random.seed") else "OTHER"
    if first == "transformers" or first in ("diffusers", "peft"):
        return _of_transformers(dotted, last)
    if dotted.startswith("torchvision.models."):
        return "MODEL"
    if dotted.startswith(("torchvision.datasets.",)):
        return "DATASET"
    if first in ("bitsandbytes", "lion_pytorch", "torch_optimizer", "apex") and "optim" in dotted.lower():
        return "OPTIMIZER"
    return None


def _of_torch(dotted: str, last: str) -> str | None:
    if dotted.startswith("torch.nn.functional."):
        return "TENSOR" if dotted.count(".") == 3 else "OTHER"
    if dotted.startswith("torch.optim.lr_scheduler."):
        return "SCHEDULER"
    if dotted.startswith("torch.optim.") and last[:1].isupper():
        return "OPTIMIZER"
    if dotted.startswith("torch.nn.") and last[:1].isupper():
        return "MODEL"
    if dotted.startswith("torch.utils.data."):
        return "DATASET" if last.endswith("Dataset") else "OTHER"
    if DTYPE.fullmatch(dotted):
        return "DTYPE"
    depth = dotted.count(".")
    if depth == 1:
        return "OTHER" if last in _TORCH_NOT_TENSORS or last.startswith(("is_", "are_")) else "TENSOR"
    if depth == 2 and dotted.split(".")[1] in ("linalg", "fft", "special", "sparse"):
        return "TENSOR"
    return "OTHER" if dotted.startswith(("torch.cuda.", "torch.distributed.", "torch.backends.")) else None


def _of_transformers(dotted: str, last: str) -> str | None:
    parts = dotted.split(".")
    maker = parts[-2] if last in ("from_pretrained", "from_config") and len(parts) > 1 else last
    if "Tokenizer" in maker:
        return "TOKENIZER"
    if maker.endswith(("Processor", "FeatureExtractor")):
        return "TOKENIZER"
    if maker.endswith(("Config", "Arguments")):
        return "OTHER"
    if maker.endswith(("Scheduler", "Pipeline", "Trainer")) or last == "from_config":
        return "OTHER"
    if maker.startswith("get_") and "schedule" in maker:
        return "SCHEDULER"
    if maker in ("AdamW", "Adafactor"):
        return "OPTIMIZER"
    return "MODEL" if maker[:1].isupper() and last == "from_pretrained" else None
