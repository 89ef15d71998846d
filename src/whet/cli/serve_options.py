"""Define the options of `whet serve` that are not those of an engine."""

from pathlib import Path
from typing import Annotated

import typer

from whet.server.tool_formats import FORMATS
from whet.workloads import model_directory

Model = Annotated[
    str | None,
    typer.Argument(
        metavar=model_directory.METAVAR, help=f"{model_directory.HELP}; or what `whet tune` or `whet apply` wrote"
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME=DIR", help="serve a model under this name; may be given several times"),
]
Libraries = Annotated[
    list[str] | None,
    typer.Option(metavar="LIBRARY", help="a .so, .py or module that registers a tuned model's custom operators"),
]
Draft = Annotated[
    str | None,
    typer.Option(
        metavar=model_directory.METAVAR,
        help="a smaller model of the same vocabulary, which drafts tokens for speculative decoding",
    ),
]
BatchTokensToo = Annotated[int | None, typer.Option("--max-num-batched-tokens", hidden=True)]
Recipe = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="a recipe.toml of whet tune; its precision and threads are used unless an option sets them"
    ),
]
Host = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="the address to listen on: 127.0.0.1 for this machine alone, 0.0.0.0 for all its networks",
    ),
]
Port = Annotated[int, typer.Option(help="the port to listen on; 0 takes any free one")]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY", envvar="WHET_API_KEY", help="requests must have this API key; may be given several times"
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="a name that requests may call the model by; may be given several times; answers have the first",
        show_default="the directory's name",
    ),
]
Timeout = Annotated[
    str, typer.Option(metavar="TIME", help="how long running requests may take to finish after SIGTERM or Ctrl-C")
]
MaxConnections = Annotated[
    int, typer.Option(help="the most connections; beyond it the one that has been idle for longest is closed")
]
HeadTimeout = Annotated[
    str,
    typer.Option(metavar="TIME", help="how long the head of a request may take to arrive; then the answer is 408"),
]
BodyTimeout = Annotated[
    str,
    typer.Option(metavar="TIME", help="how long the body of a request may take to arrive; then the answer is 408"),
]
WriteTimeout = Annotated[
    str,
    typer.Option(metavar="TIME", help="a client that reads nothing of its answer for this long is disconnected"),
]
MaxBody = Annotated[
    str, typer.Option(metavar="SIZE", help="the largest body of a request; larger ones are refused (413)")
]
MaxPending = Annotated[
    str,
    typer.Option(
        metavar="SIZE", help="the most memory for bodies being received; beyond it the largest is refused (503)"
    ),
]
Cert = Annotated[str, typer.Option(metavar="FILE", help="serve HTTPS with this certificate, as PEM")]
Key = Annotated[
    str, typer.Option(metavar="FILE", help="the private key, if the certificate's file does not hold it, as PEM")
]
KeyPassword = Annotated[str, typer.Option(envvar="WHET_SSL_KEYFILE_PASSWORD", help="the password of an encrypted key")]
Origins = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN", help="let web pages of this origin send requests; * lets all; may be given several times"
    ),
]
OriginsToo = Annotated[list[str] | None, typer.Option("--allowed-origins", hidden=True)]
ToolCallParser = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"the format in which the model calls tools: {', '.join(FORMATS)}",
        show_default="from its chat template",
    ),
]
StateDir = Annotated[
    str,
    typer.Option(
        metavar="DIR",
        help="keep what models with long-term memory remember of texts here, by name, for requests to begin at",
    ),
]
Replicas = Annotated[
    str,
    typer.Option(
        metavar="N|MIN-MAX",
        help="how many processes serve the model behind one address, each on its share of the cores; SIGHUP replaces "
        "them one after the other; with two numbers, as the load on --ray needs",
    ),
]
Ray = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS", help="serve by replicas on a Ray cluster: auto for this machine's, HOST:PORT, or local"
    ),
]
RayCpus = Annotated[
    int | None,
    typer.Option(help="the cores of each replica on Ray", show_default="an equal share of the cluster's"),
]
RayDashboard = Annotated[
    bool, typer.Option("--ray-dashboard", help="let --ray local start Ray's dashboard too, on 127.0.0.1")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="print address, model and process id as one JSON object once the server is ready")
]
