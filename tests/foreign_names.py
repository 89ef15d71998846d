"""List what whet changes in other libraries while it runs, and which of PyTorch's private names it uses.

Nothing here is called. A test compares both lists with the code and with the installed PyTorch, so that the tests
notice, before a user does, when a new version moves, drops or changes one of these names.
"""

PATCHED: dict[str, str] = {
    # profiling/step/patches.py replaces these while a training loop is watched. Calls that torch.compile traces pass
    # through the wrappers.
    **{
        f"torch.Tensor.{name}": "a wait for the device is timed"
        for name in ("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__", "to", "cuda", "copy_")
    },
    **{
        f"torch.cuda.{name}synchronize": "a wait for the device is timed"
        for name in ("", "streams.Event.", "streams.Stream.")
    },
    **{
        f"torch.distributed.{name}": "communication is timed; FSDP2 calls these too"
        for name in (
            "barrier",
            "monitored_barrier",
            "all_reduce",
            "all_gather",
            "all_gather_into_tensor",
            "all_gather_object",
            "broadcast",
            "broadcast_object_list",
            "reduce",
            "reduce_scatter",
            "reduce_scatter_tensor",
            "all_to_all",
            "all_to_all_single",
            "gather",
            "gather_object",
            "scatter",
            "scatter_object_list",
            "all_gather_single",
            "reduce_scatter_single",
            "send",
            "recv",
            "send_object_list",
            "recv_object_list",
            "_broadcast_coalesced",
        )
    },
    **{
        f"torch.distributed._functional_collectives.{name}": "communication of DTensor is timed"
        for name in (
            "all_reduce",
            "all_gather_tensor",
            "all_gather_single",
            "reduce_scatter_tensor",
            "reduce_scatter_single",
            "all_to_all_single",
            "broadcast",
            "wait_tensor",
            "all_gather_tensor_autograd",
            "all_gather_single_autograd",
            "reduce_scatter_tensor_autograd",
            "reduce_scatter_single_autograd",
            "all_to_all_single_autograd",
        )
    },
    "torch.distributed.Work.wait": "waits are timed; trainer/communication.py: in one step that is recorded",
    "torch.nn.parallel.DistributedDataParallel.forward": "its backward pass ends with a wait, which is timed",
    "torch.autograd.backward": "the backward pass is timed; injection/losses.py and training techniques: the loss",
    "torch.autograd.grad": "the backward pass is timed",
    "torch.nn.Module.zero_grad": "time of the optimiser",
    "torch.nn.Module.__call__": "the forward pass is timed, where every module is watched",
    "torch.nn.Module._compiled_call_impl": "the forward pass of given models is timed: profiling/step/forward.py",
    "torch.optim.Optimizer.zero_grad": "time of the optimiser",
    "torch.amp.GradScaler.unscale_": "time of the optimiser",
    "torch.amp.GradScaler.update": "time of the optimiser",
    "torch.amp.GradScaler.step": "time of the optimiser; a skipped step is no step",
    "torch.amp.GradScaler.scale": "injection/losses.py reads the scale of the loss",
    "torch.utils.data.DataLoader.__iter__": "time of the data; injection/loader_passes.py: another loader",
    "torch.utils.data.dataloader._BaseDataLoaderIter.__next__": "time of the data",
    "torch.optim.Optimizer.__init__": "injection/loop_finder.py notes every optimiser of a script",
    # In bounded runs of a script, file_guard.py checks what is written, applying.py shifts the seeds.
    "torch.save": "a file outside a script's copy is not written",
    "safetensors.torch.save_file": "a file outside a script's copy is not written",
    "torch.manual_seed": "pairs of runs train with other seeds",
    "torch.random.manual_seed": "pairs of runs train with other seeds",
    "random.seed": "pairs of runs train with other seeds",
    "numpy.random.seed": "pairs of runs train with other seeds",
    **{
        f"torch.nn.functional.{name}": "injection/first_steps.py: nothing is dropped while a script's steps are proved"
        for name in (
            "dropout",
            "dropout1d",
            "dropout2d",
            "dropout3d",
            "alpha_dropout",
            "feature_alpha_dropout",
            "scaled_dot_product_attention",
        )
    },
    "torch.UntypedStorage.resize_": "planner/tracing/live_bytes.py: FSDP frees and takes memory by it",
    # Another file changes this one.
    "torch._inductor.constant_folding._dont_constant_fold": "core/artefact/inductor.py keeps packed weights packed",
}
"""List each name that whet replaces or changes for a time, and why. Some are outside PyTorch."""

PRIVATE: dict[str, str] = {
    "torch._C.DisableTorchFunctionSubclass": "mechanisms/deferred_logits.py: facts of a promise, which need no logits",
    "torch._C.PyTorchFileReader": "core/artefact/archive.py: reads an archive without unpickling it",
    "torch._C._accelerator_setAllocatorSettings": "techniques/training/allocator.py: settings of a GPU's allocator",
    "torch._C._aoti.AOTIModelPackageLoader": "core/artefact/inductor.py: a package, with control over its threads",
    "torch._C._cuda_endAllocateToPool": "models/diffusion/graphs.py: ends what a failed recording leaves begun",
    "torch._C._current_autograd_node": "costs/layer_profile.py: whose backward runs",
    "torch._C._disabled_torch_function_impl": "cpu_offloaded_gradients.py: operators come to __torch_dispatch__ alone",
    "torch._C._distributed_c10d.FakeWork": "planner/tracing/live_bytes.py: a message that has come at once",
    "torch._C._distributed_c10d.PrefixStore": "parallel/joining.py: keys of torch and of whet, by the start of a run",
    "torch._C._distributed_c10d._resolve_process_group": "parallel/wire.py: how large a group is that operators name",
    "torch._C._dispatch_dump": "core/artefact/operators.py: who registered a custom operator",
    "torch._C._dispatch_key_for_device": "kernels/register.py: under which key an implementation is registered",
    "torch._C._dispatch_has_kernel": "core/artefact/operators.py: whether an operator is registered",
    "torch._C._dispatch_has_kernel_for_dispatch_key": "kernels/register.py: whether a library implements an operator",
    "torch._amp_foreach_non_finite_check_and_unscale_": "mechanisms/loss_scale.py: as GradScaler does",
    "torch._amp_update_scale_": "mechanisms/loss_scale.py: GradScaler's rule",
    "torch._dynamo.config.recompile_limit": "mechanisms/compiled.py: parts of one class share their code",
    "torch._dynamo.reset": "measure/effects.py: forget what was compiled for an examination",
    "torch._dynamo.utils.calculate_time_spent": "costs/compile_time.py: how long code was compiled",
    "torch._dynamo.utils.counters": "core/artefact/in_process.py: graphs and graph breaks",
    "torch._foreach_div_": "parallel/compression.py: divides the parts of gradients in one call",
    "torch._foreach_mul_": "core/workload/micro_batches.py: one factor for many gradients",
    "torch._foreach_norm": "trainer/loop.py: whether the weights are finite, before they are saved",
    "torch._functorch.config": "techniques/training/activation_budget.py: activation_memory_budget",
    "torch._guards.active_fake_mode": "planner/tracing/live_bytes.py: whether torch itself tries shapes",
    "torch._inductor.aoti_compile_and_package": "core/artefact/inductor.py: PyTorch's documented way to a package",
    "torch._inductor.config.get_config_copy": "core/artefact/inductor.py: which settings there are",
    "torch._inductor.config.patch": "core/artefact/inductor.py: settings for one compilation",
    "torch._int_mm": "measure/machine/gemm.py: products of int8",
    "torch._library.custom_ops.OPDEFS": "core/artefact/operators.py: custom operators written in Python",
    "torch._ops.HigherOrderOperator": "control flow in graphs",
    "torch._ops.OpOverload": "operators in graphs",
    "torch._scaled_mm": "measure/machine/gemm.py: products of 8-bit floats",
    "torch._softmax_backward_data": "packing/unfused_attention.py: the gradient of a softmax, in one pass",
    "torch._subclasses.fake_tensor.DataDependentOutputException": "artefact/program.py: the values of tensors decide",
    "torch._subclasses.fake_tensor.DynamicOutputShapeException": "planner/tracing/trace.py: numbers decide on shapes",
    "torch._subclasses.fake_tensor.FakeTensor": "planner/tracing/live_bytes.py: the device that it stands for",
    "torch._subclasses.fake_tensor.FakeTensorMode": "planner/tracing/one_rank.py: tensors without numbers",
    "torch._subclasses.fake_tensor.unset_fake_temporarily": "planner/tracing/one_rank.py: a mesh has numbers",
    "torch.autograd.Variable._execution_engine.queue_callback": "step/communication.py: the end of computing gradients",
    "torch.autograd._get_sequence_nr": "costs/layer_profile.py: which operators of forward a module called",
    "torch.cuda.memory._dump_snapshot": "profiling/model/session.py: PyTorch's documented memory snapshot",
    "torch.cuda.memory._record_memory_history": "profiling/model/session.py: PyTorch's documented memory snapshot",
    "torch.distributed._functional_collectives.AsyncCollectiveTensor": "tracing/live_bytes.py: it holds another tensor",
    "torch.distributed._symmetric_memory.enable_symm_mem_for_group": "parallel/tensor_parallel.py: beside products",
    "torch.distributed.distributed_c10d._get_default_store": "monitor/ranks.py: each rank posts its figures there",
    "torch.distributed.distributed_c10d._set_pg_timeout": "parallel/division.py: the time-out of a mesh's groups",
    "torch.library.Library._destroy": "kernels/register.py: takes back an operator that is not its reference",
    "torch.nn.Module._call_impl": "mechanisms/compiled.py: compiled where a forward is PyTorch's own",
    "torch.ops._c10d_functional.reduce_scatter_tensor.default": "tracing/traced_decoder.py: kept in backward",
    "torch.ops._c10d_functional.wait_tensor.default": "planner/tracing/live_bytes.py: it makes no tensor",
    "torch.ops.aten._assert_tensor_metadata.default": "core/artefact/inductor.py: dropped from graphs",
    "torch.ops.aten._convert_weight_to_int4pack_for_cpu": "quantisation/quantised_linear.py: packed int4 weights",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": (
        "profiling/model/work.py: its arithmetic; packing/packed_operator.py: attention of one document"
    ),
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward": (
        "profiling/model/work.py: its arithmetic; packing/packed_operator.py: its gradients"
    ),
    "torch.ops.aten._to_copy.default": "planner/tracing/live_bytes.py: copies of parameters in other numbers",
    "torch.ops.aten._weight_int4pack_mm_for_cpu": "quantisation/quantised_linear.py: products of int4 weights",
    "torch.ops.aten._weight_int4pack_mm_for_cpu.default": "core/artefact/program.py: its weights stay packed",
    "torch.ops.aten._weight_int8pack_mm": "quantisation/quantised_linear.py: products of int8 weights",
    "torch.ops.mkldnn._linear_pointwise": "measure/machine/gemm.py: oneDNN's packed products",
    "torch.ops.mkldnn._reorder_linear_weight": "measure/machine/gemm.py: oneDNN's packed products",
    "torch.testing._internal.distributed.fake_pg.FakeStore": "tracing/one_rank.py: a group in which nobody else is",
    "torch.utils._python_dispatch.TorchDispatchMode": "sees every operator",
    "torch.utils._pytree.tree_map_only": "kernels/check_operator.py: tensors among arguments",
    "torch.utils._pytree.tree_flatten": "mechanisms/cpu_offloaded_gradients.py: tensors among arguments",
    "torch.utils._pytree.tree_unflatten": "mechanisms/cpu_offloaded_gradients.py: tensors among arguments",
    "torch.utils._pytree.tree_leaves": "profiling/model/work.py: tensors in nested arguments",
    "torch.utils._sympy.functions": "core/artefact/archive.py: which functions a shape may name",
    "torch.utils.data.dataloader._BaseDataLoaderIter": "profiling/step/patches.py: the next batch",
}
"""List each private name of PyTorch that whet uses, and what for."""
