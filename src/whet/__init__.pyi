"""The public names and where each one lives: what type checkers read, and what loads a name when it is first used."""

from .comparison.bench.against import against_baseline as against_baseline
from .comparison.bench.against import compare_with as compare_with
from .comparison.bench.against import read_baseline as read_baseline
from .comparison.bench.sweep import bench as bench
from .comparison.claim import Claim as Claim
from .comparison.targets import compare as compare
from .core.artefact import Artefact as Artefact
from .core.artefact import load as load
from .core.recipe import Recipe as Recipe
from .core.workload import GenerationWorkload as GenerationWorkload
from .core.workload import InferenceWorkload as InferenceWorkload
from .core.workload import Quality as Quality
from .core.workload import StreamWorkload as StreamWorkload
from .core.workload import TrainingWorkload as TrainingWorkload
from .core.workload import Workload as Workload
from .core.workload.micro_batches import micro_batches as micro_batches
from .errors import WhetError as WhetError
from .installation.doctor import doctor as doctor
from .kernels.register import register_kernel as register_kernel
from .measure.machine import Machine as Machine
from .measure.machine import describe as describe
from .measure.machine.measured_limits import limits as limits
from .parallel.parallelize import parallelize as parallelize
from .parallel.plan import ParallelPlan as ParallelPlan
from .profiling.model.session import profile as profile
from .profiling.step.watch import watch as watch
from .profiling.trace.profile_trace import profile_trace as profile_trace
from .scripts.audit_measure.measure_fixes import measure_fixes as measure_fixes
from .scripts.auditing import audit as audit
from .scripts.injection.command import run_script as run_script
from .scripts.monitor import Monitor as Monitor
from .scripts.monitor.monitor_command import monitor_command as monitor_command
from .server.batching.batcher import DynamicBatcher as DynamicBatcher
from .server.conversation import chat as chat
from .server.engine import Engine as Engine
from .server.load_test.bench_serve import bench_serve as bench_serve
from .server.options import EngineOptions as EngineOptions
from .server.output_constraint import OutputConstraint as OutputConstraint
from .server.sampling_params import SamplingParams as SamplingParams
from .server.serving import serve as serve
from .streamer.stream import Stream as Stream
from .streamer.stream import StreamOptions as StreamOptions
from .techniques.catalogue import describe_technique as describe_technique
from .techniques.catalogue import list_techniques as list_techniques
from .techniques.mechanisms.buffer_pool import BufferPool as BufferPool
from .techniques.prepare import prepare as prepare
from .techniques.prepare_trainer import prepare_trainer as prepare_trainer
from .trainer.result import TrainResult as TrainResult
from .trainer.train import train as train
from .tuner.apply import apply as apply
from .tuner.apply import apply_recipe as apply_recipe
from .tuner.result import Result as Result
from .tuner.scripts.tune_script import tune_script as tune_script
from .tuner.streams.goal import StreamGoal as StreamGoal
from .tuner.streams.tuning import tune_stream as tune_stream
from .tuner.target_profile.model import profile_nvtx as profile_nvtx
from .tuner.target_profile.model import profile_target as profile_target
from .tuner.target_profile.training import profile_step as profile_step
from .tuner.training.largest_batch import LargestBatch as LargestBatch
from .tuner.training.largest_batch import largest_batch as largest_batch
from .tuner.tuning import tune as tune

MEANT: dict[str, str]
__version__: str
__all__: list[str]
