"""The machine a job runs on: its GPUs, who has them, its software, its terminal, the end of a run."""
