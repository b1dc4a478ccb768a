/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Names what a task blocks in, from the registers that it saved when it entered the kernel. */
#ifndef STALLSCOPE_CLASSIFY_H
#define STALLSCOPE_CLASSIFY_H

#include "kernel.h"
#include "syscalls.h"

#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define AF_VSOCK 40

#define O_WRONLY 01
#define O_RDWR 02
#define O_CREAT 0100
#define O_TRUNC 01000

#define PROC_MAGIC 0x9fa0
#define SYSFS_MAGIC 0x62656572
#define CGROUP_MAGIC 0x27e0eb
#define CGROUP2_MAGIC 0x63677270
#define TMPFS_MAGIC 0x01021994
#define OVERLAY_MAGIC 0x794c7630
#define FUSE_MAGIC 0x65735546

enum {
	FUTEX_COMMAND = 0x7f,
	FUTEX_WAIT_BITSET = 9,
	FUTEX_CLOCK_REALTIME = 0x100,
	FUTEX_UNTIMED_LOCK = 0x189,
};

/* Whether the bytes of `word`, as they lie in memory, begin with `name`. Folds into one comparison. */
INLINE bool begins_with(u64 word, const char *name, u32 length)
{
	u64 wanted = 0;

	for (u32 i = 0; i < length; i++)
		wanted |= (u64)(u8)name[i] << (8 * i);
	return (word << (64 - 8 * length)) == (wanted << (64 - 8 * length));
}

/* Regular files that hold no data: what the kernel computes (/proc and kin), and the shared tensors that
 * torch names torch_* on tmpfs. Other files on tmpfs count: a data set may live there. */
INLINE bool holds_no_data(struct file *file, struct inode *inode)
{
	struct super_block *sb = NULL;
	unsigned long magic = 0;
	struct dentry *dentry = NULL;
	const unsigned char *name = NULL;
	u64 begin = 0;

	READ(sb, inode->i_sb);
	READ(magic, sb->s_magic);
	if (magic == PROC_MAGIC || magic == SYSFS_MAGIC || magic == CGROUP_MAGIC || magic == CGROUP2_MAGIC)
		return true;
	if (magic != TMPFS_MAGIC)
		return false;
	READ(dentry, file->f_path.dentry);
	READ(name, dentry->d_name.name);
	probe_read_kernel(&begin, sizeof(begin), name);
	return begins_with(begin, "torch_", 6);
}

/* The same for a file that is not open yet, and semaphores, which are only mapped. A path whose page is not in memory counts as data. */
INLINE bool path_holds_no_data(const void *path)
{
	u64 begin[2] = {};

	probe_read_user(begin, sizeof(begin), path);
	return begins_with(begin[0], "/proc/", 6) || begins_with(begin[0], "/sys/", 5) ||
	       (begins_with(begin[0], "/dev/shm", 8) &&
		(begins_with(begin[1], "/torch_", 7) || begins_with(begin[1], "/sem.", 5)));
}

INLINE struct file *file_of(struct task_struct *task, u32 fd)
{
	struct files_struct *files = NULL;
	struct fdtable *fdt = NULL;
	struct file **table = NULL, *file = NULL;
	u32 max_fds = 0;

	READ(files, task->files);
	if (!files)
		return NULL;
	READ(fdt, files->fdt);
	READ(max_fds, fdt->max_fds);
	if (fd >= max_fds)
		return NULL;
	READ(table, fdt->fd);
	probe_read_kernel(&file, sizeof(file), table + fd);
	return file;
}

/* What waiting for this descriptor is. `otherwise` is for what is no file, pipe or socket. */
static __attribute__((noinline)) u32 kind_of_fd(struct task_struct *task, u32 fd, bool write, u32 otherwise)
{
	struct file *file = file_of(task, fd);
	struct inode *inode = NULL;
	struct socket *socket = NULL;
	struct sock *sk = NULL;
	u16 mode = 0, family = 0;

	if (!file)
		return otherwise;
	READ(inode, file->f_inode);
	READ(mode, inode->i_mode);
	switch (mode & S_IFMT) {
	case S_IFREG:
		if (holds_no_data(file, inode))
			return BLOCKED_OTHER;
		/* fall through */
	case S_IFBLK:
		return write ? BLOCKED_FILE_WRITE : BLOCKED_FILE_READ;
	case S_IFDIR:
		return BLOCKED_FILE_READ;
	case S_IFIFO:
		return BLOCKED_PIPE;
	case S_IFSOCK:
		READ(socket, file->private_data);
		READ(sk, socket->sk);
		READ(family, sk->__sk_common.skc_family);
		if (family == AF_UNIX)
			return BLOCKED_UNIX;
		if (family == AF_INET || family == AF_INET6 || family == AF_VSOCK)
			return BLOCKED_NET;
		return BLOCKED_OTHER;
	default:
		return otherwise;
	}
}

INLINE u32 kind_of_path(const void *path, unsigned long flags)
{
	if (path && path_holds_no_data(path))
		return BLOCKED_OTHER;
	return flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC) ? BLOCKED_FILE_WRITE : BLOCKED_FILE_READ;
}

/* The first of the polled descriptors stands for all. */
INLINE u32 kind_of_poll(struct task_struct *task, const void *descriptors)
{
	int fd = -1;

	if (!descriptors || probe_read_user(&fd, sizeof(fd), descriptors) || fd < 0)
		return BLOCKED_POLL;
	return kind_of_fd(task, fd, false, BLOCKED_POLL);
}

/*
 * What a task that made this system call waits for in it. What the arguments point to can be read for the
 * current task alone; for another one (`is_current` false) it stays unknown.
 */
INLINE u32 kind_of_syscall(struct task_struct *task, struct pt_regs *regs, enum deed deed, bool is_current)
{
	const void *first = is_current ? (const void *)regs->di : NULL;
	const void *second = is_current ? (const void *)regs->si : NULL;

	switch (deed) {
	case DEED_FD_READ:
	case DEED_FD_WRITE:
		return kind_of_fd(task, regs->di, deed == DEED_FD_WRITE, BLOCKED_OTHER);
	case DEED_POLL:
		return kind_of_poll(task, first);
	case DEED_PATH:
		return kind_of_path(first, 0);
	case DEED_PATH_AT:
		return kind_of_path(second, 0);
	case DEED_OPEN:
		return kind_of_path(first, regs->si);
	case DEED_OPEN_AT:
		return kind_of_path(second, regs->dx);
	case DEED_FILE_READ:
		return BLOCKED_FILE_READ;
	case DEED_FILE_WRITE:
		return BLOCKED_FILE_WRITE;
	case DEED_SYNC:
		return BLOCKED_SYNC;
	case DEED_RENAME:
		return BLOCKED_RENAME;
	case DEED_FUTEX:
		return BLOCKED_FUTEX;
	case DEED_EPOLL:
	case DEED_SELECT:
		return BLOCKED_POLL;
	case DEED_SLEEP:
		return BLOCKED_SLEEP;
	case DEED_CHILD:
		return BLOCKED_CHILD;
	default:
		return BLOCKED_OTHER;
	}
}

/*
 * What `task`, which is going or is off its CPU, is blocked in. A wait for storage (in_iowait) in a call that
 * is not about files is a fault on its arguments (a mapped file is being written to a pipe, say), or it is
 * mmap, madvise or exec, which read.
 */
static __attribute__((noinline)) u32 kind_of_sleep(struct task_struct *task, bool is_current)
{
	struct pt_regs *regs = task_pt_regs(task);
	long nr = regs->orig_ax;
	u32 kind;

	if (task->__state & TASK_STOPPED_OR_TRACED)
		return BLOCKED_OTHER;
	if (nr == -1)
		return BLOCKED_FAULT;
	kind = kind_of_syscall(task, regs, deed_of(nr), is_current);
	switch (kind) {
	case BLOCKED_NET:
	case BLOCKED_UNIX:
	case BLOCKED_PIPE:
	case BLOCKED_FUTEX:
	case BLOCKED_POLL:
		return in_iowait(task) ? BLOCKED_FAULT : kind;
	case BLOCKED_OTHER:
		return in_iowait(task) ? BLOCKED_FILE_READ : kind;
	default:
		return kind;
	}
}

#endif
