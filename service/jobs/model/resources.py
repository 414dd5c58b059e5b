"""The GPUs and hosts that a job asks for."""

from pydantic import Field

from service.web.validation import RequestBody


class Resources(RequestBody):
    gpus: int = Field(0, ge=0, le=64)
    """Number of GPUs, each with one training process; 0: one device, whatever the worker has."""
    sampler_gpus: int = Field(0, ge=0, le=64)
    """Further GPUs, each with a process that only samples; 0: the training processes sample themselves. With
    `max_staleness` 1 both work at the same time."""
    gpu_memory_gb: int = Field(0, ge=0, le=10_000)
    """Least memory of each GPU in units of 10^9 bytes, as in a card's name; 0: any, or none."""
    hosts: int = Field(0, ge=0, le=64)
    """Hosts of a cluster to divide the GPUs of both kinds among, the same number on each; 0: as few as
    possible."""
    min_gpus: int = Field(0, ge=0, le=64)
    """The job starts, and continues after a loss of hosts, with fewer GPUs than `gpus` if fewer are free, but
    with at least this many; 0: only with all."""

    @property
    def all_gpus(self) -> int:
        return self.gpus + self.sampler_gpus

    @property
    def least_gpus(self) -> int:
        return (self.min_gpus or self.gpus) + self.sampler_gpus
