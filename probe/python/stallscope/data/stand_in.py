"""What an iterator, and so its workers, get in the place of the job's data set."""

from torch.utils.data import get_worker_info


class StandIn:
    """Stands for `dataset`; `maker`: makes its samples where some are kept, else None."""

    def __init__(self, dataset, maker=None):
        self.dataset = dataset
        self.maker = maker

    def __getattr__(self, name):
        # One that is being made anew in a worker has no data set yet.
        if "maker" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.dataset, name)


class start_of_worker:
    """A worker's init function: the user's, who finds the own data set in `get_worker_info()`."""

    def __init__(self, users):
        self.users = users

    def __call__(self, worker_id):
        info = get_worker_info()
        if isinstance(info.dataset, StandIn):
            # Past its own guard, which is for what users set.
            object.__setattr__(info, "dataset", info.dataset.dataset)
        if self.users is not None:
            self.users(worker_id)
