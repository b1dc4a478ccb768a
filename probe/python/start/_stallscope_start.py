"""Runs at the start of each Python of this environment (stallscope.pth, beside it), and has the shim come where the node's policy says so.

Where nothing is to be done that is a look for one file. Nothing else of the package is imported before the process imports torch.
"""

import os
import sys

# With the first of these torch comes: those that import it before they are whole would be seen too late.
_COMES_WITH = {
    "torch",
    "accelerate.accelerator",
    "lightning.pytorch.trainer.trainer",
    "pytorch_lightning.trainer.trainer",
    "safetensors.torch",
    "transformers.trainer",
}


class _Watch:
    """A meta path finder that finds nothing: it only sees torch come."""

    def __init__(self, service):
        self.service = service

    def find_spec(self, name, path=None, target=None):
        # It stays where it is: a list that is gone through may not become shorter.
        if name not in _COMES_WITH or self.service is None:
            return None
        service, self.service = self.service, None
        try:
            from stallscope import _node

            _node.come(service)
        except Exception:
            # The job comes first; the reason is printed on request.
            if os.environ.get("STALLSCOPE_DEBUG"):
                sys.excepthook(*sys.exc_info())
        # What came before this one in the list is passed over by the import under way.
        first = sys.meta_path[0]
        return None if first is self else first.find_spec(name, path, target)


def _start():
    environment = os.environ
    # With -E or -I nothing in the environment is to decide what runs.
    if environment.get("STALLSCOPE_SHIM", "").lower() in ("0", "off") or sys.flags.ignore_environment:
        return
    if os.getuid() != os.geteuid() or os.getgid() != os.getegid():
        return
    kernel = environment.get("STALLSCOPE_KERNEL_SOCKET") or "/run/stallscope/kernel.sock"
    service = os.path.join(os.path.dirname(kernel), "node.sock")
    if environment.get("STALLSCOPE_SOCKET"):
        # A child of a job into which the shim came, or one of `stallscope run`, which brings it there.
        if not environment.get("STALLSCOPE_NODE_JOB"):
            return
    elif not os.path.exists(service):
        return
    sys.meta_path.insert(0, _Watch(service))


_start()
