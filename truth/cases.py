"""The truth jobs: what each does to itself, and how far a measurement of it may be off."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    name: str
    # Of `program`, beside the storage's.
    flags: str
    ranks: int = 1
    # Points that kernel evidence alone may be off; None: measured and shown.
    kernel_bar: float | None = 3
    # Much of its waits may stay unknown to the kernel alone, but nothing may be blamed for them wrongly.
    kernel_may_not_know: bool = False
    shim_bar: float = 1
    # The report has to find no data stall.
    no_stall: bool = False
    # Training reads by itself: what that takes of the CPU is prep without syscall hooks.
    reads_on_cpu: bool = False
    # The report has to name this rank as the slow one.
    slow_rank: int | None = None
    # What training waits for can't be told here: no steps are to be shown, and the report has to say these words.
    withheld: str | None = None
    # A device works asynchronously; this many points its hidden waits may be off.
    hidden_bar: float | None = None
    # Run at reduced length by the tests, too.
    tested: bool = False
    # Busy processes, on the CPU that the workers have to use or on all.
    neighbours: int = 0
    # Points of training time by which the accounts of kernel and shim may differ on one cause.
    agreement_bar: float | None = None
    # What the report's first line has to begin with.
    finding: str | None = None
    # Read limits of the storage: MiB/s, requests/s.
    read_mb_s: float = 16
    read_iops: int = 0
    program: str = "job.py"
    # The report has to name a file whose path ends so as the one that was waited for longest.
    waits_for: str | None = None

    @property
    def has_kernel_steps(self) -> bool:
        """Whether the kernel alone finds the steps."""
        return not self.withheld and self.program == "job.py"


CASES = [
    Case("fork-2", "--workers 2", tested=True),
    Case("workers-0", "--workers 0", tested=True, kernel_bar=None, reads_on_cpu=True),
    Case("workers-1", "--workers 1"),
    Case("workers-4", "--workers 4 --skew 3"),
    Case("prep-bound", "--workers 2 --prep-ms 5 --sample-bytes 8192"),
    Case("spawn", "--workers 2 --start spawn", tested=True),
    Case("forkserver", "--workers 2 --start forkserver"),
    Case("persistent", "--workers 2 --persistent --epoch-batches 60"),
    Case("prefetch-1", "--workers 2 --prefetch 1"),
    Case("prefetch-8", "--workers 2 --prefetch 8"),
    Case("pin", "--workers 2 --pin", kernel_may_not_know=True, tested=True),
    Case("pin-4", "--workers 4 --pin --skew 3"),
    Case("thread", "--workers 0 --thread", withheld="iterated by a thread", tested=True, kernel_bar=None),
    Case("mmap", "--workers 2 --source mmap", tested=True),
    Case("mmap-held", "--workers 2 --source mmap-held"),
    Case("mmap-pin", "--workers 2 --source mmap --pin"),
    Case("big-file", "--workers 2 --source big"),
    Case("direct", "--workers 2 --source direct", kernel_bar=None),
    Case("io-uring", "--workers 2 --source uring", kernel_bar=None),
    Case("small-files", "--workers 2 --source small --sample-bytes 8192", read_iops=1500),
    Case("network", "--workers 2 --source net", tested=True),
    Case("network-0", "--workers 0 --source net", kernel_bar=None),
    Case("checkpoint-loop", "--workers 2 --checkpoint loop"),
    # Checkpoints take so much of it that one who misses them all is far off.
    Case("checkpoint-often", "--workers 2 --checkpoint loop --checkpoint-every 4", tested=True),
    Case("checkpoint-fsync", "--workers 2 --checkpoint fsync"),
    Case("checkpoint-safetensors", "--workers 2 --checkpoint safetensors"),
    Case("checkpoint-thread", "--workers 2 --checkpoint thread"),
    Case("checkpoint-process", "--workers 2 --checkpoint process"),
    Case("checkpoint-dcp", "--workers 2 --checkpoint dcp", kernel_bar=None),
    Case("epochs", "--workers 2 --epoch-batches 50", kernel_bar=None),
    Case("evaluation", "--workers 2 --epoch-batches 60 --evaluate 15", tested=True, kernel_bar=None),
    Case("two-loaders", "--workers 1 --loaders 2", kernel_bar=None),
    Case(
        "ranks-2",
        "--workers 1 --source net --net-ms 0.5 --slow-rank 1",
        ranks=2,
        shim_bar=3,
        kernel_bar=None,
        slow_rank=1,
        tested=True,
    ),
    Case(
        "ranks-4",
        "--workers 1 --source net --net-ms 2 --prep-ms 0.5 --compute-ms 4 --slow-rank 2 --slow-in fetch",
        ranks=4,
        shim_bar=3,
        kernel_bar=None,
        slow_rank=2,
    ),
    Case("device", "--workers 2 --compute-ms 2 --device-ms 15 --prep-ms 0.5", hidden_bar=2, tested=True),
    Case("loop-memmap", "--source memmap", program="loop.py", kernel_bar=None, waits_for="big.bin", tested=True),
    Case("loop-accumulate", "--source memmap --accumulate 4", program="loop.py", kernel_bar=None, waits_for="big.bin"),
    Case("loop-reader", "--source reader", program="loop.py", kernel_bar=None),
    Case("loop-pipe", "--source pipe", program="loop.py", kernel_bar=None, tested=True),
    Case("loop-by-script", "--source memmap --by-script", program="loop.py", kernel_bar=None),
    # Steps of some 6 ms: what a thread does between two slices of its neighbours decides, and the bars are missed (README).
    Case(
        "decode-busy",
        "--workers 2 --source none --prep-ms 0.6 --prep-silent --compute-ms 0.5",
        neighbours=2,
        agreement_bar=3,
        shim_bar=3,
    ),
    Case(
        "decode-busy-long",
        "--workers 2 --source none --prep-ms 6 --prep-silent --compute-ms 10",
        neighbours=2,
        agreement_bar=3,
        shim_bar=3,
        tested=True,
    ),
    Case(
        "crowded-workers",
        "--workers 2 --source none --prep-ms 0.5 --compute-ms 10 --worker-cpu 0 --trainer-cpu 1",
        neighbours=4,
        finding="short of CPU",
        shim_bar=3,
        tested=True,
    ),
    Case("no-stall", "--workers 1 --source none --prep-ms 0.2 --compute-ms 200", no_stall=True, tested=True),
    Case("own-lock", "--workers 1 --source none --prep-ms 0.2 --lock-ms 200", no_stall=True),
    Case("own-request", "--workers 1 --source none --prep-ms 0.2 --request-ms 200", no_stall=True),
]


def case(name: str) -> Case:
    """Raises KeyError."""
    return {one.name: one for one in CASES}[name]
