"""Give two examples for each command. Its help ends with them, and a test parses them by the command's own options."""

EXAMPLES: dict[str, tuple[str, str]] = {
    "tune": ("whet tune digits-cnn --budget 2m", "whet tune -- python train.py --epochs 1"),
    "run": (
        "whet run --recipe whet-out/train -- python train.py --epochs 3",
        "whet run --recipe recipe.toml -- python -m package.train",
    ),
    "train": ("whet train config.toml optimizer.lr=1e-3", "whet train config.toml --resume"),
    "plan": (
        "whet plan models/llama --gpus 64 --gpu h100 --tokens 2T",
        "whet plan models/llama --serve --rate 20 --slo ttft=1s,tpot=50ms",
    ),
    "apply": (
        "whet apply whet-out/digits-cnn/recipe.toml digits-cnn --out tuned",
        "whet apply recipe.toml model.py:build --out tuned --json",
    ),
    "bench": ("whet bench digits-cnn --batch 1,8,32", "whet bench model.py:build --against main"),
    "profile": ("whet profile docs-gpt --out profile", "whet profile --trace before.json after.json"),
    "audit": ("whet audit train.py src", "whet audit train.py --measure -- --epochs 1"),
    "techniques": ("whet techniques", "whet techniques int8_static"),
    "doctor": ("whet doctor", "whet doctor --nodes node1:29500,node2"),
    "limits": ("whet limits", "whet limits --links --json"),
    "serve": ("whet serve docs-gpt --port 8000", "whet serve models/small --weights int8 --replicas 2"),
    "bench-serve": (
        "whet bench-serve docs-gpt --rate 4 --duration 30s",
        "whet bench-serve http://127.0.0.1:8000 --rate 4 --slo ttft=500ms,tpot=50ms",
    ),
    "stream": (
        "whet stream --source synthetic:300 --budget 40ms",
        "whet stream models/turbo --source clip.mp4 --sink answer.mp4",
    ),
    "chat": ("whet chat docs-gpt", "whet chat models/small --weights int8 --temperature 0"),
    "monitor": ("whet monitor -- python train.py --epochs 3", "whet monitor --out run --no-page -- python train.py"),
}


def lines(command: str) -> list[str]:
    """Return the lines with which a command's help ends."""
    return ["examples:", *(f"  {example}" for example in EXAMPLES[command])]
