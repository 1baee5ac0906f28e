"""Meta-learning: the settings of a run, its folder, training, the engine that runs episodes, and results."""
