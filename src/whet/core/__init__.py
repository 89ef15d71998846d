"""Define what everything is said in: workloads, recipes, artefacts, the tensors that go in and out of a model."""
