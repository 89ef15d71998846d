"""Stream frames through a model in real time: whet stream."""
