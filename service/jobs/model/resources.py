"""The GPUs and hosts that a job requests."""

from pydantic import Field

from service.web.validation import RequestBody


class Resources(RequestBody):
    gpus: int = Field(0, ge=0, le=64)
    """Number of GPUs, each with one training process; 0: one device, a GPU or the CPU."""
    sampler_gpus: int = Field(0, ge=0, le=64)
    """Additional GPUs, each with a process that only samples; 0: the training processes also sample. With
    `max_staleness` 1, sampling and training run at the same time."""
    gpu_memory_gb: int = Field(0, ge=0, le=10_000)
    """Minimum memory of each GPU in units of 10^9 bytes, as in a card's name; 0: no minimum."""
    hosts: int = Field(0, ge=0, le=64)
    """Number of cluster hosts over which the GPUs of both kinds are divided evenly; 0: as few as possible."""
    min_gpus: int = Field(0, ge=0, le=64)
    """Minimum number of GPUs with which the job starts, or continues after a loss of hosts, if fewer than
    `gpus` are free; 0: the job needs all."""

    @property
    def all_gpus(self) -> int:
        return self.gpus + self.sampler_gpus

    @property
    def least_gpus(self) -> int:
        return (self.min_gpus or self.gpus) + self.sampler_gpus
