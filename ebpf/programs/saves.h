/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * With system call hooks: the marks that a checkpoint leaves. A main thread creates a file, writes it, closes
 * or syncs it, perhaps renames it. User space joins the marks between two batches: what it does meanwhile on
 * the CPU (serialising, copying into the page cache) belongs to the checkpoint and never blocks.
 */
#ifndef STALLSCOPE_SAVES_H
#define STALLSCOPE_SAVES_H

#include "account.h"
#include "classify.h"

#define O_ACCMODE 03
#define O_APPEND 02000
#define FMODE_WRITE 2

enum save_what {
	SAVE_BEGUN = 1,
	SAVE_DONE = 2,
};

/* Smaller files are notes beside a checkpoint. */
#define SAVE_BYTES 65536

INLINE void send_save(struct task_slot *slot, u32 what, u64 bytes)
{
	struct save *record = reserve(slot, sizeof(*record));

	if (!record)
		return;
	fill_header(&record->header, slot, KIND_SAVE, sizeof(*record), ktime_get_ns());
	record->what = what;
	record->pad = 0;
	record->bytes = bytes;
	submit(record);
}

/* Bytes of the regular file behind `fd`, when it is open for writing and large enough to matter; else 0. */
INLINE u64 bytes_written(struct task_struct *task, u32 fd)
{
	struct file *file = file_of(task, fd);
	struct inode *inode = NULL;
	u32 f_mode = 0;
	u16 i_mode = 0;
	s64 size = 0;

	if (!file)
		return 0;
	READ(f_mode, file->f_mode);
	if (!(f_mode & FMODE_WRITE))
		return 0;
	READ(inode, file->f_inode);
	READ(i_mode, inode->i_mode);
	READ(size, inode->i_size);
	if ((i_mode & S_IFMT) != S_IFREG || size < SAVE_BYTES || holds_no_data(file, inode))
		return 0;
	return size;
}

/*
 * Calls after which more of a file is where it stays: its bytes, or its name. What starts a worker makes names,
 * too (its semaphores and folders), and a link or a file less puts nothing in place.
 */
INLINE bool moves_data(enum deed deed, long nr)
{
	switch (nr) {
	case NR_RENAME:
	case NR_RENAMEAT:
	case NR_LINKAT:
	case NR_RENAMEAT2:
		return true;
	default:
		return deed == DEED_SYNC;
	}
}

INLINE void note_save(struct task_slot *slot, struct task_struct *task, struct pt_regs *regs, enum deed deed,
		      long nr)
{
	const void *path = deed == DEED_OPEN ? (void *)regs->di : (void *)regs->si;
	unsigned long flags = deed == DEED_OPEN ? regs->si : regs->dx;
	u64 bytes;

	if (deed == DEED_OPEN || deed == DEED_OPEN_AT) {
		if (flags & O_ACCMODE && flags & (O_CREAT | O_TRUNC) && !(flags & O_APPEND) &&
		    !path_holds_no_data(path))
			send_save(slot, SAVE_BEGUN, 0);
	} else if (nr == NR_CLOSE) {
		bytes = bytes_written(task, regs->di);
		if (bytes)
			send_save(slot, SAVE_DONE, bytes);
	} else if (moves_data(deed, nr)) {
		send_save(slot, SAVE_DONE, 0);
	}
}

#endif
