"""What everything is said in: workloads, recipes, artefacts, and the tensors that go in and out of a model."""
