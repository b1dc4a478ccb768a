/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What a task that blocks in an x86-64 system call waits for. Another architecture needs another table. */
#ifndef STALLSCOPE_SYSCALLS_H
#define STALLSCOPE_SYSCALLS_H

#include "abi.h"

enum deed {
	/* Acts on the descriptor in the first argument, whose type decides. */
	DEED_FD_READ,
	DEED_FD_WRITE,
	/* Acts on the path in the first or the second argument. */
	DEED_PATH,
	DEED_PATH_AT,
	DEED_OPEN,
	DEED_OPEN_AT,
	DEED_POLL,
	/* What it blocks in is plain from its number. */
	DEED_FILE_READ,
	DEED_FILE_WRITE,
	DEED_SYNC,
	DEED_RENAME,
	DEED_FUTEX,
	DEED_EPOLL,
	DEED_SELECT,
	DEED_SLEEP,
	DEED_CHILD,
	DEED_OTHER,
};

enum syscall_number {
	NR_READ = 0,
	NR_WRITE = 1,
	NR_CLOSE = 3,
	NR_WRITEV = 20,
	NR_MSYNC = 26,
	NR_SENDFILE = 40,
	NR_CONNECT = 42,
	NR_SENDMSG = 46,
	NR_RECVMSG = 47,
	NR_RENAME = 82,
	NR_SYNC = 162,
	NR_FUTEX = 202,
	NR_RENAMEAT = 264,
	NR_LINKAT = 265,
	NR_RENAMEAT2 = 316,
	NR_FUTEX_WAKE = 454,
};

INLINE enum deed deed_of(long nr)
{
	switch (nr) {
	case NR_READ:
	case 5: /* fstat */
	case 8: /* lseek */
	case 16: /* ioctl */
	case 17: /* pread64 */
	case 19: /* readv */
	case NR_CONNECT:
	case 43: /* accept */
	case 45: /* recvfrom */
	case NR_RECVMSG:
	case 78: /* getdents */
	case 187: /* readahead */
	case 217: /* getdents64 */
	case 221: /* fadvise64 */
	case 288: /* accept4 */
	case 295: /* preadv */
	case 299: /* recvmmsg */
	case 327: /* preadv2 */
		return DEED_FD_READ;
	case NR_WRITE:
	case 18: /* pwrite64 */
	case NR_WRITEV:
	case 44: /* sendto */
	case NR_SENDMSG:
	case 48: /* shutdown */
	case 77: /* ftruncate */
	case 285: /* fallocate */
	case 296: /* pwritev */
	case 307: /* sendmmsg */
	case 328: /* pwritev2 */
		return DEED_FD_WRITE;
	case 4: /* stat */
	case 6: /* lstat */
	case 21: /* access */
	case 89: /* readlink */
	case 137: /* statfs */
		return DEED_PATH;
	case 262: /* newfstatat */
	case 267: /* readlinkat */
	case 269: /* faccessat */
	case 332: /* statx */
	case 439: /* faccessat2 */
		return DEED_PATH_AT;
	case 2: /* open */
		return DEED_OPEN;
	case 257: /* openat */
		return DEED_OPEN_AT;
	case 7: /* poll */
	case 271: /* ppoll */
		return DEED_POLL;
	/* A descriptor is out of the table when close waits: flushing (FUSE, NFS), mostly of what was read. */
	case NR_CLOSE:
	case NR_SENDFILE:
	case 208: /* io_getevents */
	case 333: /* io_pgetevents */
	case 426: /* io_uring_enter */
	case 437: /* openat2 */
		return DEED_FILE_READ;
	case 76: /* truncate */
	case 85: /* creat */
	case 326: /* copy_file_range */
		return DEED_FILE_WRITE;
	case NR_MSYNC:
	case 74: /* fsync */
	case 75: /* fdatasync */
	case NR_SYNC:
	case 277: /* sync_file_range */
	case 306: /* syncfs */
		return DEED_SYNC;
	case NR_RENAME:
	case 83: /* mkdir */
	case 84: /* rmdir */
	case 86: /* link */
	case 87: /* unlink */
	case 88: /* symlink */
	case 258: /* mkdirat */
	case 263: /* unlinkat */
	case NR_RENAMEAT:
	case NR_LINKAT:
	case 266: /* symlinkat */
	case NR_RENAMEAT2:
		return DEED_RENAME;
	case NR_FUTEX:
	case 449: /* futex_waitv */
	case 455: /* futex_wait */
		return DEED_FUTEX;
	case 232: /* epoll_wait */
	case 281: /* epoll_pwait */
	case 441: /* epoll_pwait2 */
		return DEED_EPOLL;
	case 23: /* select */
	case 270: /* pselect6 */
		return DEED_SELECT;
	case 34: /* pause */
	case 35: /* nanosleep */
	case 128: /* rt_sigtimedwait */
	case 130: /* rt_sigsuspend */
	case 230: /* clock_nanosleep */
		return DEED_SLEEP;
	case 61: /* wait4 */
	case 247: /* waitid */
		return DEED_CHILD;
	default:
		return DEED_OTHER;
	}
}

#endif
