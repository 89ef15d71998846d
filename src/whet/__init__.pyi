"""The public names and where each one lives: what type checkers read, and what loads a name when it is first used."""

from .artefact import Artefact as Artefact
from .artefact import load as load
from .auditing import audit as audit
from .batching.batcher import DynamicBatcher as DynamicBatcher
from .benchmark.against import against_baseline as against_baseline
from .benchmark.against import compare_with as compare_with
from .benchmark.against import read_baseline as read_baseline
from .benchmark.sweep import bench as bench
from .comparison.claim import Claim as Claim
from .comparison.targets import compare as compare
from .errors import WhetError as WhetError
from .fix_trials.measure_fixes import measure_fixes as measure_fixes
from .installation.doctor import doctor as doctor
from .kernels.register import register_kernel as register_kernel
from .load_test.bench_serve import bench_serve as bench_serve
from .machine import Machine as Machine
from .machine import describe as describe
from .machine.measured_limits import limits as limits
from .monitor import Monitor as Monitor
from .monitor.monitor_command import monitor_command as monitor_command
from .profiler.session import profile as profile
from .recipe import Recipe as Recipe
from .scripts.command import run_script as run_script
from .server.conversation import chat as chat
from .server.engine import Engine as Engine
from .server.options import EngineOptions as EngineOptions
from .server.sampling_params import SamplingParams as SamplingParams
from .server.serving import serve as serve
from .server.structure import Structure as Structure
from .step_profiler.watch import watch as watch
from .stream_tuner.goal import StreamGoal as StreamGoal
from .stream_tuner.tuning import tune_stream as tune_stream
from .streamer.stream import Stream as Stream
from .streamer.stream import StreamOptions as StreamOptions
from .target_profiler.model import profile_nvtx as profile_nvtx
from .target_profiler.model import profile_target as profile_target
from .target_profiler.training import profile_step as profile_step
from .techniques.catalogue import describe_technique as describe_technique
from .techniques.catalogue import list_techniques as list_techniques
from .techniques.prepare import prepare as prepare
from .techniques.prepare_trainer import prepare_trainer as prepare_trainer
from .trace_profiler.profile_trace import profile_trace as profile_trace
from .trainer.loop import TrainResult as TrainResult
from .trainer.train import train as train
from .training.buffer_pool import BufferPool as BufferPool
from .tuner.apply import apply as apply
from .tuner.apply import apply_recipe as apply_recipe
from .tuner.result import Result as Result
from .tuner.scripts.tune_script import tune_script as tune_script
from .tuner.training.largest_batch import LargestBatch as LargestBatch
from .tuner.training.largest_batch import largest_batch as largest_batch
from .tuner.tuning import tune as tune
from .workload import GenerationWorkload as GenerationWorkload
from .workload import InferenceWorkload as InferenceWorkload
from .workload import Quality as Quality
from .workload import StreamWorkload as StreamWorkload
from .workload import TrainingWorkload as TrainingWorkload
from .workload import Workload as Workload
from .workload.micro_batches import micro_batches as micro_batches

MEANT: dict[str, str]
__version__: str
__all__: list[str]
