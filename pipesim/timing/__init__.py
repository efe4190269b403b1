"""When every action runs: by `engine`, simulated GPUs and wires; by `longest_path`, if nothing contends."""
