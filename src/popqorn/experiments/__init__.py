"""The paper's experiments: training, data, protocols."""
