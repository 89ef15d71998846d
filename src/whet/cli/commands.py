"""Name the commands, with the module of each and a line of help."""

# command -> (module, one line of help); each module has a function of the command's name (with _ for -), for typer, or
# a function `main` that takes the arguments and returns the exit code: typer takes longer to start than a small audit
COMMANDS = {
    "tune": ("whet.cli.tune", "Find the fastest recipe for a model or a training run here, and prove it."),
    "run": ("whet.cli.run", "Run a training script with a recipe applied to its loop, unchanged."),
    "train": ("whet.cli.train", "Train a language model from a configuration, with what whet tune found."),
    "plan": ("whet.cli.plan", "Predict how a training is divided best among GPUs, and what it takes and costs."),
    "apply": ("whet.cli.apply", "Replay a recipe on a target and save the result."),
    "bench": ("whet.cli.bench", "Measure a target at many sizes, and fail if it has become slower."),
    "profile": ("whet.cli.profile", "Say what bounds a model, how far it is from the limit, and what would help."),
    "audit": ("whet.cli.audit", "Find what makes PyTorch code slow, say what it may cost, and fix it."),
    "techniques": ("whet.cli.techniques", "List the techniques, what each does, and which can run on this machine."),
    "doctor": ("whet.cli.doctor", "Say what is installed, what works, and what is missing for which command."),
    "limits": ("whet.cli.limits", "Measure what this machine can do at best."),
    "serve": ("whet.cli.serve", "Serve language models, and what whet tune saved, over HTTP."),
    "bench-serve": ("whet.cli.bench_serve", "Put a server under load: latencies, throughput and goodput of its users."),
    "stream": ("whet.cli.stream", "Turn frames into frames in real time, within a budget, and report it."),
    "chat": ("whet.cli.chat", "Talk to a model in the terminal."),
    "monitor": ("whet.cli.monitor", "Watch a command as it runs: live page, Prometheus metrics, summary."),
}

# functions of whet that have no command, and what a user who looks for one is told
FUNCTIONS = {
    "compare": "whet.compare(old, new); see docs/compare.md",
    "load": "whet.load(directory); see docs/tune.md",
    "watch": "whet.watch(model, optimizer, loader); see docs/watch.md",
}
